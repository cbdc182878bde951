"""The main job: how far may each prediction be trusted, which labels look wrong, who says so.

    report = audit(support=(Z, y), query=(Zq, yq))      # or audit(model, train, test)
    report.save("report.html"); report.head.save("trust.vic")

One exact search of the query and one leave-one-out graph of the support feed everything: the heads
and their calibration, credibility and familiarity, suspects and the effect of mending them, class
borders, hubs and duplicates. The result is a frozen :class:`Audit` of plain numbers.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import time
import warnings as python_warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vicinal import __version__
from vicinal.audits import cases as audit_cases
from vicinal.audits import data as audit_sets
from vicinal.audits import heads as audit_heads
from vicinal.audits.heads import Fold, Trial
from vicinal.audits.inputs import About, AuditSettings, Sets, folds_of, ready_sets, usable_k
from vicinal.audits.media import images_of
from vicinal.audits.model import ModelFacts, listen
from vicinal.audits.record import Audit, Data, Provenance, SupportRows
from vicinal.audits.suspects import contradictions, depth_agreement, label_audit
from vicinal.audits.watched_search import WatchedSearch
from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier
from vicinal.confidence.support import Evidence, joined_evidence
from vicinal.neighbors.kernels import exponential
from vicinal.neighbors.mass import log_mass, own_log_mass
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search.exact import make_search

Progress = Callable[[str, int, int | None], None]


def audit(
    model: nn.Module | None = None,
    train: Any = None,
    test: Any = None,
    *,
    support: Any = None,
    query: Any = None,
    calib: Any = None,
    logits: Any = None,
    settings: AuditSettings | None = None,
    about: About | None = None,
    work: str | Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Judge ``query`` by its neighbors in ``support``; or a model's test rows by its train rows.

    From arrays: ``support=(Z, y)``, ``query=(Zq, yq)`` or ``Zq`` alone, optional ``calib=(Zc, yc)``
    that sets temperature and thresholds, optional ``logits`` of a softmax head on the query. From
    a model: ``audit(model, train, test)`` with anything :func:`vicinal.capture.capture` takes;
    layers, entanglement and the network's own view come along.

    Without ``calib`` what is fitted is cross-fitted in two folds of the query; without a query it
    is leave-one-out on the support. With ``work``, finished blocks of the searches stay in that
    folder, and a stopped audit goes on there.

    Example:
        >>> y = np.arange(300) % 3
        >>> z = np.random.default_rng(0).normal(size=(300, 4)) + y[:, None]
        >>> report = audit(support=(z[:200], y[:200]), query=(z[200:], y[200:]))
        >>> sum(report.verdict_counts().values())
        100
    """
    start = time.perf_counter()
    settings, about = settings or AuditSettings(), about or About()
    facts: ModelFacts | None = None
    if model is not None:
        facts = listen(model, train, test, calib, settings, work, progress)
        support, query, calib = facts.support, facts.query, facts.calib
        logits = facts.logits if logits is None else logits
        if about.media is None and about.show_images:
            about = dataclasses.replace(about, media=images_of(train, test))
    with python_warnings.catch_warnings(record=True) as caught:
        python_warnings.simplefilter("always", UserWarning)
        sets = ready_sets(support, query, calib, settings, about)
        found = _audited(sets, logits, facts, settings, about, work, progress, start)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    said = [text for text in said if "Triggered internally" not in text]  # torch, of itself
    return _with_warnings(found, [*about.warnings, *sets.warnings, *found.warnings, *said])


