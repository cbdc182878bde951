"""A Hugging Face ``Trainer``: soft-target InfoNCE in place of its loss, its layers watched.

    python examples/hf_trainer.py

A small vision transformer learns the bundled digits from scratch, offline. It needs
``pip install transformers accelerate``.
"""

import tempfile
from typing import Any

import accelerate  # noqa: F401  # what the trainer runs on
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from vicinal.losses import EntanglementCallback, InfoNCELoss, smooth_labels


class Digits(Dataset[dict[str, Tensor]]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[row], "labels": self.y[row]}


class SoftTargetTrainer(Trainer):
    """The trainer as it is, but for its loss: InfoNCE against labels smoothed by 0.1."""

    criterion = InfoNCELoss(noise="batch")

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Any:
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = self.criterion(outputs.logits, smooth_labels(inputs["labels"], 10, 0.1))
        return (loss, outputs) if return_outputs else loss


class Watched(TrainerCallback):
    """The trainer's hook around the callback of vicinal."""

    def __init__(self, watch: EntanglementCallback) -> None:
        self.watch = watch

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.watch(given["model"], round(state.epoch))


def main(epochs: int = 15) -> float:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    train, test = slice(0, 1400), slice(1400, None)
    torch.manual_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_dropout_prob=0.0,
        )
    )  # fmt: skip
    probe = x[train][:300], y[train][:300]
    watch = EntanglementCallback(probe, ["vit.embeddings", "vit.layernorm"], log=print, every=5)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=100, learning_rate=3e-3,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, seed=0,
            use_cpu=True,
        )  # fmt: skip
        data = Digits(x[train], y[train])
        SoftTargetTrainer(model, settings, train_dataset=data, callbacks=[Watched(watch)]).train()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[test]).logits.argmax(1) == y[test]).float().mean().item()
    print(f"accuracy on {len(y[test])} held-out digits: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
