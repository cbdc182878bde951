"""How much one must read to be sure of one method: pinned, and only ever to shrink.

``closure`` follows names function by function (see ``closure.py``). Where a change makes one of
these smaller, lower the number here; where it makes one larger, look for what is said twice.
"""

import pytest

from closure import closure

REACH = {  # name, methods that are called -> files, lines
    "SNNL": (("vicinal.losses", "soft_nearest_neighbor_loss"), 11, 1097),
    "graph smoothness": (("vicinal.losses", "graph_smoothness_loss"), 10, 1025),
    "InfoNCE": (("vicinal.losses", "info_nce"), 7, 531),
    "NED": (
        ("vicinal.confidence", "NEDClassifier", ("fit", "predict_proba", "predict")),
        23,
        2564,
    ),
    "kNN": (("vicinal.confidence", "KNNClassifier", ("fit", "predict_proba")), 15, 1281),
    "linear": (("vicinal.confidence", "LinearClassifier", ("fit", "predict_proba")), 6, 629),
    "DkNN": (("vicinal.confidence", "DeepKNN", ("fit", "calibrate", "credibility")), 11, 1114),
    "k^C": (("vicinal.similarity", "GradientKernel", ("gram",)), 30, 3401),
    "ECE": (("vicinal.evaluation", "expected_calibration_error"), 3, 241),
    "page": (("vicinal.report", "save_report"), 15, 1543),
    "audit": (("vicinal.audits", "audit"), 150, 19838),
}


@pytest.mark.parametrize("method", REACH)
def test_what_a_method_reaches_only_shrinks(method):
    place, files, lines = REACH[method]
    found = closure(*place)
    assert found.files <= files
    assert found.lines <= lines


def test_the_whole_library_stays_small_enough_to_know():
    from closure import SOURCE

    assert sum(len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")) <= 48_626
