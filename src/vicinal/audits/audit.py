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
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch

from vicinal import __version__
from vicinal.audits import data
from vicinal.audits.cases import class_facts
from vicinal.audits.class_order import below_warning, order_warning
from vicinal.audits.credibility import credibility_of
from vicinal.audits.facts import Facts, gather
from vicinal.audits.familiarity import unknowns_of, untested
from vicinal.audits.frames import Columns, from_frames
from vicinal.audits.head_rows import head_rows
from vicinal.audits.inputs import AuditWarning, ready_sets, warn
from vicinal.audits.map import map_of
from vicinal.audits.model import ModelFacts, check_model, images_of, listen, whole
from vicinal.audits.pictures import given_images
from vicinal.audits.recommend import recommendation_of, warn_of_seen_support
from vicinal.audits.record import Audit, SupportRows, rows_named
from vicinal.audits.scale import audit_at_scale, is_source
from vicinal.audits.scoring import MIN_ECE_ROWS, head_record, risk_coverage_of, sweep_over_k
from vicinal.audits.searching import search_facts
from vicinal.audits.sections import Data, Duplicates, Head, PriorShift, Provenance
from vicinal.audits.settings import About, AuditSettings, Job, asked_settings
from vicinal.checks import plural
from vicinal.confidence.verdicts import contested_below
from vicinal.neighbors.search.resumable import Progress


def audit(
    model: Any = None,
    train: Any = None,
    test: Any = None,
    *,
    support: Any = None,
    query: Any = None,
    calib: Any = None,
    foreign: Any = None,
    logits: Any = None,
    stress: bool | None = None,
    checkpoints: Any = None,
    target_accuracy: float | None = None,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
    images: Any = None,
    metric: str = "auto",
    k: int | None = None,
    seed: int | None = None,
    label: str | None = None,
    image: str | None = None,
    embedding: str | Sequence[str] | None = None,
    search: str | None = None,
    recall: float | None = None,
    settings: AuditSettings | None = None,
    about: About | None = None,
    work: str | Path | None = None,
    progress: Progress | None = None,
    on: str | None = None,
    memory: int | str | None = None,
) -> Audit:
    """Judge ``query`` by its neighbors in ``support``; or a model's test rows by its train rows.

    Without ``calib`` what is fitted is cross-fitted in two folds of the query; without a query it
    is leave-one-out on the support.

    Parameters
    ----------
    model, train, test : a network and anything :func:`vicinal.capture.capture` takes; its layers,
        their entanglement and the network's own view come along. Or data frames of pandas or
        polars, ``audit(train_frame, test_frame, label="species")``, the second left out or not.
    support : ``(Z, y)``, embeddings and their labels, where there is no model.
    query : ``(Zq, yq)``, or ``Zq`` alone; None judges the support leave-one-out.
    calib : ``(Zc, yc)``, held-out rows that set temperature and thresholds.
    foreign : ``Z``, rows known to belong to none of the classes: how many would be caught, and
        how many called supported. With a model, inputs for it.
    logits : a softmax head's on the query, one column per class; a model brings its own.
    stress : True asks for every corruption and the worst case over many attacks, False for none;
        None is what ``settings`` say, by default a few. For a model of images.
    checkpoints : of the model over its training, for the entanglement of its layers: a pattern
        like ``"ckpt/*.pt"``, files, or ``{step: file or state dict}``.
    target_accuracy : what accepted rows keep; None: the highest of 0.90, 0.95, 0.97 and 0.99 that
        half of the rows can be shown to meet.
    class_names : what the classes are called, in the order of the model's outputs (logits).
    images : what the rows look like, ``(of the support, of the query)``: arrays or paths.
    metric : ``"auto"`` (squared distances in the space that fits best), ``"sqeuclidean"``,
        ``"euclidean"`` or ``"cosine"``.
    k : neighbors that vote; None is 100, or the whole of a smaller support.
    seed : of all that is drawn.
    label, image, embedding : columns of data frames; for a model ``embedding`` is the layer to
        search in.
    search, recall : who finds the neighbors, and how many of the true ones at least; as of
        :class:`AuditSettings`, whose fields they take the place of.
    settings : what else decides the numbers, :class:`AuditSettings`.
    about : what the rows are called and look like, :class:`About`.
    work : a folder where finished blocks of the searches stay; a stopped audit goes on there.
    progress : called as ``progress(title, done, total)``.
    on : ``"ray"`` or ``"ray://host:10001"``: search, and judge, in the processes of a cluster.
    memory : ``"2GB"``: what may be taken. Sets may be files, patterns or folders of shards, or
        memory maps; what does not fit is read in blocks (:mod:`vicinal.audits.scale`).

    Example:
        >>> import numpy as np
        >>> y = np.arange(300) % 3
        >>> z = np.random.default_rng(0).normal(size=(300, 4)) + y[:, None]
        >>> report = audit(support=(z[:200], y[:200]), query=(z[200:], y[200:]))
        >>> sum(report.verdict_counts().values())
        100
    """
    start = time.perf_counter()
    asked = {"target_accuracy": target_accuracy, "metric": metric, "k": k, "seed": seed,
             "search": search, "recall": recall}  # fmt: skip
    if stress is not None:
        asked["stress"] = "full" if stress else "none"
    settings = asked_settings(settings, asked, model, embedding)
    about = about or About()
    if class_names is not None:
        about = dataclasses.replace(about, class_names=class_names)
    model, support, query, calib, foreign, about = from_frames(
        (model, train, support, query, calib, foreign), Columns(label, image, embedding), about
    )
    if images is not None:
        about = dataclasses.replace(about, media=given_images(images))
    job = Job(settings, about, None if work is None else Path(work), progress, on)
    sets_given = {"support": support, "query": query, "calib": calib, "foreign": foreign}
    if model is None and (memory is not None or any(map(is_source, sets_given.values()))):
        return audit_at_scale({**sets_given, "logits": logits}, job, memory)
    seen: ModelFacts | None = None
    check_model(model)
    if model is not None and memory is not None:
        raise whole(memory)
    if model is not None:
        seen = listen(model, train, test, calib, job, foreign, checkpoints)
        support, query, calib, foreign = seen.support, seen.query, seen.calib, seen.foreign
        named = len(about.class_names) if isinstance(about.class_names, Sequence) else None
        logits = seen.columns_of(named) if logits is None else logits
        if about.media is None and about.show_images:
            about = dataclasses.replace(about, media=images_of(train, test))
            job = dataclasses.replace(job, about=about)

    def gathered() -> Facts:
        sets = ready_sets(support, query, calib, settings, about, foreign)
        data.check_apart(sets)
        return gather(sets, logits, seen, job)

    return recorded(gathered, start)


