"""Detectors side by side: each number by hand, and silence where nothing was tested."""

import numpy as np
import pytest
import torch

from vicinal.checks import InputError
from vicinal.evaluation import auroc, fpr_at_tpr, outlier_scores
from vicinal.studies import OutlierStudy, outlier_study


@pytest.fixture
def rows(rng):
    """Two classes, more of the same, strangers far off and strangers in between."""
    centers = torch.tensor([[4.0, 0, 0], [-4.0, 0, 0]])
    labels = torch.arange(120) % 2
    draw = lambda n: torch.randn(n, 3, generator=rng)
    support, inliers = centers[labels] + draw(120), centers[labels] + draw(120)
    return support, labels, inliers, {"far": draw(60) + 15, "between": draw(80)}


def logits_of(z):
    return torch.stack([z[:, 0], -z[:, 0]], 1)


def credibility_of(z):
    return torch.exp(-((z[:, 0].abs() - 4) ** 2))


def test_each_detector_is_scored_on_each_set_as_by_hand(rows):
    support, labels, inliers, outliers = rows
    study = outlier_study(
        support,
        inliers,
        outliers,
        labels=labels,
        logits=logits_of,
        credibility=credibility_of,
        k=10,
    )
    names = ["knn", "ned", "mahalanobis", "max_softmax", "energy", "trust_score", "credibility"]
    names += ["relative_mahalanobis", "vim"]
    assert sorted({d.detector for d in study.detectors}) == sorted(names)
    assert len(study.detectors) == 2 * len(names)
    for name, strangers in outliers.items():
        inside, outside = (
            outlier_scores(
                support, z, labels=labels, logits=logits_of(z), k=10, temperature=study.temperature
            )
            for z in (inliers, strangers)
        )
        for detector, values in inside.items():
            mine = next(d for d in study.detectors if (d.detector, d.outliers) == (detector, name))
            assert mine.auroc == auroc(values, outside[detector])
            assert mine.fpr95 == fpr_at_tpr(values, outside[detector])
    mine = next(d for d in study.detectors if (d.detector, d.outliers) == ("credibility", "far"))
    assert mine.auroc == auroc(-credibility_of(inliers), -credibility_of(outliers["far"]))
    assert study.not_tested == ()


def test_strangers_far_off_are_told_by_distance_and_not_by_softmax(rows):
    support, labels, inliers, outliers = rows
    study = outlier_study(support, inliers, outliers, labels=labels, logits=logits_of, k=10)
    score = {d.detector: d.auroc for d in study.detectors if d.outliers == "far"}
    assert score["knn"] > 0.99
    assert score["max_softmax"] < 0.1  # the farther, the surer
    assert study.best("far").auroc == max(score.values())


def test_credibility_histograms_count_every_row_of_every_set(rows):
    support, _, inliers, outliers = rows
    study = outlier_study(support, inliers, outliers, credibility=credibility_of, k=10, bins=8)
    assert [h.name for h in study.credibility] == ["inliers", "far", "between"]
    assert [sum(h.counts) for h in study.credibility] == [120, 60, 80]
    for h, z in zip(study.credibility, (inliers, *outliers.values()), strict=True):
        assert h.edges == pytest.approx(np.linspace(0, 1, 9))
        assert h.mean == pytest.approx(float(credibility_of(z).mean()), rel=1e-5)
        assert h.counts[0] == int((credibility_of(z) < 1 / 8).sum())


def test_without_an_outlier_set_each_detector_is_listed_as_not_tested(rows):
    support, labels, inliers, _ = rows
    study = outlier_study(support, inliers, labels=labels, k=10)
    gaussian = {"mahalanobis", "relative_mahalanobis", "vim"}
    assert {d.detector for d in study.detectors} == {"knn", "ned", "trust_score", *gaussian}
    assert all(d.auroc is None and d.fpr95 is None for d in study.detectors)
    assert str(study).count("not tested") >= 4
    assert "outliers: no outlier set was given" in study.not_tested
    with pytest.raises(InputError, match="no outlier set 'far' was tested"):
        study.best("far")


def test_an_extra_detector_stands_beside_the_others(rows):
    support, _, inliers, outliers = rows
    study = outlier_study(
        support, inliers, outliers["far"], detectors={"norm": lambda z: z.norm(dim=1)}, k=10
    )
    assert [d.detector for d in study.detectors] == ["knn", "norm"]
    assert study.detectors[1].outliers == "outliers"
    assert study.detectors[1].auroc > 0.99


def test_the_study_goes_through_json_and_prints_its_numbers(rows):
    support, labels, inliers, outliers = rows
    study = outlier_study(
        support, inliers, outliers, labels=labels, credibility=credibility_of, k=10
    )
    assert OutlierStudy.from_json(study.to_json()) == study
    assert f"{study.detectors[0].auroc:.3f}" in str(study)


def test_the_other_reading_of_fpr_can_be_asked_for(rows):
    support, _, inliers, outliers = rows
    study = outlier_study(support, inliers, outliers["between"], k=10, positive="inlier")
    inside = outlier_scores(support, inliers, k=10)["knn"]
    outside = outlier_scores(support, outliers["between"], k=10)["knn"]
    assert study.detectors[0].fpr95 == fpr_at_tpr(inside, outside, positive="inlier")
    assert study.positive == "inlier"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 500}, "`k`=500 but the support has only 120"),
        ({"outliers": torch.ones(3, 2)}, "dimensions"),
        ({"detectors": {"odd": lambda z: z}}, "detector 'odd' must return one score"),
        ({"outliers": torch.full((3, 3), float("nan"))}, "NaN"),
    ],
)
def test_wrong_input_is_answered_in_words(rows, change, words):
    support, _, inliers, outliers = rows
    arguments = {"support": support, "inliers": inliers, "outliers": outliers, "k": 10} | change
    with pytest.raises(InputError, match=words):
        outlier_study(**arguments)
