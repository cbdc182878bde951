"""A skorch classifier: soft-target InfoNCE as the criterion of a scikit-learn estimator,
its hidden layer watched epoch by epoch.

    python examples/skorch_net.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import Tensor, nn

from vicinal.losses import EntanglementCallback, InfoNCELoss, smooth_labels


class SmoothedInfoNCE(nn.Module):
    """InfoNCE against labels smoothed by 0.1, as in its paper."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.loss = InfoNCELoss(noise="batch")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss(logits, smooth_labels(labels, self.num_classes, 0.1))


class Watched(Callback):
    """skorch's hook around the callback of vicinal."""

    def __init__(self, watch: EntanglementCallback) -> None:
        self.watch = watch

    def on_epoch_end(self, net: NeuralNetClassifier, **_: object) -> None:
        self.watch(net.module_, len(net.history) - 1)


def main(epochs: int = 12) -> float:
    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target.astype("int64")
    probe = torch.from_numpy(x[:300]), torch.from_numpy(y[:300])
    watch = EntanglementCallback(probe, ["1"], log=print, every=6)
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        criterion=SmoothedInfoNCE,
        predict_nonlinearity=lambda logits: logits.softmax(-1),
        optimizer=torch.optim.Adam,
        lr=5e-3,
        batch_size=128,
        max_epochs=epochs,
        train_split=None,
        verbose=0,
        callbacks=[Watched(watch)],
    )
    accuracy = float(cross_val_score(net, x, y, cv=3).mean())
    print(f"accuracy, 3-fold cross-validation: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
