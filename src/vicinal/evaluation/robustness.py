r"""How much more often is a model wrong when the input is corrupted, against another model?

.. math::

    \mathrm{CE}_c = \frac{\sum_s E_{s,c}}{\sum_s E^{\text{ref}}_{s,c}} \qquad
    \text{relative } \mathrm{CE}_c = \frac{\sum_s (E_{s,c} - E_{\text{clean}})}
    {\sum_s (E^{\text{ref}}_{s,c} - E^{\text{ref}}_{\text{clean}})}

(Hendrycks and Dietterich 2019; Bontonou 2019, Table 2): a ratio of sums over the severities s and
never a mean of ratios; the mCE is its mean over corruptions. 1 is the reference model; the papers'
tables print it times 100. ImageNet's reference is AlexNet; other data sets have none, so the model
to compare with is always given. The relative form asks what corruption adds to the clean error; a
reference that loses nothing under a corruption leaves nothing to divide by, and is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.checks import InputError, as_tensor
from vicinal.evaluation.inputs import exact_sum

CLEAN = "clean"


def mean_corruption_error(
    errors: Any,
    baseline: Any,
    relative: bool = False,
    *,
    clean: float | None = None,
    baseline_clean: float | None = None,
) -> float:
    """The mean over corruptions of :func:`corruption_errors`: below 1 is better than the baseline.

    Parameters
    ----------
    errors, baseline, relative, clean, baseline_clean : as in :func:`corruption_errors`.

    >>> ours = {"clean": 0.1, "fog": [0.2, 0.3], "snow": [0.3, 0.5]}
    >>> theirs = {"clean": 0.1, "fog": [0.4, 0.6], "snow": [0.3, 0.5]}
    >>> mean_corruption_error(ours, theirs)  # (0.5/1 + 0.8/0.8) / 2
    0.75
    """
    ratios = corruption_errors(
        errors, baseline, relative, clean=clean, baseline_clean=baseline_clean
    )
    return exact_sum(np.array(list(ratios.values()))) / len(ratios)


def corruption_errors(
    errors: Any,
    baseline: Any,
    relative: bool = False,
    *,
    clean: float | None = None,
    baseline_clean: float | None = None,
) -> dict[str, float]:
    """CE of each corruption: the model's summed errors over the baseline's.

    Parameters
    ----------
    errors, baseline : ``{corruption: errors by severity}`` with the same corruptions and severities
        (a sequence, or ``{severity: error}``), or matrices (corruptions, severities).
    relative : whether the clean error is subtracted first.
    clean, baseline_clean : the clean errors, if they are not in the tables as the entry
        ``"clean"``.
    """
    ours, own = _table(errors, clean, "errors")
    theirs, other = _table(baseline, baseline_clean, "baseline")
    _check_same(ours, theirs)
    if relative:
        own, other = _given(own, "errors", "clean"), _given(other, "baseline", "baseline_clean")
    else:
        own = other = 0.0
    return {name: _ratio(row, theirs[name], own, other, name) for name, row in ours.items()}


def _ratio(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    clean: float,
    baseline_clean: float,
    name: str,
) -> float:
    below = exact_sum(theirs) - len(theirs) * baseline_clean
    nothing = below <= 1e-12  # rounding of a difference of rates
    if nothing and baseline_clean:
        raise InputError(
            f"the baseline loses nothing under {name!r}: over {len(theirs)} severities its errors "
            f"sum to {theirs.sum():.4g}, its clean errors to {len(theirs) * baseline_clean:.4g}. "
            "A relative error cannot be divided by what is not above zero: leave this corruption "
            "out, or compare without relative=True."
        )
    if nothing:
        raise InputError(
            f"the baseline makes no error under {name!r}, and nothing can be divided by zero. "
            "Leave this corruption out, or choose another baseline."
        )
    return (exact_sum(ours) - len(ours) * clean) / below


def _table(
    errors: Any, clean: float | None, name: str
) -> tuple[dict[str, NDArray[np.float64]], float | None]:
    if not isinstance(errors, Mapping):
        matrix = as_tensor(errors, name).double().numpy()
        if matrix.ndim != 2:
            raise InputError(
                f"`{name}` must be {{corruption: errors by severity}} or a matrix (corruptions, "
                f"severities), got shape {tuple(matrix.shape)}."
            )
        errors = dict(enumerate(matrix))
    rows = {}
    for key, row in errors.items():
        values = list(row.values()) if isinstance(row, Mapping) else row
        value = np.atleast_1d(as_tensor(values, f"{name}[{key!r}]").double().numpy())
        if value.ndim != 1 or len(value) == 0 or not np.isfinite(value).all() or (value < 0).any():
            raise InputError(
                f"`{name}` must hold error rates ≥ 0, one for each severity, "
                f"got {row!r} for {key!r}."
            )
        rows[str(key)] = value
    inside = rows.pop(CLEAN, None)
    if not rows:
        raise InputError(f"`{name}` holds no corruption. Pass {{corruption: errors by severity}}.")
    if clean is None and inside is not None:
        clean = float(inside.mean())
    return rows, clean


def _given(clean: float | None, name: str, keyword: str) -> float:
    if clean is None:
        raise InputError(
            f"relative=True subtracts the clean error, and `{name}` has none. "
            f"Add it as {name}['clean'], or pass {keyword}=."
        )
    return float(clean)


def _check_same(
    ours: dict[str, NDArray[np.float64]], theirs: dict[str, NDArray[np.float64]]
) -> None:
    different = sorted(set(ours) ^ set(theirs))
    if different:
        raise InputError(
            f"`errors` and `baseline` must hold the same corruptions; only one of them has "
            f"{', '.join(different)}."
        )
    for name, row in ours.items():
        if len(row) != len(theirs[name]):
            raise InputError(
                f"`errors` has {len(row)} severities of {name!r}, `baseline` has "
                f"{len(theirs[name])}. A ratio of sums needs the same ones."
            )
