"""A folder of ours has one process in it at a time, whoever died there before."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from vicinal.checks import InputError
from vicinal.cli.folders import LOCK, locked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def child(act):
    """A process that does ``act`` and ends without a word; its number."""
    number = os.fork()
    if number == 0:
        try:
            act()
        finally:
            os._exit(0)
    return number


def visit(folder, beside, salt):
    """Three times in; what happened is a letter each: Entered, Refused, Double, eXception."""
    chance = random.Random(salt)
    log = os.open(beside / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    while not (beside / "go").exists():
        time.sleep(0.0005)
    for _ in range(3):
        time.sleep(0.004 * chance.random())
        try:
            with locked(folder):
                try:
                    os.close(os.open(beside / "inside", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    os.write(log, b"D")
                    continue
                os.write(log, b"E")
                time.sleep(0.003 * chance.random())
                os.unlink(beside / "inside")
        except InputError:
            os.write(log, b"R")
        except BaseException:
            os.write(log, b"X")


def die_inside(folder):
    with locked(folder):
        os.kill(os.getpid(), signal.SIGKILL)


BEFORE = {  # what a round finds in the folder
    "nothing": lambda folder: None,
    "the number of a living process": lambda folder: write_lock(folder, os.getpid()),
    "the number of a container's second process": lambda folder: write_lock(folder, 2),
    "what a killed process left": lambda folder: os.waitpid(child(lambda: die_inside(folder)), 0),
}


def write_lock(folder, number):
    """As version 0.1 did, which believed in numbers."""
    folder.mkdir()
    (folder / LOCK).write_text(f"{number} 0\n")


def crowded(beside, folder, at):
    """Four processes that want in at the same moment; what happened to them."""
    numbers = [child(lambda n=n: visit(folder, beside, 4 * at + n)) for n in range(4)]
    (beside / "go").touch()
    for number in numbers:
        os.waitpid(number, 0)
    return Counter((beside / "log").read_text())


@pytest.mark.parametrize("before", BEFORE)
def test_of_four_processes_at_the_door_one_at_a_time_is_inside(tmp_path, before, times):
    rounds, counts = 5 * times, Counter()
    for at in range(rounds):
        beside = tmp_path / str(at)
        beside.mkdir()
        BEFORE[before](beside / "run")
        found = crowded(beside, beside / "run", at)
        assert found["E"], at
        counts += found
    print(f"locks, {before}: {rounds} rounds, entered {counts['E']}, refused {counts['R']}, "
          f"two at once {counts['D']}, anything else {counts['X']}")  # fmt: skip
    assert not counts["D"]
    assert not counts["X"]
