"""A LightningModule: a supervised contrastive embedding with a memory of earlier batches,
its layers pulled apart by the soft nearest neighbor loss and watched epoch by epoch.

    python examples/lightning_module.py

``DistributedLoss`` makes the same module exact over several processes (``Trainer(devices=...)``):
the loss is that of the whole batch. In a single process it is the loss itself.
"""

import logging
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vicinal.losses import (
    ClassBalancedBatchSampler,
    DistributedLoss,
    EntanglementCallback,
    LayerwiseLoss,
    MemoryBank,
    SoftNearestNeighborLoss,
    SupervisedContrastiveLoss,
)


class Embedding(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.contrast = SupervisedContrastiveLoss(temperature=0.2)
        self.loss = DistributedLoss(self.contrast)
        self.bank = MemoryBank(dim=16, size=512)  # saved and restored with the module
        snnl = SoftNearestNeighborLoss(temperature="optimal")
        self.apart = LayerwiseLoss(snnl, layers={"1": 0.1})

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        with self.apart.watch(self.net) as activations:
            z = self.net(x)
        loss = self.loss(z, y) + self.apart(activations, y)
        if len(self.bank):
            loss = loss + self.contrast(z, y, **self.bank.as_reference())
        self.bank.add(z, y)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)


def main(epochs: int = 4) -> float:
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train, test = slice(0, 1400), slice(1400, None)

    torch.manual_seed(0)
    sampler = ClassBalancedBatchSampler(
        y[train], 10, 10, generator=torch.Generator().manual_seed(0)
    )
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_sampler=sampler)
    model = Embedding()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of workers and log folders, which this needs none of
        watch = EntanglementCallback((x[train][:300], y[train][:300]), ["1", "2"], log=print)
        each_epoch = LambdaCallback(
            on_train_epoch_end=lambda trainer, module: watch(module.net, trainer.current_epoch)
        )
        trainer = lightning.Trainer(
            callbacks=[each_epoch],
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.fit(model, loader)

    with torch.no_grad():
        z = nn.functional.normalize(model.net(x), dim=1)
    nearest = (z[test] @ z[train].T).argmax(1)
    accuracy = (y[train][nearest] == y[test]).float().mean().item()
    print(f"nearest neighbor accuracy on {len(y[test])} held-out digits: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
