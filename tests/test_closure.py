"""How much one must read to be sure of one method: pinned, and only ever to shrink.

``closure`` follows names function by function (see ``closure.py``). Where a change makes one of
these smaller, lower the number here; where it makes one larger, look for what is said twice.
"""

import pytest

from closure import closure

REACH = {  # name, methods that are called -> files, lines
    "SNNL": (("vicinal.losses", "soft_nearest_neighbor_loss"), 11, 1100),
    "graph smoothness": (("vicinal.losses", "graph_smoothness_loss"), 10, 1026),
    "InfoNCE": (("vicinal.losses", "info_nce"), 7, 534),
    "NED": (
        ("vicinal.confidence", "NEDClassifier", ("fit", "predict_proba", "predict")),
        23,
        2574,
    ),
    "kNN": (("vicinal.confidence", "KNNClassifier", ("fit", "predict_proba")), 15, 1283),
    "linear": (("vicinal.confidence", "LinearClassifier", ("fit", "predict_proba")), 6, 629),
    "DkNN": (("vicinal.confidence", "DeepKNN", ("fit", "calibrate", "credibility")), 11, 1115),
    "k^C": (("vicinal.similarity", "GradientKernel", ("gram",)), 30, 3427),
    "ECE": (("vicinal.evaluation", "expected_calibration_error"), 3, 243),
    "page": (("vicinal.report", "save_report"), 15, 1548),
    "audit": (("vicinal.audits", "audit"), 150, 19981),
}


@pytest.mark.parametrize("method", REACH)
def test_what_a_method_reaches_only_shrinks(method):
    place, files, lines = REACH[method]
    found = closure(*place)
    assert found.files <= files
    assert found.lines <= lines


def test_the_whole_library_stays_small_enough_to_know():
    from closure import SOURCE

    assert sum(len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")) <= 48_913
