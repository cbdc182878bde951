"""Which head has the best answers on fresh rows? Ours, and what people use instead.

An audit sees support and tuning rows and recommends a head; the head it saves is then asked about
rows nobody has seen. So are its rivals, fitted on the same support and tuned on the same rows: NED
with the space and everything else fitted, eq. 3's NED, kNN (raw, calibrated by netcal's temperature
and by scikit-learn's sigmoid), logistic regression with the penalty that the tuning rows prefer
(raw and temperature-scaled), an RBF-SVC with sigmoids. Measured are NLL, accuracy and ECE over its
noise floor; where a true class has probability 0, 1e-12 takes its place in the NLL and the rows are
counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from netcal.scaling import TemperatureScaling as NetcalTemperature
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import vicinal
from benchmarks.quality.sets import Split, sets, split_of
from benchmarks.runner import save
from vicinal.confidence import NEDClassifier, TemperatureScaling
from vicinal.evaluation import expected_calibration_error, noise_floor

LEAST = 1e-12
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
VOTERS = (1, 3, 5, 10, 20, 50)


def recommended(split: Split) -> dict[str, Any]:
    head = vicinal.audit(support=split.support, query=split.tune).head
    return {"recommended": head.predict_proba(split.fresh[0])}


def ned(split: Split) -> dict[str, Any]:
    k = min(100, len(split.support[0]) - 1)
    options = {"sharpness": "fit", "background": "fit", "bandwidth": "class", "space": "fit"}
    fitted = NEDClassifier(k, **options).fit(*split.support)
    plain = NEDClassifier(k).fit(*split.support)
    return {
        "NED, everything fitted": fitted.predict_proba(split.fresh[0]),
        "NED (eq. 3)": plain.predict_proba(split.fresh[0]),
    }


def knn(split: Split) -> dict[str, Any]:
    """k by accuracy on the tuning rows."""
    models = [KNeighborsClassifier(k).fit(*split.support) for k in VOTERS]
    best = max(models, key=lambda model: model.score(*split.tune))
    raw, tuned = best.predict_proba(split.fresh[0]), best.predict_proba(split.tune[0])
    scaling = NetcalTemperature()
    scaling.fit(np.clip(tuned, LEAST, 1), np.searchsorted(best.classes_, split.tune[1]))
    scaled = scaling.transform(np.clip(raw, LEAST, 1))
    both = scaled if np.ndim(scaled) == 2 else np.stack([1 - scaled, scaled], 1)
    return {
        "kNN, best k": raw,
        "kNN + netcal temperature": both,
        "kNN + sigmoid": _sigmoid(best, split),
    }


def logistic(split: Split) -> dict[str, Any]:
    mean, scale = split.support[0].mean(0), float(split.support[0].std()) or 1.0
    support, tune, fresh = ((part[0] - mean) / scale for part in split)
    model = LogisticRegression(max_iter=200, tol=1e-3, warm_start=True)
    losses, fits = [], []
    for penalty in PENALTIES:
        model.set_params(C=penalty).fit(support, split.support[1])
        found = model.predict_proba(tune)
        losses.append(log_loss(split.tune[1], found, labels=model.classes_))
        scores = [_columns(model.decision_function(part)) for part in (tune, fresh)]
        fits.append((scores, model.predict_proba(fresh)))
    (tuned, scores), raw = fits[int(np.argmin(losses))]
    codes = np.searchsorted(model.classes_, split.tune[1])
    temperature = TemperatureScaling().fit(tuned, codes).temperature_
    return {
        "logistic": raw,
        "logistic + temperature": softmax(scores / temperature, axis=1),
    }


def svc(split: Split) -> dict[str, Any]:
    model = make_pipeline(StandardScaler(), SVC()).fit(*split.support)
    return {"RBF-SVC + sigmoid": _sigmoid(model, split)}


FAMILIES: tuple[Callable[[Split], dict[str, Any]], ...] = (recommended, ned, knn, logistic, svc)


def measured(p: Any, labels: Any, classes: Any) -> dict[str, float]:
    """NLL, accuracy, ECE and its floor, and rows whose true class had probability 0."""
    codes = np.searchsorted(classes, labels)
    own, top = p[np.arange(len(p)), codes], p.max(1).clip(0, 1)
    right = p.argmax(1) == codes
    return {
        "nll": float(-np.log(np.clip(own, LEAST, 1)).mean()),
        "accuracy": float(right.mean()),
        "ece": expected_calibration_error(top, right),
        "floor": noise_floor(top),
        "zero": int((own < LEAST).sum()),
    }


def main(quick: bool = False, data: Path | None = None, splits: int = 5) -> None:
    """Every set, every split, every head; the JSON is written after each set."""
    results: dict[str, dict[str, object]] = {}
    for name, x, y in sets(data):
        table: dict[str, list[dict[str, float] | str]] = {}
        seconds: dict[str, float] = {}
        for seed in range(1 if quick else splits):
            split = split_of(x, y, seed, quick)
            classes = np.unique(split.support[1])
            for family in FAMILIES:
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        found = family(split)
                    except ValueError as error:  # a rival that cannot take this set
                        print(f"{name}: {family.__name__} failed: {error}")
                        continue
                for head, p in found.items():
                    table.setdefault(head, []).append(measured(p, split.fresh[1], classes))
                spent = time.process_time() - start
                seconds[family.__name__] = seconds.get(family.__name__, 0) + spent
        shape = {"support": len(split.support[0]), "dims": x.shape[1], "classes": len(classes)}
        results[name] = {"shape": shape, "seconds": seconds, "heads": table}
        _print(name, table)
        if not quick:
            save("quality_heads", results, splits=splits)


def _print(name: str, table: dict[str, list[Any]]) -> None:
    print(f"\n{name}\n{'':<28}{'NLL':>16}{'accuracy %':>12}{'ECE / floor':>13}")
    for head, rows in table.items():
        nll = np.array([row["nll"] for row in rows])
        se = nll.std(ddof=1) / len(nll) ** 0.5 if len(nll) > 1 else float("nan")
        ratio = np.mean([row["ece"] / max(row["floor"], 1e-3) for row in rows])
        accuracy = 100 * np.mean([row["accuracy"] for row in rows])
        print(f"{head:<28}{nll.mean():>8.3f} ± {se:.3f}{accuracy:>12.1f}{ratio:>13.2f}", flush=True)


def _sigmoid(model: Any, split: Split) -> Any:
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid")
    return calibrated.fit(*split.tune).predict_proba(split.fresh[0])


def _columns(margins: Any) -> Any:
    return margins if margins.ndim == 2 else np.stack([-margins / 2, margins / 2], 1)
