"""Small audits, counted by plain numpy, that fill every section of the record.

They stand in for ``vicinal.audit`` so that the page is tested by itself: digits as images, made-up
sentences as texts, a table, and a hostile set whose names try to break out of the page.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from sklearn.datasets import load_digits

from report.counted import (
    K,
    borders,
    credibility_section,
    facts,
    label_audit,
    make_hubs,
    make_map,
    neighbors,
    network_section,
    percentile_of,
    provenance,
    reliability,
    risk_coverage,
    share,
    stress,
    vote,
)
from vicinal.audits.paired import Change, Comparison, Delta, Gate
from vicinal.audits.record import Audit, Cases, Media, SupportRows
from vicinal.audits.sections import (
    ClassFacts,
    Data,
    Duplicates,
    Head,
    Layer,
    Planted,
    PriorShift,
    Sweep,
)

HOSTILE = (
    '</script><img src=x onerror="window.pwned=1">',
    "<svg/onload=window.pwned=1>",
    "\"'><script>window.pwned=1</script>",
    "{{ 7*7 }}{% raw %}",
    "line\u2028separator\u2029end",
    "\u202eright-to-left",
    "x" * 4000,
    "<!--<script>",
    "javascript:window.pwned=1",
    '=HYPERLINK("http://example.org")',
    "]]>&lt;b&gt;",
    "\x00null\x07bell",
)


@functools.cache
def image_audit(queries=300):
    """Digits, 8 × 8 images; every 40th support label is wrong, the last 20 query rows are noise."""
    digits = load_digits()
    z, y, images = digits.data / 16.0, digits.target, digits.images
    rng = np.random.default_rng(0)
    support, query = np.arange(0, 900), np.arange(900, 900 + queries)
    noise = rng.uniform(0, 1, (20, 64))
    given = y[support].copy()
    given[::40] = (given[::40] + 3) % 10
    audit = build(
        z[support],
        given,
        np.concatenate([z[query], noise]),
        np.concatenate([y[query], rng.integers(0, 10, 20)]),
        classes=tuple(str(c) for c in range(10)),
        name="digits",
    )
    pixels = (images / 16 * 255).astype(np.uint8)
    shown = np.concatenate([pixels[query], (noise.reshape(-1, 8, 8) * 255).astype(np.uint8)])
    return audit, Media("images", shown, pixels[support])


@functools.cache
def text_audit():
    rng = np.random.default_rng(1)
    topics = {
        "refund": ["refund", "money back", "charge", "invoice", "overpaid"],
        "shipping": ["parcel", "courier", "delayed", "tracking number", "address"],
        "login": ["password", "two-factor code", "locked out", "sign in", "e-mail address"],
    }
    names = tuple(topics)
    labels = rng.integers(0, 3, 160)
    z = rng.normal(size=(160, 6)) + 3.2 * np.eye(3, 6)[labels]
    texts = [
        f"Hello, my {rng.choice(topics[names[c]])} is wrong and the {rng.choice(topics[names[c]])} "
        f"does not help. Could you look at case {rng.integers(1000, 9999)}?"
        for c in labels
    ]
    audit = build(z[:110], labels[:110], z[110:], labels[110:], classes=names, name="tickets")
    return audit, Media("texts", texts[110:], texts[:110])


@functools.cache
def table_audit():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 150)
    z = rng.normal(size=(150, 4)) + 2.0 * labels[:, None]
    audit = build(
        z[:100], labels[:100], z[100:], labels[100:], classes=("good", "worn"), name="parts"
    )
    rows = [[round(float(v), 3) for v in row] for row in z]
    return audit, Media("tables", rows[100:], rows[:100], ("torque", "heat", "hours", "vibration"))


@functools.cache
def hostile_audit():
    """Names, ids, texts, warnings that would run or break a careless page."""
    audit, media = text_audit()
    bad = lambda i: HOSTILE[i % len(HOSTILE)]
    cases, support = audit.cases, audit.support
    audit = dataclasses.replace(
        audit,
        name=HOSTILE[0],
        classes=(HOSTILE[0], HOSTILE[5], HOSTILE[6]),
        cases=dataclasses.replace(
            cases,
            id=tuple(bad(i) for i in range(len(cases.id))),
            reason=tuple(bad(i + 1) for i in range(len(cases.id))),
            layers=tuple(bad(i) for i in range(len(cases.layers))),
        ),
        support=dataclasses.replace(support, id=tuple(bad(i) for i in range(len(support.id)))),
        warnings=HOSTILE,
        not_checked={text: text for text in HOSTILE},
    )
    texts = [bad(i) for i in range(len(cases.id))]
    return audit, Media("texts", texts, [bad(i) for i in range(len(media.support))])


def past(*values):
    """A layer at three checkpoints."""
    return {"steps": (1, 2, 3), "history": values, "history_se": (0.02,) * 3, "history_n": 500,
            "history_chance": 2.2}  # fmt: skip


def build(z, y, zq, yq, *, classes, name):
    """An audit of (z, y) judging (zq, yq), each number counted the plain way."""
    n, c = len(z), len(classes)
    near, distance = neighbors(zq, z, K)
    scale = float(np.median(distance))
    proba, weight = vote(distance, y[near], c, scale)
    predicted, confidence = proba.argmax(1), proba.max(1).clip(0, 1)
    correct = predicted == yq
    own, own_distance = neighbors(z, z, K, exclude_self=True)
    loo, loo_weight = vote(own_distance, y[own], c, scale)
    far = percentile_of(distance[:, K // 2], own_distance[:, K // 2])
    rng = np.random.default_rng(3)
    credibility = np.clip((1 - far / 100) * (0.4 + 0.6 * confidence), 0, 1)
    crowd = rng.permutation(len(zq)) / len(zq) * 100
    verdict = np.select(
        [far > 99, crowd < 2, confidence < 0.7],
        ["unfamiliar", "isolated", "contested"],
        "supported",
    )
    votes = (y[near] == predicted[:, None]).sum(1)
    reason = [
        {
            "supported": f"{v}/{K} neighbors {classes[p]}",
            "contested": f"{classes[p]} has {v} of {K} neighbors",
            "unfamiliar": f"farther than {f:.0f} % of held-out rows: confidence not meaningful",
            "isolated": f"the network treats it like {m:.1f} % of the data",
        }[kind]
        for v, p, f, m, kind in zip(votes, predicted, far, crowd, verdict, strict=True)
    ]
    network = np.array([rng.permutation(row) for row in near])
    layers = ("conv1", "layer2", "embedding")
    used = np.unique(np.concatenate([near.ravel(), own.ravel()]))
    cases = Cases(
        id=[f"q{i:04d}" for i in range(len(zq))],
        label=yq,
        predicted=predicted,
        confidence=confidence,
        credibility=credibility,
        near_percentile=far,
        verdict=verdict,
        reason=reason,
        neighbors=near,
        weights=weight,
        distances=distance,
        network_percentile=crowd,
        network_neighbors=network,
        network_similarities=np.sort(rng.uniform(0.2, 1, network.shape))[:, ::-1],
        layers=layers,
        layer_class=np.stack([predicted, predicted, predicted], 1),
        layer_share=np.stack([confidence * 0.5, confidence * 0.8, confidence], 1),
    )
    bins = reliability(confidence, correct)
    ece = sum(b.count * abs(b.score - b.accuracy) for b in bins if b.count) / len(correct)
    accuracy = float(correct.mean())
    se = float(np.sqrt(accuracy * (1 - accuracy) / len(correct)))
    nll = float(-np.log(np.clip(proba[np.arange(len(yq)), yq], 1e-6, 1)).mean())
    soft = reliability(confidence**0.3, correct)
    heads = (
        Head(
            "softmax",
            "softmax (given)",
            accuracy - 0.01,
            se,
            0.061,
            0.021,
            nll + 0.08,
            0.61,
            0.05,
            soft,
        ),
        Head("1nn", "1-NN", accuracy - 0.02, se, None, None, None, None),
        Head(
            "knn", f"kNN, k={K}", accuracy - 0.004, se, 0.052, 0.021, nll + 0.1, 0.58, -0.04, soft
        ),
        Head(
            "ned",
            "NED",
            accuracy,
            se,
            ece,
            0.021,
            nll,
            0.748,
            float(confidence.mean()) - accuracy,
            bins,
        ),
    )
    return Audit(
        name=name,
        classes=classes,
        data=Data(
            support=facts("train.npz", z, y, "3f9c01ab77de"),
            query=facts("test.npz", zq, yq, "81aa52c0ff10"),
            calib=None,
            split=f"2-fold cross-fit on query ({len(zq) // 2} + {len(zq) - len(zq) // 2} rows)",
            metric="sqeuclidean",
            k=K,
            temperature=scale,
        ),
        heads=heads,
        recommended="ned",
        cases=cases,
        support=SupportRows(used, [f"train#{r}" for r in used], y[used]),
        labels=label_audit(z, y, own, own_distance, loo, loo_weight),
        provenance=provenance(),
        class_facts=[
            ClassFacts(
                label=k,
                support=int((y == k).sum()),
                query=int((yq == k).sum()),
                precision=share(correct[predicted == k]),
                recall=share(correct[yq == k]),
                ece=None,
                entanglement=0.2 + 0.1 * k,
                suspects=int((loo.argmax(1)[y == k] != k).sum()),
            )
            for k in range(c)
        ],
        risk_coverage=risk_coverage(confidence, correct),
        sweep=Sweep(
            (1, 2, 4, 8, 16, 32, 64),
            (0.93, 0.94, 0.955, 0.961, 0.96, 0.955, 0.94),
            (None, 0.06, 0.04, 0.02, 0.019, 0.03, 0.06),
            (None, 0.4, 0.3, 0.2, 0.19, 0.22, 0.3),
            16,
        ),
        credibility=credibility_section(credibility, correct, rng),
        borders=borders(y, own, own_distance, scale, c),
        layers=[
            Layer("conv1", 1.9, 2.2, 0.8, n, 0.03, **past(2.1, 2.0, 1.9)),
            Layer("layer2", 1.2, 2.2, 0.5, n, 0.02, **past(2.0, 1.5, 1.2)),
            Layer("embedding", 0.3, 2.2, 0.2, n, 0.02, **past(1.8, 0.8, 0.3)),
        ],
        network=network_section(zq, crowd, proba),
        map=make_map(zq, z),
        stress=stress(),
        duplicates=Duplicates(
            2, 5, ((0, int(near[0, 0])), (1, int(near[1, 0]))), accuracy - 0.001, 3
        ),
        hubs=make_hubs(near, weight),
        prior_shift=PriorShift(
            np.bincount(y, minlength=c) / n, np.bincount(yq, minlength=c) / len(yq), 0.04, 0.05
        ),
        agreement=0.973,
        planted=[Planted("wrong labels", 23, 21, 26), Planted("unknown inputs", 20, 20, 24)],
        warnings=["2 exact duplicate rows appear in both support and query (0.6 %)."],
        not_checked={"corruptions": "Corruptions need the model: pass --model."},
    )


def unlabeled(audit):
    """The same where the query has no labels, as an audit leaves it."""
    none = dict.fromkeys(("accuracy", "accuracy_se", "ece", "noise_floor", "nll"))
    blank = dict.fromkeys(("precision", "recall", "ece", "noise_floor"))
    return dataclasses.replace(
        audit,
        heads=[dataclasses.replace(h, **none, bins=(), even_bins=()) for h in audit.heads],
        cases=dataclasses.replace(audit.cases, label=(None,) * len(audit.cases.id)),
        class_facts=[dataclasses.replace(c, **blank, query=0) for c in audit.class_facts],
        credibility=dataclasses.replace(audit.credibility, bins=()),
        not_checked={**audit.not_checked, "accuracy": "the query has no labels"},
        **dict.fromkeys(("risk_coverage", "sweep", "prior_shift", "stress", "agreement")),
    )


def comparison():
    return Comparison(
        "base",
        "snnl",
        1000,
        0.95,
        [
            Delta("accuracy", "accuracy", 0.934, 0.932, -0.002, -0.006, 0.002, True),
            Delta("ece", "ECE (NED)", 0.011, 0.031, 0.02, 0.01, 0.03, False),
            Delta("coverage", "coverage at 99 %", 0.748, 0.781, 0.033, 0.02, 0.046, True),
            Delta("nll", "NLL", 0.2, None, None, None, None, False),
        ],
        0.41,
        10,
        41,
        25,
        16,
        [
            Change("img_1", "cat", "dog", "cat", 0.9, 0.8),
            Change(HOSTILE[0], "b", HOSTILE[1], "b", 0.5, 0.6),
        ],
        provenance(),
        [Gate("ece > +0.01", 0.02, False), Gate("accuracy < -0.02", -0.002, True)],
        ["The two runs share 1,000 of 1,010 rows; the others are left out."],
    )
