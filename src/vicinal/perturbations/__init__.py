"""What if the input differed? Common corruptions and deliberate attacks, seeded, on tensors.

``corruptions`` (those of Hendrycks & Dietterich, by family in ``noise``, ``blur``, ``weather`` and
``digital``), ``attacks`` (FGSM, BIM, PGD, also through a neighbor head), ``apgd`` (its own step
sizes), ``square`` (no gradients), ``adversarial_training``, and ``adapters`` (foolbox, an extra).
"""

from vicinal.perturbations.adapters import foolbox_attack, to_foolbox
from vicinal.perturbations.adversarial_training import adversarial_loss, adversarial_step
from vicinal.perturbations.apgd import apgd
from vicinal.perturbations.attacks import ATTACKS, bim, fgsm, pgd
from vicinal.perturbations.corruptions import CONSTANTS, CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from vicinal.perturbations.square import square

__all__ = [
    "ATTACKS",
    "CONSTANTS",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "adversarial_loss",
    "adversarial_step",
    "apgd",
    "bim",
    "corrupt",
    "fgsm",
    "foolbox_attack",
    "pgd",
    "square",
    "to_foolbox",
]