def _audited(
    sets: Sets,
    logits: Any,
    facts: ModelFacts | None,
    settings: AuditSettings,
    about: About,
    work: str | Path | None,
    progress: Progress | None,
    start: float,
) -> Audit:
    k, count = usable_k(settings, sets), len(sets.classes)
    labels = sets.support.codes
    assert labels is not None
    folder = None if work is None else Path(work)
    search = WatchedSearch(make_search(settings.search, settings.metric), folder, progress)
    ned = NEDClassifier(k=k, prior=settings.prior, metric=settings.metric, search=search)
    ned.fit(sets.support.rows, sets.classes[labels.numpy()])
    graph = ned.support_.graph(k)
    loo = Neighborhood(graph.distances, graph.indices, labels[graph.indices])
    neighborhood = loo if sets.leave_one_out else _neighborhood(search, sets.query.rows, k, labels)
    calib_neighborhood = (
        None if sets.calib is None else _neighborhood(search, sets.calib.rows, k, labels)
    )
    folds, split, notes = folds_of(sets, neighborhood, loo, calib_neighborhood, settings)

    trials = _trials(sets, neighborhood, loo, folds, logits, settings)
    scores = None if sets.query.codes is None else sets.query.codes.numpy()
    scored = scores is not None and bool((scores >= -1).any())
    heads = []
    for trial in trials:
        target = scores if scored else None
        head, said = audit_heads.judged(trial, target, settings.target_accuracy, settings.force_ece)
        heads.append(head)
        notes += said
    notes += _small_set_note(scores, settings) if scored else []
    recommended = _best(heads)
    trusted = _trusted(heads, trials)
    final = _final_head(ned, trusted, sets, folds)
    judged = audit_cases.judge(neighborhood, trusted, folds, sets, settings, facts)
    weights = audit_cases.weights_of(neighborhood, trusted, folds)
    cases = audit_cases.cases_of(judged, neighborhood, weights, trusted, sets, facts, about)

    suspects = contradictions(loo, labels, count, final.parameters_)
    depth = None
    if facts is not None and facts.support_neighborhoods:
        depth = depth_agreement(facts.support_neighborhoods, labels, suspects.rows, count)
    ids = tuple(about.support_ids or map(str, range(len(labels))))
    shown = final.neighborhood_of(sets.query.rows)
    audit_of_labels = label_audit(suspects, loo, labels, ids, final, shown, sets.query.codes, depth)
    predicted = trusted.predicted.numpy()
    correct = None if scores is None else predicted == scores
    scale = float(neighborhood.distances[:, -1].double().mean())
    twins = audit_sets.duplicates(
        neighborhood.distances, neighborhood.indices, loo.distances, scale, correct
    )
    shift = None
    if sets.query.codes is not None and scored and not sets.leave_one_out:
        shift = audit_sets.prior_shift(labels, sets.query.codes, count, settings.seed)
    notes += audit_sets.sentences(twins, shift, len(sets.query.rows), sets.leave_one_out)
    named = _named_rows(cases, audit_of_labels, ids, labels)
    not_checked = _not_checked(sets, facts, logits)
    return Audit(
        name=about.name,
        classes=sets.names,
        data=Data(
            support=sets.support.facts(count),
            query=sets.query.facts(count),
            calib=None if sets.calib is None else sets.calib.facts(count),
            split=split,
            metric=settings.metric,
            k=k,
            temperature=_finite(final.temperature_),
            model=about.model or (facts.name if facts else None),
            model_fingerprint=facts.fingerprint if facts else None,
        ),
        heads=tuple(heads),
        recommended=recommended,
        cases=cases,
        support=named,
        labels=audit_of_labels,
        provenance=_provenance(settings, about, start),
        class_facts=audit_cases.class_facts(
            sets, trusted, audit_of_labels, _class_entanglement(loo, labels, final)
        ),
        risk_coverage=audit_heads.risk_coverage_of(trusted, scores, settings.target_accuracy)
        if scored and scores is not None
        else None,
        sweep=(
            audit_heads.sweep_over_k(neighborhood, scores, folds, count, sets.support.rows.shape[1])
            if scored and scores is not None
            else None
        ),
        credibility=audit_cases.credibility_of(judged, trusted, scores, k),
        borders=audit_sets.borders(
            loo.distances, loo.indices, labels, sets.names, final.temperature_
        ),
        layers=facts.layers if facts else None,
        network=facts.network if facts else None,
        map=audit_sets.map_of(
            sets.query.rows, sets.support.rows, labels, neighborhood.indices, settings.seed
        ),
        duplicates=twins,
        hubs=audit_sets.hubs(neighborhood.indices, weights, len(labels)),
        prior_shift=shift,
        agreement=_agreement(trials, trusted),
        warnings=tuple(notes),
        not_checked=not_checked,
        media=about.media,
        head=audit_cases.trust_head(final, _all_evidence(folds), judged.threshold, settings),
    )


