"""Are the numbers any good? Each metric takes numpy or torch and is the same, to the last bit, for
every order of its rows.

``calibration`` (does 0.8 mean eight in ten), ``scores`` (log loss, Brier), ``selection`` (what to
accept), ``outliers`` (what is foreign), ``retrieval`` (are the neighbors right), ``entanglement``
(how mixed the classes are, layer by layer).
"""

from vicinal.evaluation.calibration import (
    Interval,
    MaximumGap,
    ReliabilityBins,
    bootstrap_interval,
    expected_calibration_error,
    maximum_calibration_error,
    noise_floor,
    reliability,
)
from vicinal.evaluation.intervals import clopper_pearson_interval, wilson_interval
from vicinal.evaluation.scores import LogLoss, brier_score, negative_log_likelihood

__all__ = [
    "Interval",
    "LogLoss",
    "MaximumGap",
    "ReliabilityBins",
    "bootstrap_interval",
    "brier_score",
    "clopper_pearson_interval",
    "expected_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "noise_floor",
    "reliability",
    "wilson_interval",
]