def recorded(gathered: Callable[[], Facts], start: float) -> Audit:
    """Every section of what is gathered, and every sentence that is said on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        facts, sections = gathered(), dict[str, Any]()
        for at, (name, section) in enumerate(SECTIONS.items()):
            facts.job.tell(name.replace("_", " "), at, len(SECTIONS))
            sections[name] = section(facts)  # what is shared is made by the first that reads it
    settings, about = facts.settings, facts.about
    command = about.command or "vicinal.audit(...)"
    config = {**settings.to_dict(), **about.config}
    return Audit(
        **sections,
        provenance=provenance_of(settings.seed, command, about.reproduce or command, start, config),
        warnings=(*about.warnings, *sentences(caught)),
    )


def provenance_of(
    seed: int, command: str, reproduce: str, start: float, config: dict[str, Any]
) -> Provenance:
    """What the numbers were made with, and how to make them again; ``start``: by the clock."""
    return Provenance(
        version=__version__,
        seed=seed,
        command=command,
        reproduce=reproduce,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - start, 2),
        device="cpu",
        versions={
            "vicinal": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
        config=config,
    )


def data_of(facts: Facts) -> Data:
    """The sets, and how they were used."""
    sets, settings, model = facts.sets, facts.settings, facts.model
    temperature = float(facts.ned.temperature_)
    return Data(
        support=sets.support.facts(),
        query=sets.query.facts(),
        calib=None if sets.calib is None else sets.calib.facts(),
        split=facts.fitting.how,
        metric=settings.metric,
        k=facts.neighborhood.k,
        temperature=temperature if math.isfinite(temperature) else None,
        model=facts.about.model or (model.name if model else None),
        model_fingerprint=model.fingerprint if model else None,
        space=facts.space,
    )


def heads_of(facts: Facts) -> tuple[Head, ...]:
    """Every head's line; what cannot be said of it is warned of."""
    if not facts.scored:
        return tuple(
            Head(name, answer.title, None, None, None, None, None, None)
            for name, answer in facts.answers.items()
        )
    force, n = facts.settings.force_ece, facts.scored[facts.shown].count
    warn_of_seen_support(facts)
    if n < MIN_ECE_ROWS and not force:
        warn(
            f"query has {plural(n, 'scored row')}: "
            "ECE of a perfectly calibrated model would already read high. "
            "Reporting NLL and accuracy only; --force-ece to print anyway."
        )
    target = facts.promise.target
    return tuple(head_record(name, scored, target, force) for name, scored in facts.scored.items())


def support_rows(facts: Facts) -> SupportRows:
    """The support rows that some list of neighbors names."""
    rows = sorted(rows_named(facts.cases, facts.label_audit))
    codes = facts.sets.all_codes[rows]
    return SupportRows(tuple(rows), facts.support_names(rows), tuple(codes.tolist()))


