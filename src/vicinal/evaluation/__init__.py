"""Are the numbers any good? Each metric takes numpy or torch and is the same, to the last bit, for
every order of its rows.

``calibration`` (does 0.8 mean eight in ten), ``scores`` (log loss, Brier), ``selection`` (what to
accept), ``outliers`` (what is foreign), ``retrieval`` (are the neighbors right), ``entanglement``
(how mixed the classes are, layer by layer), ``robustness`` (how much a corruption costs).
"""

from vicinal.evaluation.calibration import (
    Interval,
    bootstrap_interval,
    expected_calibration_error,
    noise_floor,
)
from vicinal.evaluation.entanglement import Entanglement, LayerEntanglement, entanglement
from vicinal.evaluation.intervals import clopper_pearson_interval, wilson_interval
from vicinal.evaluation.outliers import (
    OutlierDetection,
    aupr,
    auroc,
    fpr_at_tpr,
    outlier_report,
    outlier_scores,
)
from vicinal.evaluation.reliability_bins import (
    MaximumGap,
    ReliabilityBins,
    maximum_calibration_error,
    reliability,
)
from vicinal.evaluation.retrieval import (
    RetrievalReport,
    map_at_r,
    mean_reciprocal_rank,
    r_precision,
    recall_at_k,
    retrieval_report,
)
from vicinal.evaluation.robustness import corruption_errors, mean_corruption_error
from vicinal.evaluation.scores import LogLoss, brier_score, negative_log_likelihood
from vicinal.evaluation.selection import (
    ClassTable,
    RiskCoverage,
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    class_table,
    risk_coverage,
)
from vicinal.evaluation.threshold import (
    AcceptanceThreshold,
    ChosenTarget,
    reachable_target,
    threshold_for_accuracy,
)

__all__ = ["AcceptanceThreshold", "ChosenTarget", "ClassTable", "Entanglement", "Interval"]
__all__ += [
    "LayerEntanglement",
    "LogLoss",
    "MaximumGap",
    "OutlierDetection",
    "ReliabilityBins",
    "RetrievalReport",
]
__all__ += ["RiskCoverage", "area_under_generalized_risk_coverage", "area_under_risk_coverage"]
__all__ += ["aupr", "auroc", "bootstrap_interval", "brier_score", "class_table"]
__all__ += ["clopper_pearson_interval", "corruption_errors", "entanglement"]
__all__ += ["expected_calibration_error", "fpr_at_tpr", "map_at_r", "maximum_calibration_error"]
__all__ += ["mean_corruption_error", "mean_reciprocal_rank", "negative_log_likelihood"]
__all__ += ["noise_floor", "outlier_report", "outlier_scores", "r_precision"]
__all__ += [
    "reachable_target",
    "recall_at_k",
    "reliability",
    "retrieval_report",
    "risk_coverage",
    "threshold_for_accuracy",
]
__all__ += ["wilson_interval"]
