"""Arrays, labels and whole jobs as people pass them, right and wrong: what the fuzzers draw.

A draw is mostly of the usual kind, with one or two things odd about it: a fault is found beside
what is right, not below a heap of others.
"""

import datetime
import fractions

import numpy as np
import scipy.sparse
import torch
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
USUAL_DTYPES = ("float32", "float64")
ODD_DTYPES = (
    *("float16", "bfloat16", "longdouble", ">f8", ">f4", "int8", "int64", "uint16", "uint64"),
    *("bool", "complex64", "complex128", "float8_e5m2", "object", "str", "bytes"),
    *("datetime64[s]", "void"),
)
SCALES = (
    1e-300,
    1e-160,
    1e-40,
    1e-22,
    1e-7,
    1e7,
    1e18,
    1e20,
    1e25,
    1e30,
    1e37,
    1e150,
    1e160,
    1e300,
)
DEFECTS = ("nan", "inf", "-inf", "zero row", "all zero", "constant", "twins", "outlier", "offset")
CONTAINERS = (
    *("list", "tuple", "tensor", "leaf", "grown", "fortran", "read only", "strided", "reversed"),
    *("masked", "matrix", "sparse", "torch sparse", "meta", "quantized", "ragged", "frame"),
)
SHAPES = ("flat", "cube", "no rows", "no columns", "number", "wider", "longer", "shorter")


def usually(strategy, rare, odds=4):
    """``strategy``, and once in ``odds`` times ``rare``."""
    return st.integers(1, odds).flatmap(lambda n: rare if n == odds else strategy)


@st.composite
def rows(draw, n, d, odds=6):
    """``n`` rows of ``d`` numbers, in some kind, scale, container and shape."""
    shape = draw(usually(st.just("matrix"), st.sampled_from(SHAPES), 3 * odds))
    x = _shaped(np.random.default_rng(draw(SEEDS)), n, d, shape)
    defect = draw(usually(st.none(), st.sampled_from(DEFECTS), odds))
    scale = draw(usually(st.just(1.0), st.sampled_from(SCALES), odds))
    dtype = draw(usually(st.sampled_from(USUAL_DTYPES), st.sampled_from(ODD_DTYPES), odds))
    container = draw(usually(st.just("array"), st.sampled_from(CONTAINERS), odds))
    with np.errstate(all="ignore"):
        x = _spoiled(x, defect) * scale
        return _contained(_typed(x, dtype), container)


def _shaped(rng, n, d, shape):
    sizes = {
        "matrix": (n, d), "flat": (n,), "cube": (n, d, 2), "no rows": (0, d), "no columns": (n, 0),
        "number": (), "wider": (n, d + 1), "longer": (n + 1, d), "shorter": (max(n - 1, 0), d),
    }  # fmt: skip
    return rng.normal(size=sizes[shape])


