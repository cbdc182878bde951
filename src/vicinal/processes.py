"""How processes of ``torch.distributed`` agree, and what is said when one of them is gone.

What every process is about to do is told to all of them first (:func:`facts_of_all`), so that a
wrong input on one is the same :class:`~vicinal.checks.InputError` on all, and none waits for
another. Each exchange after it is watched: a process that dies closes its line, one that hangs runs
out of the group's time, and who notices first sounds an alarm in the group's store. The others look
there while they wait; all call the roll, and whoever does not answer is named.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vicinal.checks import InputError

HEAD = 1024  # bytes of the first message: nearly always the only one
PULSE = 0.25  # seconds between looks at the alarm while waiting
ROLL = 1.0  # seconds that a living process may take to answer the roll


class ProcessLost(RuntimeError):
    """A process died or hangs. The message names it and what was being done."""


def several(group: Any) -> bool:
    """Is there a group of more than one process?"""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def facts_of_all(
    look: Callable[[], dict[str, Any]], group: Any, device: torch.device, step: str
) -> list[dict[str, Any]]:
    """What ``look()`` says on every process, in the order of ranks; as JSON, never pickled.

    If it raises on one process, all of them raise its sentence.
    """
    try:
        mine: dict[str, Any] = {"said": look()}
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        mine = {"wrong": f"{kind}{error}"}
    everyone = [json.loads(text) for text in _texts(json.dumps(mine).encode(), group, device, step)]
    wrong = [(rank, each["wrong"]) for rank, each in enumerate(everyone) if "wrong" in each]
    if wrong:
        rank, sentence = wrong[0]
        rest = f" ({len(wrong)} such processes)" if len(wrong) > 1 else ""
        raise InputError(f"process {rank}{rest}: {sentence}")
    return [each["said"] for each in everyone]


def check_alike(facts: list[dict[str, Any]], key: str, what: str, fix: str) -> None:
    """The fact is the same on every process that has it; all of them say so or none does.

    >>> check_alike([{"dims": 3}, {"dims": None}, {"dims": 3}], "dims", "the dims", "")
    """
    known = [(rank, each[key]) for rank, each in enumerate(facts) if each[key] is not None]
    for rank, value in known:
        first, expected = known[0]
        if value != expected:
            raise InputError(
                f"{what} must be the same on every process: {expected} on process {first}, "
                f"{value} on process {rank}. {fix}"
            )


def _texts(raw: bytes, group: Any, device: torch.device, step: str) -> list[bytes]:
    """Everyone's bytes: a head of fixed length, and the rest where one is longer than it."""
    inside = HEAD - 8
    head = len(raw).to_bytes(8, "little") + raw[:inside]
    heads = [bytes(t.tolist()) for t in all_gathered(_padded(head, HEAD, device), group, step)]
    lengths = [int.from_bytes(text[:8], "little") for text in heads]
    longest = max(lengths) - inside
    rests = [b""] * len(heads)
    if longest > 0:
        more = all_gathered(_padded(raw[inside:], longest, device), group, step)
        rests = [bytes(t.tolist()) for t in more]
    whole = (text[8:] + rest for text, rest in zip(heads, rests, strict=True))
    return [text[:length] for text, length in zip(whole, lengths, strict=True)]


def _padded(raw: bytes, length: int, device: torch.device) -> Tensor:
    return torch.tensor(list(raw.ljust(length, b"\0")), dtype=torch.uint8, device=device)


# ------------------------------------------------------------------ exchanges


def all_gathered(tensor: Tensor, group: Any, step: str) -> list[Tensor]:
    """The tensor of every process, of one shape, in the order of ranks."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    _exchange(lambda: dist.all_gather(parts, tensor, group=group, async_op=True), group, step)
    return parts


def all_added(tensor: Tensor, group: Any, step: str) -> Tensor:
    """The sum over all processes, in place."""
    _exchange(lambda: dist.all_reduce(tensor, group=group, async_op=True), group, step)
    return tensor


def passed_on(tensor: Tensor, rows: int, group: Any, step: str) -> Tensor:
    """To the next process what this one holds; from the previous one ``rows`` rows of that kind."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    incoming = tensor.new_empty(rows, *tensor.shape[1:])
    width = tensor[:1].numel() if len(tensor) else incoming[:1].numel()
    sent, received = [0] * world, [0] * world
    sent[(rank + 1) % world], received[(rank - 1) % world] = len(tensor) * width, rows * width
    flat, into = tensor.contiguous().view(-1), incoming.view(-1)

    def start() -> Any:
        # Not isend and irecv: those waits can neither look up nor end before their time.
        return dist.all_to_all_single(into, flat, received, sent, group=group, async_op=True)

    _exchange(start, group, step)
    return incoming


def _exchange(start: Callable[[], Any], group: Any, step: str) -> None:
    """Begin an exchange and wait for its end, the group's timeout or an alarm."""
    try:
        work = start()
        if dist.get_backend(group) != "gloo":  # NCCL watches over itself
            work.wait()
            return
        began, limit = time.monotonic(), _patience(group)
        while True:
            try:
                work.wait(datetime.timedelta(seconds=PULSE))
                return
            except RuntimeError:
                if work.is_completed():  # just after this look: well, or with an error of its own
                    work.wait()
                    return
                if time.monotonic() - began > limit or _store(group).check(["alarm"]):
                    raise
    except RuntimeError as error:
        raise _lost(group, step, error) from None


def _patience(group: Any) -> float:
    """Seconds to wait, so that the roll is called within the group's timeout."""
    backend = _whole(group)._get_backend(torch.device("cpu"))
    timeout = backend.options._timeout.total_seconds()
    return max(timeout - ROLL - 2 * PULSE, timeout / 2)


# ------------------------------------------------------------------ the roll


def _lost(group: Any, step: str, error: RuntimeError) -> ProcessLost:
    """Sound the alarm, call the roll, and name who does not answer."""
    fix = "Look at the output of that process; then start all of them again."
    try:
        missing = _silent(group, step)
    except RuntimeError:  # the store was kept by a process that is gone
        return ProcessLost(
            f"process 0 or the store of the group is gone (while {step}): it died. {fix}"
        )
    if not missing:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        return ProcessLost(f"the processes lost one another while {step}: {said}")
    names = ", ".join(str(r if group is None else dist.get_global_rank(group, r)) for r in missing)
    who = f"process {names} does" if len(missing) == 1 else f"processes {names} do"
    return ProcessLost(f"{who} not answer (while {step}): died, failed or hangs. {fix}")


def _silent(group: Any, step: str) -> list[int]:
    """Ranks that do not answer in time."""
    store, world = _store(group), dist.get_world_size(group)
    store.set(str(dist.get_rank(group)), step)
    store.set("alarm", step)
    end = time.monotonic() + ROLL
    while True:
        missing = [rank for rank in range(world) if not store.check([str(rank)])]
        if not missing or time.monotonic() > end:
            return missing
        time.sleep(PULSE / 5)


def _store(group: Any) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

    return PrefixStore("vicinal", _get_process_group_store(_whole(group)))


def _whole(group: Any) -> Any:
    return dist.group.WORLD if group is None else group