def duplicates_of(facts: Facts) -> Duplicates:
    scored = None if facts.score is None else (facts.score.rows, facts.score.right)
    twins = data.duplicates(*data.as_given(facts), scored)
    if twins.exact and not facts.sets.leave_one_out:
        share, rest = 100 * twins.exact / facts.neighborhood.size, ""
        if twins.accuracy_without is not None:
            kept = 100 * twins.accuracy_without
            rest = f" Without them and near-duplicates accuracy is {kept:.1f} %."
        warn(
            f"{plural(twins.exact, 'exact duplicate row appears', 'exact duplicate rows appear')} "
            f"in both support and query ({share:.1f} %).{rest}"
        )
    return twins


def prior_shift_of(facts: Facts) -> PriorShift | None:
    sets, codes = facts.sets, facts.sets.query.all_codes
    if codes is None or not facts.scored or sets.leave_one_out:
        return None
    shift = data.prior_shift(sets.all_codes, codes, len(sets.classes), facts.settings.seed)
    if shift.distance > shift.by_chance:
        warn(
            f"class shares of support and query differ by {100 * shift.distance:.1f} % (by chance "
            f"{100 * shift.by_chance:.1f} %): probabilities assume the support's. Try --prior "
            "uniform, or give a support like the query."
        )
    return shift


def agreement_of(facts: Facts) -> float | None:
    """How often the neighbor head and the given softmax head agree."""
    given, codes = facts.answers.get("softmax"), facts.sets.query.codes
    if given is None:
        return None
    if codes is not None:
        sentence = order_warning(given.predicted, codes, facts.sets.names)
        sentence = sentence or below_warning(given.predicted, facts.answer.predicted, codes)
        if sentence is not None:
            warn(sentence)
    return float((given.predicted == facts.answer.predicted).double().mean())


def not_checked(facts: Facts) -> dict[str, str]:
    """Section -> why it is empty."""
    missing = {}
    if facts.model is None:
        missing.update(dict.fromkeys(("layers", "network"), "needs the model: --model"))
    else:
        missing.update(facts.model.not_checked)
    if facts.stressed.why is not None:
        missing["stress"] = facts.stressed.why
    if facts.task.logits is None:
        missing["softmax"] = "no logits were given"
        if facts.model is not None:
            missing["softmax"] = facts.model.without_softmax(len(facts.sets.names))
    if facts.sets.query.codes is None:
        missing["accuracy"] = "the query has no labels"
        if facts.promised is None:
            level = contested_below(math.inf, facts.promise.target)
            missing["threshold"] = (
                "no row with a label shows which confidence keeps an accuracy. Until --calib gives "
                f"some, confidence is taken at face value: below {level:.3g} it is contested"
            )
    if facts.sets.leave_one_out:
        missing["held-out rows"] = "one set was given; everything is leave-one-out on it"
    if facts.settings.map == "none":
        missing["map"] = "not asked for: --map none"
    if facts.sets.foreign is None:
        missing["outliers"] = untested()
    return missing


# Field of the record -> what computes it from the facts. A new section is one line here, one
# function, one record, one figure and one part of the template.
SECTIONS: dict[str, Callable[[Facts], Any]] = {
    "name": lambda f: f.about.name,
    "classes": lambda f: f.sets.names,
    "heads": heads_of,
    "data": data_of,
    "head_rows": head_rows,
    "recommended": lambda f: f.choice.head,
    "recommendation": recommendation_of,
    "search": search_facts,
    "cases": lambda f: f.cases,
    "support": support_rows,
    "labels": lambda f: f.label_audit,
    "class_facts": lambda f: class_facts(f, data.class_entanglement(*_graph_of(f))),
    "risk_coverage": lambda f: f.promised and risk_coverage_of(f.shown, f.promised, f.promise),
    "sweep": lambda f: f.score and sweep_over_k(f.task, f.scored["ned"]),
    "credibility": credibility_of,
    "borders": lambda f: data.borders(*_graph_of(f)),
    "layers": lambda f: f.model and f.model.layers,
    "network": lambda f: f.model and f.model.network and f.model.network.view,
    "map": map_of,
    "stress": lambda f: f.stressed.record,
    "unknowns": unknowns_of,
    "duplicates": duplicates_of,
    "hubs": lambda f: data.hubs(f.neighborhood.indices, f.weights, f.sets.support.count),
    "prior_shift": prior_shift_of,
    "agreement": agreement_of,
    "not_checked": not_checked,
    "media": lambda f: f.about.media,
    "head": lambda f: f.head,
    "scale": lambda f: f.scale,
    "parts": lambda f: f.parts,
}


def _graph_of(facts: Facts) -> tuple[Any, ...]:
    return facts.graph, facts.sets.codes, len(facts.sets.classes), facts.ned.temperature_


def sentences(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Each once: what the audit says of the data first, then what its heads warn of."""
    found = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    found.sort(key=lambda warning: not issubclass(warning.category, AuditWarning))
    texts = dict.fromkeys(str(warning.message) for warning in found)
    return [text for text in texts if "Triggered internally" not in text]  # torch, of itself
