"""Sets that share rows, lack classes or name one class twice: each earns a sentence."""

import numpy as np
import pytest

from vicinal import audit
from vicinal.checks import InputError
from vicinal.studies import AuditSettings


def blobs(n, seed, far=3):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (np.eye(3, 5)[y] * far + rng.normal(size=(n, 5))).astype(np.float32), y


QUICK = AuditSettings(map="none")
SUPPORT, QUERY, CALIB = blobs(150, 0), blobs(60, 1), blobs(90, 2)


def said(**sets):
    return " ".join(audit(support=SUPPORT, query=QUERY, settings=QUICK, **sets).warnings)


def test_calibration_rows_that_are_the_support_would_find_themselves():
    with pytest.raises(InputError, match="calib and support are the same rows: each of them find"):
        said(calib=SUPPORT)
    z, y = np.concatenate([CALIB[0], SUPPORT[0][:30]]), np.concatenate([CALIB[1], SUPPORT[1][:30]])
    assert "30 of 120 calib rows are in the support, too: each of them finds" in said(calib=(z, y))


def test_calibration_rows_that_are_the_query_are_judged_on_what_they_were_fitted_on():
    assert "60 of 60 calib rows are in the query, too: heads are judged" in said(calib=QUERY)
    assert "in the query, too" not in said(calib=CALIB)


def test_known_rows_are_not_foreign():
    for rows in (SUPPORT[0], QUERY[0].astype(np.float64)):
        with pytest.raises(InputError, match="are the same rows: foreign rows belong to none"):
            said(foreign=rows)
    some = np.concatenate([SUPPORT[0][:1], 9 + CALIB[0]])
    assert "1 of 91 foreign rows is in the support, too" in said(foreign=some)


def test_what_is_fitted_on_some_classes_is_said_to_be_for_those():
    z, y = CALIB
    found = said(calib=(z[y < 1], y[y < 1]))
    assert "calib has no row of 2 of 3 classes (1, 2): what is fitted on it" in found
    assert "has no row of" not in said(calib=CALIB)


def test_classes_that_the_support_lacks_are_told_of_with_the_set_that_has_them():
    z, y = CALIB
    found = said(calib=(z, y + 1))
    assert "class '3' occurs 30x in calib but never in support. Nothing is fitted on" in found
    assert "in query" not in found


def test_classes_that_differ_in_blanks_or_capitals_are_told_of():
    z, y = SUPPORT
    words = np.array(["Owl", "cat", "dog"])[y].astype(object)
    words[:20] = [f"{word.lower()} " for word in words[:20]]
    found = " ".join(audit(support=(z, words.astype(str)), settings=QUICK).warnings)
    assert "6 class names differ in blanks or capitals alone: 'Owl' and 'owl '; 'cat'" in found
    fine = audit(support=(z, np.array(["owl", "cat", "dog"])[y]), settings=QUICK).warnings
    assert "blanks" not in " ".join(fine)


def test_a_class_of_one_row_says_nothing_of_how_other_labels_go_wrong():
    """A slip of the pen made a class of its own; it was taken for 14 wrong labels of 600."""
    z, y = blobs(300, 3)
    before = audit(support=(z, y), settings=QUICK).labels.wrong
    y = y.copy()
    y[0] = 17
    after = audit(support=(z, y), settings=QUICK).labels.wrong
    assert abs(after.count - before.count) <= 1
    assert after.high <= before.high + 5
    assert not any(after.pairs) or all(pair.given != 3 for pair in after.pairs)


def test_the_lowest_usual_target_is_not_called_the_accuracy():
    z, y = QUERY
    report = audit(support=SUPPORT, query=(z[:1], y[:1]), settings=QUICK)
    assert report.risk_coverage.chosen.why.startswith("the lowest of 90, 95, 97 and 99 %: half")


def test_the_head_of_the_lowest_loss_is_the_one_whose_loss_is_lowest():
    """A head that may say "never" is not recommended, and not passed over in silence either."""
    for far in (3, 5):  # at 5 even raw votes are right on every row, and lose nothing
        sets = [blobs(n, seed, far=far) for n, seed in ((120, 1), (60, 51))]
        report = audit(support=sets[0], query=sets[1], settings=QUICK)
        losses = {head.title: head.nll for head in report.heads if head.nll is not None}
        best = next(h.title for h in report.heads if h.name == report.recommendation.best)
        claim = f"{best} has the lowest NLL"
        assert claim in report.recommendation.why
        lower = min(losses.values()) < losses[best]
        assert lower == (far == 5)
        assert report.recommendation.why.startswith("Of heads that leave no class") == lower


def test_probabilities_are_not_taken_for_logits_in_silence():
    right = np.eye(3)[QUERY[1]] * 0.9 + 0.1 / 3
    assert "`logits` look like probabilities, each row sums to 1" in said(logits=right)
    assert "look like probabilities" not in said(logits=np.log(right))
    right[4, 0] = np.nan
    with pytest.raises(InputError, match=r"`logits` has NaN in 1 row \(first: 4\)"):
        said(logits=right)


def test_a_word_is_no_list_of_class_names():
    with pytest.raises(InputError, match="must be a list with one name for each class, got 'owl'"):
        said(class_names="owl")