def _spoiled(x, defect):
    if x.ndim != 2 or not x.size or defect is None:
        return x
    if defect in ("nan", "inf", "-inf"):
        x[-1, 0] = float(defect)
    elif defect == "zero row":
        x[0] = 0
    elif defect == "all zero":
        x[:] = 0
    elif defect == "constant":
        x[:] = 1.5
    elif defect == "twins":
        x[len(x) // 2 :] = x[: len(x) - len(x) // 2]
    elif defect == "outlier":
        x[0] *= 1e12
    elif defect == "offset":
        x += 1e6
    return x


def _typed(x, dtype):
    """As an array, or as a tensor where numpy has no such kind."""
    if dtype in ("bfloat16", "float8_e5m2"):
        return torch.from_numpy(np.asarray(x)).to(getattr(torch, dtype))  # a number times a scale
    if dtype == "object":
        return x.astype(object)
    if dtype == "void":
        return np.zeros(x.shape, dtype=[("a", "f4"), ("b", "i4")])
    if dtype in ("str", "bytes"):
        return x.astype("U8" if dtype == "str" else "S8")
    if dtype.startswith("datetime"):
        return np.zeros(x.shape, dtype=dtype)
    return x.astype(dtype)


def _contained(x, container):
    if isinstance(x, torch.Tensor):
        return x.requires_grad_() if container in ("leaf", "grown") else x
    if container in ("list", "tuple"):
        return x.tolist() if container == "list" else tuple(map(tuple, x)) if x.ndim == 2 else x
    if container in ("leaf", "grown", "tensor", "torch sparse", "meta", "quantized"):
        return _as_kind_of_tensor(x, container)
    if container == "read only":
        x = np.array(x)
        x.flags.writeable = False
    elif container == "fortran":
        return np.asfortranarray(x)
    elif container in ("strided", "reversed"):
        return (
            np.repeat(x, 2, 0)[::2]
            if container == "strided" and x.ndim
            else x[::-1]
            if x.ndim
            else x
        )
    elif container == "masked":
        return np.ma.masked_array(x)
    elif container == "matrix" and x.ndim == 2:
        return np.matrix(x) if x.dtype.kind == "f" else x
    elif container == "sparse" and x.ndim == 2 and x.dtype in ("float32", "float64"):
        return scipy.sparse.csr_matrix(x)
    elif container == "ragged" and x.ndim == 2 and len(x):
        return [*x.tolist()[:-1], [1.0]]
    elif container == "frame" and x.ndim == 2:
        import pandas

        return pandas.DataFrame(x) if x.dtype.kind in "biufO" and x.dtype.isnative else x
    return x


def _as_kind_of_tensor(x, container):
    try:
        tensor = torch.from_numpy(np.ascontiguousarray(x))
    except (TypeError, ValueError):  # no such kind in torch
        return x
    if container == "torch sparse":
        return tensor.to_sparse() if tensor.dtype in (torch.float32, torch.float64) else tensor
    if container == "meta":
        return tensor.to("meta")
    if container == "quantized" and tensor.dtype == torch.float32 and tensor.isfinite().all():
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)
    if container in ("leaf", "grown") and (tensor.is_floating_point() or tensor.is_complex()):
        tensor = tensor.requires_grad_()
        return tensor * 1 if container == "grown" else tensor
    return tensor


# ------------------------------------------------------------------ labels

LABELS = {
    "int": lambda c: c.astype(np.int64),
    "text": lambda c: np.array(["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"])[c % 8],
    "list": lambda c: c.tolist(),
    "tensor": lambda c: torch.from_numpy(c.astype(np.int64)),
}
ODD_LABELS = {
    "negative": lambda c: -c,
    "minus one": lambda c: c.astype(np.int64) - 1,
    "unsigned": lambda c: c.astype(np.uint64) + np.uint64(2**63),
    "long": lambda c: [2**70 + int(v) for v in c],
    "whole": lambda c: c.astype(np.float64),
    "half": lambda c: c + 0.5,
    "nan": lambda c: np.where(np.arange(len(c)) == len(c) - 1, np.nan, c),
    "inf": lambda c: np.where(np.arange(len(c)) == len(c) - 1, np.inf, c),
    "float16": lambda c: c.astype(np.float16),
    "bfloat16": lambda c: torch.from_numpy(c).bfloat16(),
    "truth": lambda c: c % 2 == 0,
    "list of text": lambda c: [f"class {v}" for v in c],
    "zeros before": lambda c: [f"0{v}" for v in c],
    "bytes": lambda c: np.array([b"a", b"b", b"c"])[c % 3],
    "dates": lambda c: [datetime.date(2020, 1, 1 + int(v) % 28) for v in c],
    "datetime64": lambda c: np.datetime64("2020-01-01") + c.astype(np.int64),
    "no time": lambda c: np.array([np.datetime64("NaT", "D")] * len(c)),
    "timedelta": lambda c: c.astype("timedelta64[s]"),
    "none": lambda c: [None] * len(c),
    "some none": lambda c: [None if v == 0 else int(v) for v in c],
    "some none text": lambda c: [None if v == 0 else str(v) for v in c],
    "mixed": lambda c: [str(v) if v % 2 else int(v) for v in c],
    "nan among text": lambda c: [float("nan") if v == 0 else str(v) for v in c],
    "pairs": lambda c: [(int(v), "a") for v in c],
    "sets": lambda c: [frozenset({int(v)}) for v in c],
    "lists": lambda c: [[int(v)] for v in c],
    "ragged": lambda c: [[int(v)] * (1 + i % 2) for i, v in enumerate(c)],
    "dicts": lambda c: [{"y": int(v)} for v in c],
    "fractions": lambda c: [fractions.Fraction(int(v), 3) for v in c],
    "complex": lambda c: c * 1j,
    "objects": lambda c: c.astype(object),
    "tensors": lambda c: [torch.tensor(int(v)) for v in c],
    "soft": lambda c: np.eye(max(int(c.max(initial=0)) + 1, 2))[c] * 0.8
    + 0.2 / max(int(c.max(initial=0)) + 1, 2),
    "soft tensor": lambda c: torch.eye(max(int(c.max(initial=0)) + 1, 2))[c].requires_grad_(),
    "soft half": lambda c: torch.eye(max(int(c.max(initial=0)) + 1, 2))[c].bfloat16(),
    "one hot": lambda c: np.eye(max(int(c.max(initial=0)) + 1, 2), dtype=np.int64)[c],
    "no sum": lambda c: np.eye(max(int(c.max(initial=0)) + 1, 2))[c] * 0.5,
    "soft nan": lambda c: np.full((len(c), 2), np.nan),
    "column": lambda c: c[:, None],
    "cube": lambda c: c[:, None, None],
    "void": lambda c: np.zeros(len(c), dtype=[("a", "i4")]),
    "one class": lambda c: c * 0,
    "all different": lambda c: np.arange(len(c)),
    "shorter": lambda c: c[:-1],
    "longer": lambda c: np.append(c, 0),
    "empty": lambda c: c[:0],
    "number": lambda c: 3,
    "word": lambda c: "abc",
    "generator": lambda c: (int(v) for v in c),
    "dictionary": lambda c: {i: int(v) for i, v in enumerate(c)},
    "requires grad": lambda c: torch.from_numpy(c.astype(np.float64)).requires_grad_(),
    "meta": lambda c: torch.from_numpy(c.astype(np.int64)).to("meta"),
    "controls": lambda c: [f"\x1b[31m{v}\r=1+1\ud800" for v in c],
}  # fmt: skip


