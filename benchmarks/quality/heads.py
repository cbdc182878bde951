"""Which head has the best answers on fresh rows? Ours, and what people use instead.

An audit sees support and tuning rows and recommends a head; the head it saves is then asked about
rows nobody has seen. So are its rivals, fitted on the same support and tuned on the same rows: NED
with the space and everything else fitted, eq. 3's NED, kNN (raw, calibrated by netcal's temperature
and by scikit-learn's sigmoid), logistic regression with the penalty that the tuning rows prefer
(raw and temperature-scaled), an RBF-SVC with sigmoids. The tuning rows also choose for each rival
between rows over one common scale and standardized columns. Measured are NLL, accuracy and ECE over
its noise floor; where a true class has probability 0, 1e-12 takes its place in the NLL and the rows
are counted.

Every answer of a family of heads to one split is kept in ``--work``: a run that is stopped goes on.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from netcal.scaling import TemperatureScaling as NetcalTemperature
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from benchmarks.quality.sets import Split, sets, split_of
from benchmarks.runner import save
from vicinal.audits.facts import Facts, gather
from vicinal.audits.inputs import ready_sets
from vicinal.audits.settings import About, AuditSettings, Job
from vicinal.confidence import NEDClassifier, TemperatureScaling
from vicinal.evaluation import expected_calibration_error, noise_floor

LEAST = 1e-12
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
VOTERS = (1, 3, 5, 10, 20, 50)
SMALL, SMALL_TIMES = 600, 3  # sets of so few rows are cheap and differ much: more splits of them


def recommended(split: Split) -> dict[str, Any]:
    """The head that an audit of support and tuning rows recommends and saves."""
    return {"recommended": audited(split).kept.predict_proba(split.fresh[0])}


def audited(split: Split) -> Facts:
    """What an audit rests on, without its other sections; asked twice of the same split."""
    if not _last or _last[0] is not split:
        settings, about = AuditSettings(), About()
        sets = ready_sets(split.support, split.tune, None, settings, about, None)
        _last[:] = [split, gather(sets, None, None, Job(settings, about))]
    return cast(Facts, _last[1])


_last: list[Any] = []


def ned(split: Split) -> dict[str, Any]:
    """Leave-one-out: in the space that was chosen with everything else fitted, and eq. 3 on raw."""
    facts, k = audited(split), min(100, len(split.support[0]) - 1)
    fitted = NEDClassifier(facts.graph.k, sharpness="fit", background="fit", bandwidth="class")
    fitted.fit_support(facts.support)
    plain = NEDClassifier(k).fit(*split.support)
    return {
        "NED, everything fitted": fitted.predict_proba(torch.from_numpy(split.fresh[0])).numpy(),
        "NED (eq. 3)": plain.predict_proba(split.fresh[0]),
    }


def raw(split: Split) -> dict[str, Any]:
    """The same on the rows as they came: what the fitted space has to beat."""
    k, everything = min(100, len(split.support[0]) - 1), {"sharpness": "fit", "background": "fit"}
    fitted = NEDClassifier(k, bandwidth="class", **everything).fit(*split.support)
    return {"NED, fitted, raw rows": fitted.predict_proba(split.fresh[0])}


def knn(split: Split) -> dict[str, Any]:
    """k, and the scaling, by accuracy on the tuning rows."""
    tried = [(KNeighborsClassifier(k).fit(*part.support), part)
             for part in scalings(split) for k in VOTERS]  # fmt: skip
    best, split = max(tried, key=lambda pair: pair[0].score(*pair[1].tune))
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
    """Penalty and scaling by the loss of the tuning rows."""
    losses, fits, codes = [], [], np.searchsorted(np.unique(split.support[1]), split.tune[1])
    for part in scalings(split):
        model = LogisticRegression(max_iter=200, tol=1e-3, warm_start=True)
        for penalty in PENALTIES:
            model.set_params(C=penalty).fit(*part.support)
            found = model.predict_proba(part.tune[0])
            losses.append(log_loss(split.tune[1], found, labels=model.classes_))
            scores = [_columns(model.decision_function(x)) for x in (part.tune[0], part.fresh[0])]
            fits.append((scores, model.predict_proba(part.fresh[0])))
    (tuned, scores), raw = fits[int(np.argmin(losses))]
    temperature = TemperatureScaling().fit(tuned, codes).temperature_
    return {
        "logistic": raw,
        "logistic + temperature": softmax(scores / temperature, axis=1),
    }


def svc(split: Split) -> dict[str, Any]:
    """The scaling by accuracy on the tuning rows."""
    tried = [(SVC().fit(*part.support), part) for part in scalings(split)]
    best, split = max(tried, key=lambda pair: pair[0].score(*pair[1].tune))
    return {"RBF-SVC + sigmoid": _sigmoid(best, split)}


def scalings(split: Split) -> Iterator[Split]:
    """Centered rows over one common scale, and standardized columns: what people do first."""
    x = split.support[0]
    column = x.std(0)
    for scale in (float(x.std()) or 1.0, np.where(column > 0, column, 1.0)):
        yield Split(*(((rows - x.mean(0)) / scale, labels) for rows, labels in split))


FAMILIES: dict[str, Callable[[Split], dict[str, Any]]] = {
    family.__name__: family for family in (recommended, ned, raw, knn, logistic, svc)
}


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


def main(
    quick: bool = False,
    data: Path | None = None,
    splits: int = 5,
    work: Path | None = None,
    families: tuple[str, ...] = (),
) -> None:
    """Every set, every split, every head; the JSON is written from what ``work`` holds."""
    results: dict[str, dict[str, object]] = {}
    for name, x, y in sets(data):
        table: dict[str, list[dict[str, float]]] = {}
        seconds: dict[str, float] = {}
        for seed in range(1 if quick else splits * (SMALL_TIMES if len(y) < SMALL else 1)):
            split = split_of(x, y, seed, quick)
            for family in FAMILIES:
                kept = None if work is None else work / f"{name}, {seed}, {family}.json"
                if kept is not None and kept.exists():
                    found = json.loads(kept.read_text())
                elif not families or family in families:
                    found = answered(family, split)
                    if kept is not None:
                        kept.write_text(json.dumps(found, default=float))
                else:
                    continue
                seconds[family] = seconds.get(family, 0) + found.pop("seconds")
                for head, numbers in found.items():
                    table.setdefault(head, []).append(numbers)
        if "recommended" not in table:
            continue  # not asked yet
        classes = len(np.unique(split.support[1]))
        shape = {"support": len(split.support[0]), "dims": x.shape[1], "classes": classes}
        results[name] = {"shape": shape, "seconds": seconds, "heads": table}
        _print(name, table)
        if not quick:
            save("quality_heads", results, splits=splits)


def answered(family: str, split: Split) -> dict[str, Any]:
    """What the heads of a family are worth on the fresh rows, and the CPU seconds of asking."""
    start, classes = time.process_time(), np.unique(split.support[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = FAMILIES[family](split)
        except ValueError as error:  # a rival that cannot take this set
            print(f"{family} failed: {error}")
            found = {}
    numbers = {head: measured(p, split.fresh[1], classes) for head, p in found.items()}
    return {**numbers, "seconds": time.process_time() - start}


def _print(name: str, table: dict[str, list[Any]]) -> None:
    print(f"\n{name}\n{'':<28}{'NLL':>16}{'accuracy %':>12}{'ECE / floor':>13}")
    for head, rows in table.items():
        nll = np.array([row["nll"] for row in rows])
        se = nll.std(ddof=1) / len(nll) ** 0.5 if len(nll) > 1 else float("nan")
        ratio = np.mean([row["ece"] / max(row["floor"], 1e-3) for row in rows])
        accuracy = 100 * np.mean([row["accuracy"] for row in rows])
        print(f"{head:<28}{nll.mean():>8.3f} ± {se:.3f}{accuracy:>12.1f}{ratio:>13.2f}", flush=True)


def _sigmoid(model: Any, split: Split) -> Any:
    """Of the tuning rows; a support row stands in for a class they lack: it could not be fitted."""
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid")
    first = np.unique(split.support[1], return_index=True)[1]
    lacking = first[~np.isin(split.support[1][first], split.tune[1])]
    x, y = (np.concatenate([a, b[lacking]]) for a, b in zip(split.tune, split.support, strict=True))
    return calibrated.fit(x, y).predict_proba(split.fresh[0])


def _columns(margins: Any) -> Any:
    return margins if margins.ndim == 2 else np.stack([-margins / 2, margins / 2], 1)
