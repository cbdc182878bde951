"""Groups in which one process is wrong, dies or hangs: the others say so, and which."""

import json
import multiprocessing

import pytest

from losses import fault_worker as worker


def group(folder, world, case):
    """What each process that came to an end had to say; those that hang are ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["losses.fault_worker"])
    running = [
        context.Process(target=worker.main, args=(rank, world, str(folder), case))
        for rank in range(world)
    ]
    for process in running:
        process.start()
    for rank, process in enumerate(running):
        if rank != worker.BAD or case[0] == "wrong":
            process.join(timeout=120)
    running[worker.BAD].kill()
    running[worker.BAD].join()
    files = {rank: folder / f"rank{rank}.json" for rank in range(world)}
    return {r: json.loads(file.read_text()) for r, file in files.items() if file.exists()}


@pytest.mark.parametrize("mode", ["gather", "ring"])
def test_a_wrong_input_on_one_process_is_the_same_sentence_on_all(tmp_path, mode):
    said = group(tmp_path, 2, ("wrong", mode))
    assert said[0] == said[1]  # the loss after all of them too: nobody waits for anybody
    for name in (*worker.WRONG, "modes"):
        assert said[0][name].startswith("InputError: "), name
        if mode == "ring" or name != "labels of no sum":  # which the whole batch is refused for
            assert "process 1" in said[0][name], name


@pytest.mark.parametrize(
    ("how", "mode", "world"),
    [
        ("before: dies", "gather", 2),
        ("before: hangs", "gather", 3),
        ("before: hangs", "ring", 2),
        ("ring: dies", "ring", 3),
        ("ring: hangs", "ring", 3),
        ("backward: dies", "gather", 3),
    ],
)
def test_a_process_that_is_gone_ends_the_others_by_name(tmp_path, how, mode, world):
    said = group(tmp_path, world, ("gone", how, mode))
    assert set(said) == set(range(world)) - {worker.BAD}
    for each in said.values():
        assert each["said"].startswith("process 1 does not answer (while "), each
        if how.startswith("ring"):
            assert "around the ring, step 1" in each["said"]
        print(f"survivor, {how}, {mode}, {world} processes: {each['seconds']:.1f} s")


@pytest.mark.parametrize("call", ["gram", "neighbors"])
def test_a_kernel_over_processes_names_the_one_that_died(tmp_path, call):
    said = group(tmp_path, 2, ("kernel", call))
    assert "process 1 does not answer (while reading the shards" in said[0]["said"]
    print(f"survivor, dies, {call}: {said[0]['seconds']:.1f} s")
