"""The calls that are fuzzed, and what an answer of each must be."""

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import vicinal
from fuzz.generators import jobs, labels, rows, usually
from fuzz.measures import MEASURES
from fuzz.outcomes import Outcomes
from losses.catalog import CATALOG
from vicinal import losses
from vicinal.audits import AuditSettings
from vicinal.confidence import NEDClassifier

CALLS = {name: (call, kind) for name, call, kind in CATALOG}
# The catalog makes soft targets or proxies of tensors; what is none meets the loss as it is.
AS_IT_IS = {
    "supervised_contrastive_soft": losses.supervised_contrastive_loss,
    "nt_xent_soft": losses.nt_xent_loss,
    "proxy_nca": lambda x, y: losses.proxy_nca_loss(x, y, torch.eye(3, 4)),
    "proxy_nca_original": lambda x, y: losses.proxy_nca_loss(
        x, y, torch.eye(3, 3), include_positive=False
    ),
    "normalized_softmax": lambda x, y: losses.normalized_softmax_loss(x, y, torch.eye(3, 2)),
    "info_nce_soft": lambda x, y: losses.info_nce(x, y, noise="batch"),
    "info_nce_mixed": losses.info_nce,
    "soft_distribution_info_nce": losses.soft_distribution_info_nce,
    "soft_target_cross_entropy": losses.soft_target_cross_entropy,
    "mixed_cross_entropy": losses.soft_target_cross_entropy,
}


def audit(job):
    """An audit of arrays; every row is judged and every number is one."""
    chosen = dict(job)
    given_settings = chosen.pop("settings")

    def check(report):
        p = np.array(report.cases.confidence)
        if not ((p >= 0) & (p <= 1)).all():
            return f"confidences outside 0..1: {p}"
        if sum(report.verdict_counts().values()) != report.data.query.rows:
            return "not every row has a verdict"
        report.to_json()  # refuses NaN
        return None

    return lambda: vicinal.audit(settings=AuditSettings(**given_settings), **chosen), check


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
    codes = isinstance(y, torch.Tensor) and y.dtype == torch.int64 and y.ndim == 1
    codes = codes and not y.is_meta and bool(((y >= 0) & (y < 3)).all())
    usual = isinstance(x, torch.Tensor) and not x.is_quantized and x.layout is torch.strided
    if not codes or not (usual or _in_torch(x)):
        call = AS_IT_IS.get(batch["loss"], call)

    def run():
        if not isinstance(x, torch.Tensor) and not _in_torch(x):
            return call(x, y).detach(), None  # what is no tensor has no gradient either
        rows = torch.as_tensor(x)
        if rows.is_floating_point() and rows.layout is torch.strided and not rows.is_meta:
            rows = rows.detach().clone().requires_grad_()
        value = call(rows, y)
        if value.requires_grad:
            value.sum().backward()
        return value.detach(), rows

    def check(answer):
        value, rows = answer
        if rows is None or not rows.float().isfinite().all():
            return None
        far = f"{rows.dtype} up to {rows.double().abs().max():.0e}"
        if value.isnan().any():
            return f"{batch['loss']} is NaN for finite {far}"
        if rows.grad is not None and rows.grad.isnan().any():
            return f"{batch['loss']}: NaN gradient at {far}"
        return None

    return run, check


def _in_torch(x):
    kinds = ("float16", "float32", "float64", "complex64", "complex128", "int64", "bool", "int8")
    plain = type(x) is np.ndarray and x.dtype.isnative and str(x.dtype) in kinds
    return plain and x.flags.writeable and all(stride >= 0 for stride in x.strides)


def run(name, count, number):
    """``count`` draws of a generator; nothing is shrunk, everything is counted."""
    strategy, target = GENERATORS[name]
    outcomes = Outcomes(name)

    @seed(number)
    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def draws(drawn):
        outcomes.of(*target(drawn), drawn)

    draws()
    return outcomes


GENERATORS = {"audit": (jobs(), audit), "ned": (fits(), classifier), "loss": (batches(), loss)}
GENERATORS |= MEASURES
