"""Numbers about numbers, fuzzed: each answer is the plain formula's, or the input earns a sentence.

What is drawn is a list of scores, probabilities or rows in some kind and scale, now and then
spoiled. Where it is what the function asks for, a plain loop of ``tests/reference.py`` (or a
few lines here) has the last word.
"""

import math

import numpy as np
import torch
from hypothesis import strategies as st

import reference
from fuzz.generators import SEEDS, labels, rows, usually
from vicinal import evaluation, losses
from vicinal.confidence import ConformalSets, NEDClassifier
from vicinal.similarity import GradientKernel

ODD_VALUES = (math.nan, math.inf, -math.inf, -0.2, 1.2, 1e300, -1e300, 5e-324, None, "0.5", True)
KINDS = {
    "float64": lambda v: np.array(v, dtype=np.float64),
    "float32": lambda v: np.array(v, dtype=np.float32),
    "float16": lambda v: np.array(v, dtype=np.float16),
    "bfloat16": lambda v: torch.tensor(v, dtype=torch.bfloat16),
    "longdouble": lambda v: np.array(v, dtype=np.longdouble),
    "list": list,
    "tuple": tuple,
    "leaf": lambda v: torch.tensor(v, dtype=torch.float64, requires_grad=True),
    "strided": lambda v: np.repeat(np.array(v, dtype=np.float64), 2)[::2],
    "swapped": lambda v: np.array(v, dtype=">f8"),
}
SPOILED = {
    "column": lambda v: np.array(v)[:, None],
    "empty": lambda v: v[:0],
    "shorter": lambda v: v[:-1],
    "number": lambda v: 0.5,
    "word": lambda v: "abc",
    "none": lambda v: None,
    "complex": lambda v: np.array(v) + 1j,
    "dates": lambda v: np.array(v).astype("datetime64[s]"),
    "objects": lambda v: np.array([object()] * len(v)),
    "ragged": lambda v: [*v, [1.0]],
    "dict": lambda v: dict(enumerate(v)),
    "generator": iter,
}


@st.composite
def scores(draw, n):
    """``n`` numbers in 0..1 with ties, in some kind; now and then one of them, or all, spoiled."""
    rng = np.random.default_rng(draw(SEEDS))
    values = np.round(rng.uniform(size=n), draw(st.sampled_from([1, 2, 9]))).tolist()
    if draw(st.integers(1, 8)) == 1 and values:
        values[-1] = draw(st.sampled_from(ODD_VALUES))
        return values
    if draw(st.integers(1, 8)) == 1:
        return draw(st.sampled_from(sorted(SPOILED)).map(SPOILED.get))(values)
    return KINDS[draw(st.sampled_from(sorted(KINDS)))](values)


def plain(x):
    """As a list of floats."""
    x = x.detach().double() if isinstance(x, torch.Tensor) else x
    return np.asarray(x, dtype=np.float64).tolist()


def close(answer, right):
    """None if two numbers agree, else what is wrong."""
    same = answer == right or math.isclose(answer, right, rel_tol=1e-6, abs_tol=1e-9)
    return None if same else f"{answer} instead of {right}"


# ------------------------------------------------------------------ evaluation


def _rocs(low, high):
    return reference.area_under_roc(low, high)


def _nll(p, correct):
    """Of two columns: the drawn number, and what it leaves of one."""
    pairs = [(1 - v, v) for v in p]
    mean, lost = reference.log_loss(pairs, [int(c) for c in correct])
    return math.inf if lost else mean


def _two(p):
    """Both columns, where there is a list of numbers."""
    try:
        p = torch.as_tensor(np.asarray(plain(p)))
    except (TypeError, ValueError):
        return p
    return torch.stack([1 - p, p], 1) if p.ndim == 1 else p


PAIRED = {  # name: (call, the same by a plain loop) of confidences and whether they came true
    "ece": (evaluation.expected_calibration_error,
            lambda c, y: reference.calibration_error(c, y, 15)),
    "ece, mass": (lambda c, y: evaluation.expected_calibration_error(c, y, scheme="mass", bins=4),
                  lambda c, y: reference.calibration_error(c, y, 4, "mass")),
    "aurc": (evaluation.area_under_risk_coverage, reference.area_under_risk_coverage),
    "auroc": (evaluation.auroc, _rocs),
    "fpr": (lambda a, b: evaluation.fpr_at_tpr(a, b, 0.9),
            lambda a, b: reference.false_positive_rate(a, b, 0.9)),
    "brier": (lambda c, y: evaluation.brier_score(_two(c), y),
              lambda c, y: reference.brier([(1 - v, v) for v in c], [int(v) for v in y])),
    "nll": (lambda c, y: evaluation.negative_log_likelihood(_two(c), y), _nll),
}  # fmt: skip
OF_SCORES = ("auroc", "fpr")


