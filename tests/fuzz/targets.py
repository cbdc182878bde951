"""The calls that are fuzzed, and what an answer of each must be."""

import numpy as np
import torch
from hypothesis import strategies as st

import vicinal
from fuzz.generators import jobs, labels, rows, usually
from losses.catalog import CATALOG
from vicinal.audits import AuditSettings
from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier

CALLS = {name: (call, kind) for name, call, kind in CATALOG}


def audit(job):
    """An audit of arrays; every row is judged and every number is one."""
    chosen = dict(job)
    settings = chosen.pop("settings")

    def check(report):
        p = np.array(report.cases.confidence)
        if not ((p >= 0) & (p <= 1)).all():
            return f"confidences outside 0..1: {p}"
        if sum(report.verdict_counts().values()) != report.data.query.rows:
            return "not every row has a verdict"
        report.to_json()  # refuses NaN
        return None

    return lambda: vicinal.audit(settings=AuditSettings(**settings), **chosen), check


@st.composite
def fits(draw):
    """A support, rows to ask about, and the parameters of a classifier."""
    n, d = draw(usually(st.integers(4, 30), st.integers(0, 3))), draw(st.integers(1, 4))
    m = draw(st.integers(1, 5))
    held = draw(st.integers(1, 5))
    options = draw(
        st.fixed_dictionaries(
            {"k": st.sampled_from([1, 2, 3, 5])},
            optional={
                "sharpness": st.sampled_from([1.0, "fit", 0.0, -1.0, "fitted"]),
                "background": st.sampled_from([0.0, "fit", 1.0, 2.0]),
                "bandwidth": st.sampled_from(["shared", "class"]),
                "prior": st.sampled_from(["support", "uniform", [0.5, 0.5], "none"]),
                "temperature": st.sampled_from([None, 1.0, 0.0, 1e-300, 1e300, -1.0, "optimal"]),
                "metric": st.sampled_from(["sqeuclidean", "euclidean", "cosine"]),
            },
        )
    )
    return {
        "support": (draw(rows(n, d)), draw(labels(n))),
        "held": (draw(rows(held, d)), draw(labels(held))) if draw(st.booleans()) else None,
        "asked": draw(rows(m, d)),
        "options": options,
    }


def classifier(fit):
    """A classifier fitted, maybe calibrated, and asked: rows of probabilities."""

    def call():
        model = NEDClassifier(**fit["options"]).fit(*fit["support"])
        if fit["held"] is not None:
            model.calibrate(*fit["held"])
        model.predict(fit["asked"])
        return model.predict_proba(fit["asked"])

    def check(answer):
        p = np.asarray(answer)
        right = ((p >= 0) & (p <= 1 + 1e-12)).all() and np.allclose(p.sum(1), 1)
        return None if right else f"no probabilities: {p}"

    return call, check


@st.composite
def batches(draw):
    """A loss by name, with rows and labels of three classes."""
    name = draw(st.sampled_from(sorted(CALLS)))
    n = draw(usually(st.integers(2, 9), st.integers(0, 1)))
    d = 3 if CALLS[name][1] == "logits" else draw(st.integers(1, 4))
    x = draw(rows(n, d))
    codes = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 3, n)
    y = draw(usually(st.just(torch.from_numpy(codes)), labels(n), 5))
    return {"loss": name, "x": x, "labels": y}


def loss(batch):
    """A loss and its gradient: no NaN out of finite rows."""
    call, _ = CALLS[batch["loss"]]
    x, y = batch["x"], batch["labels"]

    def run():
        rows = x
        if not isinstance(rows, torch.Tensor):
            rows = torch.from_numpy(rows) if _in_torch(rows) else rows
        if not isinstance(rows, torch.Tensor) or not isinstance(y, torch.Tensor):
            raise InputError("losses take tensors")
        if rows.is_floating_point() and not rows.is_meta and not rows.is_sparse:
            rows = rows.detach().clone().requires_grad_()
        value = call(rows, y)
        value.sum().backward()
        return rows, value.detach()

    def check(answer):
        rows, value = answer
        if not rows.isfinite().all():
            return None
        if value.isnan().any():
            return f"{batch['loss']} is NaN for finite {rows.dtype} up to {rows.abs().max():.0e}"
        if rows.grad is not None and rows.grad.isnan().any():
            return f"{batch['loss']}: NaN gradient at {rows.dtype} up to {rows.abs().max():.0e}"
        return None

    return run, check


def _in_torch(x):
    kinds = ("float16", "float32", "float64", "complex64", "complex128", "int64", "bool", "int8")
    plain = type(x) is np.ndarray and x.dtype.isnative and str(x.dtype) in kinds
    return plain and x.flags.writeable and all(stride >= 0 for stride in x.strides)


GENERATORS = {"audit": (jobs(), audit), "ned": (fits(), classifier), "loss": (batches(), loss)}
