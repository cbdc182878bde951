import numpy as np
import pytest
import torch
from netcal.scaling import TemperatureScaling as NetcalTemperature
from scipy.optimize import minimize_scalar
from sklearn.exceptions import NotFittedError

from vicinal.checks import InputError
from vicinal.confidence import TemperatureScaling, energy, max_softmax


@pytest.fixture
def logits():
    """Logits whose labels were drawn at T = 2.5: overconfident by that factor."""
    gen = np.random.default_rng(0)
    z = gen.normal(size=(3000, 5)) * 4
    p = np.exp(z / 2.5) / np.exp(z / 2.5).sum(1, keepdims=True)
    return z, np.array([gen.choice(5, p=row) for row in p])


def loss(z, y, temperature):
    z = torch.tensor(z) / temperature
    return float(torch.nn.functional.cross_entropy(z, torch.tensor(y)))


def test_the_fit_is_the_minimum_of_the_log_loss(logits):
    z, y = logits
    head = TemperatureScaling().fit(z, y)
    best = minimize_scalar(lambda u: loss(z, y, np.exp(u)), bounds=(-3, 3), method="bounded")
    assert head.temperature_ == pytest.approx(np.exp(best.x), rel=1e-3)
    assert loss(z, y, head.temperature_) <= best.fun + 1e-12
    assert head.temperature_ == pytest.approx(2.5, rel=0.1)
    assert not head.at_bound_


def test_netcal_finds_the_same_probabilities(logits):
    z, y = logits
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    theirs = NetcalTemperature().fit(p, y).transform(p)
    ours = TemperatureScaling().fit(z, y).predict_proba(z)
    np.testing.assert_allclose(ours, theirs, atol=0.01)  # its optimizer stops early


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_probabilities_do_not_depend_on_scale_or_offset_of_the_logits(logits, scale, shift):
    z, y = logits
    got = TemperatureScaling().fit(z * scale + shift * scale, y).predict_proba(z * scale)
    np.testing.assert_allclose(got, TemperatureScaling().fit(z, y).predict_proba(z), atol=1e-6)


def test_scaling_keeps_the_predictions_and_the_kind(logits):
    z, y = logits
    head = TemperatureScaling().fit(torch.tensor(z), torch.tensor(y))
    assert torch.equal(head.predict(torch.tensor(z)), torch.tensor(z).argmax(1))
    np.testing.assert_allclose(head.predict_proba(z).sum(1), 1)
    names = np.array(["e", "d", "c", "b", "a"])
    named = TemperatureScaling(classes=names).fit(z, names[y])
    assert named.temperature_ == head.temperature_
    assert named.score(z, names[y]) == head.score(z, y)


def test_labels_all_ranked_first_or_by_chance_stop_at_a_bound_and_say_so(logits):
    z, _ = logits
    with pytest.warns(UserWarning, match="bound"):
        head = TemperatureScaling().fit(z, z.argmax(1))
    assert head.at_bound_
    assert np.isfinite(head.predict_log_proba(z)).any()
    with pytest.warns(UserWarning, match="bound"):
        assert TemperatureScaling().fit(z, z.argmin(1)).temperature_ > 1e3


def test_equal_logits_keep_temperature_one():
    assert TemperatureScaling().fit(np.ones((4, 3)), [0, 1, 2, 0]).temperature_ == 1


def test_max_softmax_and_energy_are_their_formulas():
    z = torch.tensor([[1.0, 3.0, 0.0], [500.0, 0.0, 0.0]])
    assert torch.allclose(max_softmax(z), z.double().softmax(1).max(1).values)
    assert torch.allclose(energy(z, temperature=2.0), 2 * torch.logsumexp(z.double() / 2, 1))


@pytest.mark.parametrize(
    ("z", "y", "says"),
    [
        (np.zeros((0, 2)), [], "0 sample"),
        (np.array([[1.0, np.nan]]), [0], "rows 0"),
        (np.ones((2, 2)), [0], "one label for each|rows"),
        (np.ones((2, 3)), [0, 5], "2 different labels, but the logits have n_features=3"),
        (np.ones((2, 2)), [0.5, 1.0], "continuous|class labels"),
        (np.ones((2, 2)), [[0.5, 0.5], [1.0, 0.0]], "got soft labels"),
        (np.ones((2, 2)), [1, 1], "one class only"),
    ],
)
def test_wrong_input_is_named(z, y, says):
    with pytest.raises(InputError, match=says):
        TemperatureScaling().fit(z, np.array(y))


def test_other_columns_at_prediction_are_refused(logits):
    with pytest.raises(InputError, match="expecting 5 features"):
        TemperatureScaling().fit(*logits).predict(np.ones((1, 4)))
    with pytest.raises(InputError, match="`classes` has shape"):
        TemperatureScaling(classes=[1, 2, 3]).fit(*logits)
    with pytest.raises(InputError, match="row 0 is"):
        TemperatureScaling(classes=list("abcde")).fit(logits[0][:2], np.array(["z", "a"]))


def test_a_weight_is_a_number_of_copies(logits):
    z, y = logits
    z, y = z[:200], y[:200]
    weight = np.arange(200) % 4
    copies = TemperatureScaling().fit(np.repeat(z, weight, 0), np.repeat(y, weight))
    weighed = TemperatureScaling().fit(z, y, sample_weight=weight)
    assert weighed.temperature_ == pytest.approx(copies.temperature_, rel=1e-10)
    for wrong, says in ((weight[1:], "one number for each"), (weight * 0, "zero for every row")):
        with pytest.raises(InputError, match=says):
            TemperatureScaling().fit(z, y, sample_weight=wrong)


def test_one_logit_stands_for_two_classes(logits):
    z, y = logits[0][:, :1], (logits[1] == 0).astype(int)
    both = np.concatenate([np.zeros_like(z), z], 1)
    names = np.array(["no", "yes"])
    one, two = TemperatureScaling().fit(z, names[y]), TemperatureScaling().fit(both, names[y])
    assert one.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(one.predict_proba(z), two.predict_proba(both))


def test_labels_name_the_columns_in_sorted_order(logits):
    z, y = logits
    head = TemperatureScaling().fit(z, y * 10 + 3)
    assert head.classes_.tolist() == [3, 13, 23, 33, 43]
    assert head.temperature_ == TemperatureScaling().fit(z, y).temperature_


def test_an_unfitted_head_says_so():
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict(np.ones((2, 2)))