@st.composite
def measures(draw):
    """A measure by name with what it takes."""
    name, n = draw(st.sampled_from(sorted(PAIRED))), draw(usually(st.integers(1, 20), st.just(0)))
    if name in OF_SCORES:
        return {"name": name, "a": draw(scores(n)), "b": draw(scores(draw(st.integers(1, 9))))}
    truth = np.random.default_rng(draw(SEEDS)).uniform(size=n) < 0.5
    kinds = [truth, truth.astype(int), truth.tolist(), torch.from_numpy(truth.astype(np.int64))]
    odd = [truth * 2, truth[:-1], truth - 0.5, np.full(n, np.nan), [None] * n, truth.astype(str)]
    return {
        "name": name,
        "a": draw(scores(n)),
        "b": draw(usually(st.sampled_from(kinds), st.sampled_from(odd), 6)),
    }


def measure(drawn):
    """A measure is what the plain loop says."""
    call, twin = PAIRED[drawn["name"]]
    a, b = drawn["a"], drawn["b"]

    def check(answer):
        right = twin(plain(a), plain(b))
        if (
            isinstance(a, (torch.Tensor, np.ndarray))
            and np.asarray(plain(a)).dtype
            and (str(getattr(a, "dtype", "")).endswith(("float16", "float32")))
        ):  # an edge of a bin, rounded to the kind of the scores
            near = answer == right or abs(answer - right) < 0.2  # both may be infinite
            return None if near else f"{answer} instead of {right}"
        return close(float(answer), right)

    return lambda: call(a, b), check


# ------------------------------------------------------------------ intervals


@st.composite
def counts(draw):
    """Successes among trials, and a level; mostly possible."""
    trials = draw(usually(st.integers(0, 30), st.sampled_from([-1, 2.5, math.nan, 10**12])))
    most = int(trials) if isinstance(trials, int) and 0 < trials < 100 else 3
    successes = draw(usually(st.integers(0, most), st.sampled_from([-1, most + 1, math.nan, 0.5])))
    level = draw(usually(st.sampled_from([0.5, 0.95]), st.sampled_from([0, 1, math.nan, -1, "x"])))
    which = draw(st.sampled_from(["wilson_interval", "clopper_pearson_interval"]))
    return {"which": which, "successes": successes, "trials": trials, "level": level}


def interval(drawn):
    """Two ends in 0..1, about the rate where there is one."""
    s, n = drawn["successes"], drawn["trials"]

    def check(answer):
        low, high = map(float, answer)
        if not 0 <= low <= high <= 1:
            return f"no interval: {answer}"
        if n and not low - 1e-12 <= s / n <= high + 1e-12:
            return f"{s}/{n} outside {answer}"
        return None if n or (low, high) == (0, 1) else f"of no trial: {answer}"

    return lambda: getattr(evaluation, drawn["which"])(s, n, drawn["level"]), check


# ------------------------------------------------------------------ conformal sets


@st.composite
def calibrations(draw):
    """A classifier of few rows, held-out rows, and what is asked of the sets."""
    d, n = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    return {
        "held": (draw(rows(n, d, 8)), draw(usually(st.just(np.arange(n) % 2), labels(n), 5))),
        "asked": draw(rows(3, d, 8)),
        "d": d,
        "score": draw(usually(st.sampled_from(["lac", "aps", "raps"]), st.just("x"), 9)),
        "alpha": draw(usually(st.sampled_from([0.1, 0.5]), st.sampled_from([0, 1, math.nan, -1]))),
    }


def conformal(drawn):
    """p-values are ranks among the held-out scores; a set is what lies above alpha."""
    x = np.random.default_rng(1).normal(size=(12, drawn["d"]))
    base = NEDClassifier(k=4, temperature=1.0).fit(x, np.arange(12) % 2)

    def call():
        sets = ConformalSets(base, drawn["score"], drawn["alpha"]).calibrate(*drawn["held"])
        return sets, sets.p_values(drawn["asked"]), sets.prediction_sets(drawn["asked"])

    def check(answer):
        sets, p, chosen = (answer[0], *map(np.asarray, answer[1:]))
        if not ((p > 0) & (p <= 1)).all():
            return f"no p-values: {p}"
        if drawn["score"] != "lac":
            return None if (chosen >= (p > drawn["alpha"])).all() else "a label is missing"
        z, y = drawn["held"]
        codes = np.searchsorted(sets.classes_, np.asarray(y).reshape(-1))  # a column is taken too
        held = 1 - np.asarray(base.predict_proba(z))[np.arange(len(codes)), codes]
        asked = 1 - np.asarray(base.predict_proba(drawn["asked"]))
        right = [[reference.conformal_p_value(s, held.tolist()) for s in row] for row in asked]
        wrong = not np.allclose(p, right) or not np.array_equal(chosen, p > drawn["alpha"])
        return f"{p} instead of {right}" if wrong else None

    return call, check