def _neighborhood(search: WatchedSearch, rows: Tensor, k: int, labels: Tensor) -> Neighborhood:
    found = search.query(rows, k)
    return Neighborhood(found.distances, found.indices, labels[found.indices])


def _trials(
    sets: Sets,
    neighborhood: Neighborhood,
    loo: Neighborhood,
    folds: list[Fold],
    logits: Any,
    settings: AuditSettings,
) -> list[Trial]:
    """Every head on the same rows; the neighbor heads from the same neighbors."""
    count, dims = len(sets.classes), sets.support.rows.shape[1]
    labels = sets.support.codes
    assert labels is not None
    trials = []
    if logits is not None:
        trials += audit_heads.softmax_trials(_aligned_logits(logits, sets), sets.query.codes, folds)
    vote = audit_heads.best_vote_k(loo, labels, count)
    trials += audit_heads.vote_trials(neighborhood, vote, count, settings.metric)
    for name, title in (("ned", "NED"), ("ned_fitted", "NED, everything fitted")):
        trials.append(
            audit_heads.ned_trial(name, title, neighborhood, folds, count, dims, settings.prior)
        )
    if not sets.leave_one_out:
        linear = audit_heads.linear_trial(
            sets.support.rows, labels, sets.query.rows, count, settings.seed
        )
        trials += [linear] if linear is not None else []
    return trials


def _aligned_logits(logits: Any, sets: Sets) -> Tensor:
    """Columns in the order of the support's classes."""
    scores = torch.as_tensor(np.asarray(logits)).double()
    if scores.ndim != 2 or len(scores) != len(sets.query.rows):
        raise InputError(
            f"`logits` must have one row per query row: shape {tuple(scores.shape)} for "
            f"{len(sets.query.rows)} rows."
        )
    if scores.shape[1] == len(sets.classes):
        return scores
    if sets.classes.dtype.kind in "iu" and int(sets.classes.max()) < scores.shape[1]:
        return scores[:, torch.from_numpy(sets.classes.astype(np.int64))]
    raise InputError(
        f"`logits` have {scores.shape[1]} columns for {len(sets.classes)} classes of the support. "
        "Give one column per class, in sorted order of the labels."
    )


def _all_evidence(folds: list[Fold]) -> Evidence:
    """Every held-out row: both halves of the query, or the one set there is."""
    if len(folds) == 1:
        return folds[0].evidence
    return joined_evidence([fold.evidence for fold in folds])


def _class_entanglement(
    loo: Neighborhood, labels: Tensor, ned: NEDClassifier
) -> NDArray[np.float64] | None:
    """Mean -log of the own class's share of mass, by class: the soft nearest neighbor loss, k near.

    Rows without a neighbor of their own class have no finite term and are left out.
    """
    t = ned.temperature_
    if not (np.isfinite(t) and t > 0):
        return None
    logs = exponential(loo.distances.double(), t)
    terms = log_mass(logs) - own_log_mass(logs, loo.labels == labels[:, None])
    fine = torch.isfinite(terms)
    sums = torch.zeros(len(ned.classes_), dtype=torch.float64)
    sums.index_add_(0, labels[fine], terms[fine])
    counts = torch.bincount(labels[fine], minlength=len(ned.classes_))
    return (sums / counts.clamp_min(1)).numpy()


