r"""Neighbor counts and kernels of a data set spread over processes (``torch.distributed``).

Each process holds a shard of the data and the whole model, and gets the rows of its own samples:

* ``N_S(x) = ⟨u(x), Σ u⟩``: one all-reduce of the sums, whatever the size of the data;
* ``k^C``: blocks of *factors* travel around a ring; gradients are never sent.

Every process calls the function, with shards of any length (none at all included). Without an
initialized process group both are the kernel's own methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from safetensors.torch import load, save
from torch import Tensor

from vicinal.checks import InputError
from vicinal.processes import all_added, check_alike, facts_of_all, passed_on
from vicinal.similarity.block import Block
from vicinal.similarity.blocks import Blocks, count
from vicinal.similarity.density import class_totals, times_totals
from vicinal.similarity.kernel import GradientKernel
from vicinal.similarity.outputs import Contrast
from vicinal.similarity.store import packed, unpacked
from vicinal.similarity.whitening import InverseRoot


def distributed_neighbors(
    kernel: GradientKernel, data: Any, *, include_self: bool = True, group: Any = None
) -> Float[Tensor, " n"]:
    """N_S of this process's samples over the samples of all of them.

    Parameters
    ----------
    kernel
        The similarities of the model, the same in every process.
    data
        This process's samples; none at all is fine.
    include_self
        Whether a sample counts itself, as the paper's sums do.
    group
        The process group; None: all processes.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> distributed_neighbors(GradientKernel(model), torch.ones(3, 2))  # one process
    tensor([3.0000, 3.0000, 3.0000])
    """
    if not dist.is_initialized():
        return kernel.neighbors(data, include_self=include_self)
    _check_outputs(kernel)
    shard: Blocks | None = None
    own: dict[int, list[Tensor]] = {}

    def look() -> dict[str, Any]:
        nonlocal shard, own
        shard = kernel.blocks(data, "unit") if count(data, "data") else None
        own = {} if shard is None else class_totals(kernel, shard)
        shapes = [list(total.shape) for total in next(iter(own.values()), [])]
        said = {"call": "neighbors", "labels": list(own), "shapes": shapes or None}
        return {**said, "plan": _plan(kernel)}

    facts = _facts(look, kernel, group)
    sums = _all_added(own, facts, kernel, group)
    parts = [_empty(kernel)]
    for block in shard or ():
        found = times_totals(kernel, block, sums)
        parts.append(found if include_self else found - (block.whitening.rank > 0).to(found))
    return torch.cat([part.to(parts[-1].dtype) for part in parts])


def distributed_gram(
    kernel: GradientKernel, data: Any, *, group: Any = None
) -> Float[Tensor, "n m"]:
    """k^C of this process's samples with those of all processes, in the order of ranks.

    >>> model = torch.nn.Linear(2, 1)
    >>> distributed_gram(GradientKernel(model), torch.ones(2, 2)).shape  # one process
    torch.Size([2, 2])
    """
    if not dist.is_initialized():
        return kernel.gram(data)
    _check_outputs(kernel)
    shard: Blocks | None = None

    def look() -> dict[str, Any]:
        nonlocal shard
        rows = count(data, "data")
        shard = kernel.blocks(data, "unit") if rows else None
        said = {"call": "gram", "shapes": None, "rows": rows, "blocks": len(shard or ())}
        return {**said, "plan": _plan(kernel)}

    sizes = _facts(look, kernel, group)
    offsets = [sum(size["rows"] for size in sizes[:r]) for r in range(len(sizes) + 1)]
    _check_memory(kernel, max(size["rows"] for size in sizes), offsets[-1])
    found = _empty(kernel).new_empty(sizes[dist.get_rank(group)]["rows"], offsets[-1])
    for number in range(max(size["blocks"] for size in sizes)):
        mine = next(shard.since(number)) if shard and number < len(shard) else None
        for source, visiting in _around(mine, kernel, group):
            if visiting is None:
                continue
            first = offsets[source] + visiting.start
            for own in shard or ():
                tile = kernel.tile(own, visiting)
                found[own.start : own.stop, first : first + len(visiting)] = tile
    return found


# ------------------------------------------------------------------ sums


def _facts(look: Any, kernel: GradientKernel, group: Any) -> list[dict[str, Any]]:
    """What every process found in its shard; all have the same question and the same layers."""
    facts = facts_of_all(look, group, _empty(kernel).device, "reading the shards of a kernel")
    check_alike(facts, "call", "the function", "Every process calls the same one.")
    plans = [each["plan"] for each in facts if each["plan"] is not None]
    if any(plan != plans[0] for plan in plans):
        raise InputError(
            "processes see the model's layers used in different ways, as happens where a model "
            "routes its inputs. Compute this kernel in one process."
        )
    check_alike(facts, "shapes", "the layers of the model", "Load the same model everywhere.")
    return facts


def _all_added(
    sums: dict[int, list[Tensor]], facts: list[dict[str, Any]], kernel: GradientKernel, group: Any
) -> dict[int, list[Tensor]]:
    """The totals of every class over all processes; who has none of a class adds zeros."""
    empty = _empty(kernel)
    layout: list[list[int]] = next((f["shapes"] for f in facts if f["shapes"]), [])
    found: dict[int, list[Tensor]] = {}
    for label in sorted({label for f in facts for label in f["labels"]}):
        mine = sums[label] if label in sums else [empty.new_zeros(shape) for shape in layout]
        for total in mine:
            all_added(total, group, "adding up the gradients of a class")
        found[label] = mine
    return found


# ------------------------------------------------------------------ the ring


def _around(
    mine: Block | None, kernel: GradientKernel, group: Any
) -> Iterator[tuple[int, Block | None]]:
    """This process's block, then its left neighbor's, and so on around the ring."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    device = _empty(kernel).device
    raw = _as_bytes(mine).to(device)
    for step in range(world):
        yield (rank - step) % world, mine if step == 0 else _from_bytes(raw, device)
        if step < world - 1:
            raw = _passed_on(raw, group)