# ------------------------------------------------------------------ kernels


@st.composite
def nets(draw):
    """A small linear network of some scale, and rows."""
    d = draw(st.integers(1, 4))
    return {
        "x": draw(rows(draw(st.integers(1, 5)), d)),
        "d": d,
        "out": draw(st.integers(1, 3)),
        "scale": draw(st.sampled_from([1.0, 1.0, 1e-30, 1e-12, 1e12, 1e30])),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64, torch.float64])),
        "kind": draw(st.sampled_from(["correlation", "correlation", "inner", "cosine"])),
    }


def kernel(drawn):
    """k^C of a linear layer is the cosine of (x, 1) and (x', 1), whatever the scale."""
    torch.manual_seed(0)
    net = torch.nn.Linear(drawn["d"], drawn["out"]).to(drawn["dtype"])
    with torch.no_grad():
        net.weight.mul_(drawn["scale"])

    def check(gram):
        k = np.asarray(gram.detach().double())
        x = drawn["x"].detach() if isinstance(drawn["x"], torch.Tensor) else drawn["x"]
        narrow = np.float32 if drawn["dtype"] == torch.float32 else np.float64
        x = np.asarray(x, narrow).astype(np.float64)  # NumPy knows every byte order and stride
        a = np.hstack([x, np.ones((len(x), 1))]).astype(np.longdouble)
        if drawn["kind"] == "correlation":
            a = a / np.sqrt((a * a).sum(1, keepdims=True))
        with np.errstate(over="ignore"):  # a product that the dtype cannot hold is infinite
            right = (a @ a.T).astype(narrow).astype(np.float64)  # the mean over equal outputs
        if k.shape != right.shape or np.isnan(k).any():
            return f"{k} instead of {right}"
        there = np.isfinite(right)
        far = np.abs(k - right)[there].max(initial=0)
        far /= max(np.abs(right[there]).max(initial=0), 1e-300)
        right_ends = np.array_equal(k[~there], right[~there])
        loose = 1e-4 if narrow is np.float32 else 1e-7
        return None if far < loose and right_ends else f"{k} instead of {right}"

    return lambda: GradientKernel(net).gram(drawn["x"], kind=drawn["kind"]), check


# ------------------------------------------------------------------ losses by their formulas


@st.composite
def small_batches(draw):
    """Rows of a moderate scale and labels of two classes, for a loss with a plain loop."""
    n, d = draw(st.integers(2, 7)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(SEEDS))
    x = rng.normal(size=(n, d)) * draw(st.sampled_from([1e-9, 1e-3, 1.0, 1e3]))
    x += draw(st.sampled_from([0.0, 0.0, 1e4]))
    return {
        "x": torch.from_numpy(x),
        "y": torch.from_numpy(rng.integers(0, 2, n)),
        "t": draw(usually(st.sampled_from([0.1, 1.0, 50.0]), st.sampled_from([0, -1, math.nan]))),
        "metric": draw(st.sampled_from(["sqeuclidean", "euclidean", "cosine"])),
    }


def formula(drawn):
    """The soft nearest neighbor loss, term by term."""
    x, y, t, metric = (drawn[name] for name in ("x", "y", "t", "metric"))

    def check(answer):
        terms = reference.soft_nearest_neighbor_terms(x.tolist(), y.tolist(), t, metric)
        known = [term for term in terms if term is not None]
        right = sum(known) / len(known) if known else 0.0
        near = abs(float(answer) - right) <= 1e-6 * (1 + abs(right))
        return None if near else f"{float(answer)} instead of {right}"

    return lambda: losses.soft_nearest_neighbor_loss(x, y, temperature=t, metric=metric), check


MEASURES = {
    "measure": (measures(), measure),
    "interval": (counts(), interval),
    "conformal": (calibrations(), conformal),
    "kernel": (nets(), kernel),
    "formula": (small_batches(), formula),
}
