"""What one process of a gloo group does: a DDP step of each loss, its results to a file."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vicinal import losses
from vicinal.checks import InputError

SHARDS = {2: [5, 3], 3: [4, 0, 5]}  # uneven; the middle one of three has no rows at all


def learned():
    return nn.Parameter(torch.tensor(0.5, dtype=torch.float64))


def modules():
    """Every loss and mode of the test, built anew: their own parameters start equal."""
    snnl = losses.SoftNearestNeighborLoss
    return {
        "snnl gather": (snnl(), "gather"),
        "snnl ring": (snnl(), "ring"),
        "snnl max learned ring": (snnl(learn_temperature=True, entangle="max"), "ring"),
        "supcon gather": (losses.SupervisedContrastiveLoss(), "gather"),
        "supcon ring": (losses.SupervisedContrastiveLoss(temperature=learned()), "ring"),
        "supcon euclidean ring": (losses.SupervisedContrastiveLoss(metric="euclidean"), "ring"),
        "nt-xent ring": (losses.NTXentLoss(temperature=learned(), metric="sqeuclidean"), "ring"),
        "nt-xent sum ring": (losses.NTXentLoss(reduction="sum"), "ring"),
        "triplet gather": (losses.TripletLoss(), "gather"),
        "info_nce gather": (losses.InfoNCELoss(noise="batch"), "gather"),
        "memory gather": (remembering(losses.NTXentLoss(temperature=learned())), "gather"),
        "snnl memory gather": (remembering(snnl()), "gather"),
        "circle gather": (losses.CircleLoss(gamma=8.0), "gather"),
        "arcface gather": (losses.ArcFaceLoss(3, 3, generator=seeded()).double(), "gather"),
    }


def seeded():
    return torch.Generator().manual_seed(3)


def remembering(loss):
    """With a memory of an earlier batch, so full that this one pushes its oldest rows out."""
    bank = losses.MemoryBank(3, 12).double()
    bank.add(torch.randn(10, 3, generator=seeded(), dtype=torch.float64), torch.arange(10) % 3)
    return losses.CrossBatchLoss(loss, bank)


def batch():
    rng = torch.Generator().manual_seed(7)
    return torch.randn(9, 6, generator=rng, dtype=torch.float64), torch.arange(9) % 3


def model():
    rng = torch.Generator().manual_seed(1)
    net = nn.Linear(6, 3).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return net


def targets(name, labels):
    """Soft labels for one of them; MixedTargets for another."""
    if name == "supcon gather":
        return losses.smooth_labels(labels, 3, 0.3).double()
    if name == "info_nce gather":
        lam = torch.linspace(0, 1, len(labels), dtype=torch.float64)
        return losses.MixedTargets(labels, labels.flip(0), lam, 0.1, 3)
    return labels


def cut(t, rows):
    if isinstance(t, losses.MixedTargets):
        return losses.MixedTargets(t.a[rows], t.b[rows], t.lam[rows], t.epsilon, t.num_classes)
    return t[rows]


def step(net, loss, name, rows, temperature_of):
    x, labels = batch()
    total = loss(net(x[rows]), cut(targets(name, labels), rows))
    total.backward()
    own = [p.grad for p in temperature_of.parameters()]
    if isinstance(temperature_of, losses.CrossBatchLoss):
        temperature_of = temperature_of.loss
    learned = getattr(temperature_of, "temperature", None)
    own += [learned.grad] if isinstance(learned, nn.Parameter) and not own else []
    return total.detach(), own


def penalty(loss, rows):
    """The gradient of a gradient penalty in the whole batch's rows, of which ``rows`` are ours."""
    x, labels = batch()
    own = x[rows].clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(own, labels[rows]), own, create_graph=True)
    return torch.autograd.grad(grad.square().sum(), own)[0]


def main(rank, world, folder):
    torch.set_num_threads(1)
    store = Path(folder, "store").as_uri()
    dist.init_process_group("gloo", store, rank=rank, world_size=world)
    sizes = SHARDS[world]
    rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    out = {}
    for name, (loss, mode) in modules().items():
        net = DistributedDataParallel(model())
        value, own = step(net, losses.DistributedLoss(loss, mode=mode), name, rows, loss)
        out[f"{name}/value"] = value
        out[f"{name}/weight"] = net.module.weight.grad.clone()
        for grad in own:
            dist.all_reduce(grad)
            out[f"{name}/temperature"] = grad / world  # as DDP would average it
    out["penalty"] = penalty(losses.DistributedLoss(losses.NTXentLoss()), rows)
    x, labels = batch()
    for mode in ("gather", "ring"):
        wrong = labels[rows][1:] if rank == 0 else labels[rows]
        try:
            losses.DistributedLoss(losses.NTXentLoss(), mode=mode)(x[rows], wrong)
        except InputError as error:
            out[f"{mode} refused"] = torch.tensor("process 0: `labels`" in str(error))
    save_file(out, Path(folder, f"rank{rank}.safetensors"))
    dist.destroy_process_group()
