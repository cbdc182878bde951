"""A plain PyTorch loop: mixed targets for InfoNCE, hidden layers entangled by their neighbors.

    python examples/plain_loop.py

``log`` is any callable of a dictionary and a step: ``wandb.log``, ``mlflow.log_metrics``, or for
TensorBoard ``lambda values, step: [writer.add_scalar(k, v, step) for k, v in values.items()]``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vicinal.losses import (
    ClassBalancedBatchSampler,
    EntanglementCallback,
    InfoNCELoss,
    LayerwiseLoss,
    SoftNearestNeighborLoss,
    mixup,
)


def main(epochs: int = 15) -> float:
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train, test = slice(0, 1400), slice(1400, None)

    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    classify = InfoNCELoss(noise="batch")
    entangle = LayerwiseLoss(
        SoftNearestNeighborLoss(temperature=20.0), layers={"1": -0.01, "3": -0.01}
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    # every batch: 10 classes with 10 samples each, so that every anchor has peers
    sampler = ClassBalancedBatchSampler(y[train], 10, 10, generator=rng)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_sampler=sampler)
    watch = EntanglementCallback((x[train][:300], y[train][:300]), ["1", "3"], log=print, every=5)
    for epoch in range(epochs):
        for rows, labels in loader:
            blended, targets = mixup(rows, labels, 0.2, rng, num_classes=10, epsilon=0.1)
            loss = classify(model(blended), targets)
            with entangle.watch(model) as activations:
                model(rows)
            loss = loss + entangle(activations, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        watch(model, epoch)

    accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    print(f"accuracy on {len(y[test])} held-out digits: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
