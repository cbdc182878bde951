"""How much one must read to be sure of one method: pinned, and only ever to shrink.

``closure`` follows names function by function (see ``closure.py``). Where a change makes one of
these smaller, lower the number here; where it makes one larger, look for what is said twice.
"""

import pytest

from closure import closure

REACH = {  # name, methods that are called -> files, lines
    "SNNL": (("vicinal.losses", "soft_nearest_neighbor_loss"), 13, 1258),
    "graph smoothness": (("vicinal.losses", "graph_smoothness_loss"), 9, 1018),
    "InfoNCE": (("vicinal.losses", "info_nce"), 8, 537),
    "NED": (
        ("vicinal.confidence", "NEDClassifier", ("fit", "predict_proba", "predict")),
        29,
        3703,
    ),
    "kNN": (("vicinal.confidence", "KNNClassifier", ("fit", "predict_proba")), 17, 1595),
    "linear": (("vicinal.confidence", "LinearClassifier", ("fit", "predict_proba")), 5, 532),
    "DkNN": (("vicinal.confidence", "DeepKNN", ("fit", "calibrate", "credibility")), 13, 1379),
    "k^C": (("vicinal.similarity", "GradientKernel", ("gram",)), 29, 3523),
    "ECE": (("vicinal.evaluation", "expected_calibration_error"), 3, 246),
    "page": (("vicinal.report", "save_report"), 15, 1526),
    "audit": (("vicinal.audits", "audit"), 169, 20971),
}


@pytest.mark.parametrize("method", REACH)
def test_what_a_method_reaches_only_shrinks(method):
    place, files, lines = REACH[method]
    found = closure(*place)
    assert found.files <= files
    assert found.lines <= lines


def test_the_whole_library_stays_small_enough_to_know():
    from closure import SOURCE

    assert sum(len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")) <= 49_404