def _best(heads: list[Any]) -> str:
    """The lowest out-of-fold NLL, whoever's head it is; without labels, NED."""
    scored = [head for head in heads if head.nll is not None]
    return min(scored, key=lambda head: head.nll).name if scored else "ned"


def _trusted(heads: list[Any], trials: list[Trial]) -> Trial:
    """The better of the two NED forms: its neighbors are the evidence that is shown."""
    forms = {trial.name: trial for trial in trials if trial.name in audit_heads.RECIPES}
    losses = {head.name: head.nll for head in heads if head.name in forms and head.nll is not None}
    return forms[min(losses, key=lambda name: losses[name])] if losses else forms["ned"]


def _final_head(ned: NEDClassifier, trusted: Trial, sets: Sets, folds: list[Fold]) -> NEDClassifier:
    """The head to keep: fitted on all held-out rows there are, for the form that did better."""
    if trusted.name == "ned_fitted":
        ned.set_params(sharpness="fit", background="fit", bandwidth="class")
    held = sets.calib if sets.calib is not None else sets.query
    if sets.leave_one_out or held.codes is None or not bool((held.codes >= 0).any()):
        return ned.refit()
    known = held.codes >= 0
    return ned.calibrate(held.rows[known], sets.classes[held.codes[known].numpy()])


def _named_rows(cases: Any, found: Any, ids: tuple[str, ...], labels: Tensor) -> SupportRows:
    """The support rows that some list of neighbors names."""
    used = {row for near in cases.neighbors for row in near}
    used |= {row for suspect in found.suspects for row in (suspect.row, *suspect.neighbors)}
    if cases.network_neighbors is not None:
        used |= {row for near in cases.network_neighbors for row in near}
    rows = sorted(used)
    return SupportRows(
        tuple(rows), tuple(ids[row] for row in rows), tuple(int(labels[row]) for row in rows)
    )


def _agreement(trials: list[Trial], trusted: Trial) -> float | None:
    given = next((trial for trial in trials if trial.name == "softmax"), None)
    if given is None:
        return None
    return float((given.predicted == trusted.predicted).double().mean())


def _small_set_note(scores: NDArray[np.int64] | None, settings: AuditSettings) -> list[str]:
    assert scores is not None
    n = int((scores >= -1).sum())
    if n >= audit_heads.MIN_ECE_ROWS or settings.force_ece:
        return []
    return [
        f"query has {n} scored rows: ECE of a perfectly calibrated model would already read high. "
        "Reporting NLL and accuracy only; --force-ece to print anyway."
    ]


def _not_checked(sets: Sets, facts: ModelFacts | None, logits: Any) -> dict[str, str]:
    missing = {}
    if facts is None:
        missing["layers"] = "needs the model: --model"
        missing["network"] = "needs the model: --model"
        missing["stress"] = "corruptions and attacks need the model and inputs"
    else:
        missing.update(facts.not_checked)
        missing["stress"] = "not run; see vicinal.studies.robustness_report"
    if logits is None:
        missing["softmax"] = "no logits were given"
    if sets.query.codes is None:
        missing["accuracy"] = "the query has no labels"
    if sets.leave_one_out:
        missing["held-out rows"] = "one set was given; everything is leave-one-out on it"
    missing["outliers"] = "no known-foreign set was given: the detectors' hit rates are not tested"
    return missing


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "vicinal": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }


def _provenance(settings: AuditSettings, about: About, start: float) -> Provenance:
    return Provenance(
        version=__version__,
        seed=settings.seed,
        command=about.command or "vicinal.audit(...)",
        reproduce=about.reproduce or about.command or "vicinal.audit(...)",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - start, 2),
        device="cpu",
        versions=versions(),
        config={**settings.to_dict(), **about.config},
    )


def _with_warnings(found: Audit, sentences: list[str]) -> Audit:
    return dataclasses.replace(found, warnings=tuple(dict.fromkeys(sentences)))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