def _passed_on(raw: Tensor, group: Any) -> Tensor:
    """To the right neighbor; what the left one sent. First how long it is, then it."""
    step = "passing a block around the ring"
    length = torch.tensor([raw.numel()], device=raw.device)
    return passed_on(raw, int(passed_on(length, 1, group, step)), group, step)


def _as_bytes(block: Block | None) -> Tensor:
    """A block as bytes: what a tile needs of it, in the safetensors format."""
    if block is None:
        return torch.zeros(1, dtype=torch.uint8)
    tensors, layout = packed(block.factors)
    tensors["outputs"] = block.outputs
    header = json.dumps({"start": block.start, "layout": layout}).encode()
    tensors["header"] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for name, t in (("scale", block.scale), ("target", block.target)):
        if t is not None:
            tensors[name] = t
    raw = save({name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()})
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _from_bytes(raw: Tensor, device: torch.device) -> Block | None:
    if raw.numel() == 1:
        return None
    tensors = {k: t.to(device) for k, t in load(raw.cpu().numpy().tobytes()).items()}
    header = json.loads(bytes(tensors["header"].tolist()))
    factors = unpacked(tensors, header["layout"])
    outputs = tensors["outputs"]
    none = outputs.new_empty(0)  # tiles do not ask for it
    return Block(
        header["start"],
        factors,
        none,
        InverseRoot(none, none),
        outputs,
        tensors.get("target"),
        tensors.get("scale"),
    )


def _empty(kernel: GradientKernel) -> Tensor:
    """No rows, where and as wide as the gradients are."""
    p = next(iter(kernel.engine.selected.values())).detach()
    return p.new_empty(0, dtype=torch.promote_types(p.dtype, torch.float32))


def _plan(kernel: GradientKernel) -> list[list[str]] | None:
    """How each layer is treated; None where there were no samples to see it."""
    parts = kernel.engine.known.values()
    return [[*part.parameters, type(part.factor).__name__] for part in parts] or None


def _check_memory(kernel: GradientKernel, rows: int, samples: int) -> None:
    """Of the process with the most rows, so that all of them say it."""
    needed = rows * samples * _empty(kernel).element_size()
    if needed > kernel.memory_budget:
        raise InputError(
            f"{rows} rows of a Gram matrix of {samples} samples take {needed / 2**20:.0f} MiB, "
            f"more than memory_budget={kernel.memory_budget / 2**20:.0f} MiB. Use more processes, "
            "distributed_neighbors, or raise the budget."
        )


def _check_outputs(kernel: GradientKernel) -> None:
    if isinstance(kernel.outputs, Contrast) and kernel.outputs.kind == "sampled":
        raise InputError(
            "sampled adversaries are drawn by a sample's place in the data, which a shard does not "
            'know. Use outputs=Contrast("rest").'
        )