@st.composite
def labels(draw, n, odds=4):
    """``n`` labels of up to ``classes`` classes, of some kind."""
    classes = draw(st.integers(2, 4))
    codes = np.random.default_rng(draw(SEEDS)).integers(0, classes, n)
    kind = draw(usually(st.sampled_from(sorted(LABELS)), st.sampled_from(sorted(ODD_LABELS)), odds))
    return (LABELS | ODD_LABELS)[kind](codes)


# ------------------------------------------------------------------ jobs


@st.composite
def jobs(draw):
    """The arguments of an audit: sets of few rows, settings from ordinary to absurd."""
    d = draw(st.integers(1, 4))
    support = draw(usually(st.integers(6, 40), st.integers(0, 5)))
    kind = draw(usually(st.sampled_from(sorted(LABELS)), st.sampled_from(sorted(ODD_LABELS)), 3))
    coded = (LABELS | ODD_LABELS)[kind]
    seed = draw(SEEDS)

    def own_labels(n, salt):
        codes = np.random.default_rng([seed, salt]).integers(0, 3, n)
        same_kind = draw(usually(st.just(True), st.just(False), 8))
        return coded(codes) if same_kind else draw(labels(n))

    job = {"support": (draw(rows(support, d)), own_labels(support, 0))}
    sizes = usually(st.integers(1, 12), st.integers(0, 30))
    if draw(usually(st.just(True), st.just(False))):
        n = draw(sizes)
        x = draw(rows(n, d))
        job["query"] = (x, own_labels(n, 1)) if draw(usually(st.just(True), st.just(False))) else x
    if draw(usually(st.just(False), st.just(True), 3)):
        n = draw(sizes)
        job["calib"] = (draw(rows(n, d)), own_labels(n, 2))
    job["settings"] = draw(settings())
    return job


@st.composite
def settings(draw):
    """Keyword arguments of ``AuditSettings``."""
    return draw(
        st.fixed_dictionaries(
            {"k": usually(st.sampled_from([None, 1, 2, 3, 5]), st.sampled_from(ODD_KS), 6)},
            optional={
                "metric": st.sampled_from(["sqeuclidean", "euclidean", "cosine"]),
                "normalize": st.booleans(),
                "prior": st.sampled_from(["support", "uniform"]),
                "unknown": st.sampled_from(["wrong", "unlabeled"]),
                "target_accuracy": usually(
                    st.sampled_from([0.5, 0.9, 0.999999]),
                    st.sampled_from([0.0, 1.0, float("nan"), -1, "high", None]), 8,
                ),
                "force_ece": st.booleans(),
                "seed": usually(st.integers(0, 10), st.sampled_from([-1, 2**70, 1.5, "a"]), 8),
            },
        )
    )  # fmt: skip


ODD_KS = (0, -1, 1000, 2.0, 2.5, True, "3", float("nan"), np.int64(2))
