"""Heads under perturbed inputs, and whether an attack that fails says anything."""

import contextlib
import importlib
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from vicinal.audits.attacks import _surrogates
from vicinal.checks import InputError
from vicinal.confidence import KNNClassifier, NEDClassifier
from vicinal.evaluation import expected_calibration_error, mean_corruption_error, noise_floor
from vicinal.perturbations import corrupt, pgd
from vicinal.studies import AttackAudit, PerturbationReport, attack_audit, robustness_report

FORBIDDEN = re.compile("robust|secure", re.IGNORECASE)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def digits():
    """A small network on the bundled digits: its trunk, its own last layer, and held-out rows."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=seeded(1))
    x, y = x[order], y[order]
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16), nn.Tanh())
    net = nn.Sequential(trunk, nn.Linear(16, 10))
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=seeded(p.numel())) / p.shape[-1] ** 0.5
    rate, velocity = 0.1, [torch.zeros_like(p) for p in net.parameters()]
    for step in range(300):
        batch = torch.randint(900, (64,), generator=seeded(step))
        loss = F.cross_entropy(net(x[batch]), y[batch])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        for p, v, g in zip(net.parameters(), velocity, gradients, strict=True):
            v.mul_(0.9).add_(g)
            p.data -= rate * v
    return trunk, net, (x[:900], y[:900]), (x[900:1200], y[900:1200]), (x[1200:1320], y[1200:1320])


@pytest.fixture(scope="module")
def ned(digits):
    trunk, _, _, (x, y), _ = digits
    return NEDClassifier(k=30).fit(trunk(x).detach(), y)


# ------------------------------------------------------------------ robustness_report


@pytest.fixture(scope="module")
def report(digits, ned):
    trunk, net, _, (x, y), (test, labels) = digits
    heads = {
        "softmax": net[1],
        "ned": ned,
        "knn": KNNClassifier(k=10).fit(trunk(x).detach(), y),
        "certain": lambda z: F.one_hot(net[1](z).argmax(1), 10).double(),
    }
    return robustness_report(
        heads,
        test,
        labels,
        embed=trunk,
        credibility=lambda images: images.flatten(1).mean(1),
        corruptions=("gaussian_noise", "contrast"),
        severities=(1, 3, 5),
        sources={"softmax": net, "ned": nn.Sequential(trunk, ned.module())},
        attacks=("fgsm", "pgd"),
        epsilons=(0.05, 0.2),
        generator=seeded(4),
    )


def test_there_is_one_row_for_each_head_and_perturbation(report):
    cases = 1 + 2 * 3 + 2 * 2 * 2
    assert len(report.rows) == 4 * cases
    assert len({(r.head, r.perturbation, r.level, r.source) for r in report.rows}) == 4 * cases
    assert report.not_tested == ()


def test_a_row_is_what_the_parts_say_by_hand(report, digits, ned):
    trunk, _, _, _, (test, labels) = digits
    row = report.row("ned", "contrast", 3)
    moved = corrupt(test, "contrast", 3)
    p = torch.as_tensor(ned.predict_proba(trunk(moved).detach()))
    confidence, correct = p.max(1).values, p.argmax(1) == labels
    assert row.accuracy == pytest.approx(float(correct.double().mean()))
    assert row.ece == pytest.approx(expected_calibration_error(confidence, correct))
    assert row.noise_floor == pytest.approx(noise_floor(confidence))
    assert row.credibility == pytest.approx(float(moved.flatten(1).mean(1).mean()), rel=1e-5)


def test_a_head_that_is_always_certain_has_the_ece_of_its_errors(report):
    for row in report.rows:
        if row.head == "certain":
            assert row.ece == pytest.approx(1 - row.accuracy)
            assert row.noise_floor == 0


def test_attacks_hurt_the_head_they_are_made_against_most(report):
    for epsilon in (0.05, 0.2):
        own = report.row("softmax", "pgd", epsilon, "softmax").accuracy
        assert own <= report.row("softmax", "pgd", epsilon, "ned").accuracy
        assert own < report.row("softmax", "clean").accuracy


def test_curves_start_at_the_clean_images_and_fall(report):
    curve = report.curve("softmax", "gaussian_noise")
    assert curve.levels == (0, 1, 3, 5)
    assert curve.accuracy[0] == report.row("softmax", "clean").accuracy
    assert curve.accuracy[0] > curve.accuracy[-1]
    attack = report.curve("knn", "pgd", source="ned")
    assert attack.levels == (0, 0.05, 0.2)
    assert attack.accuracy[0] > attack.accuracy[-1]
    with pytest.raises(InputError, match="`source` must name one of ned, softmax"):
        report.curve("knn", "pgd")


def test_corruption_errors_are_over_the_baselines_and_the_baselines_are_one(report):
    assert report.mean_corruption_error("softmax") == pytest.approx(1)
    assert report.mean_corruption_error("softmax", relative=True) == pytest.approx(1)
    errors = {
        head: {
            "clean": 1 - report.row(head, "clean").accuracy,
            **{
                name: [1 - report.row(head, name, s).accuracy for s in (1, 3, 5)]
                for name in ("gaussian_noise", "contrast")
            },
        }
        for head in ("knn", "softmax")
    }
    for relative in (False, True):
        expected = mean_corruption_error(errors["knn"], errors["softmax"], relative)
        assert report.mean_corruption_error("knn", relative) == pytest.approx(expected)


def test_the_report_goes_through_json_and_back(report):
    assert PerturbationReport.from_json(report.to_json()) == report


def test_the_printed_table_has_every_case_and_makes_no_promises(report):
    text = str(report)
    assert text.count("\n") >= 1 + 2 * 3 + 2 * 2 * 2
    assert "gaussian_noise 5" in text
    assert "pgd 0.2 on ned" in text
    assert "mCE" in text
    assert not FORBIDDEN.search(text + repr(report) + report.to_json())


def test_the_same_seed_gives_the_same_report(digits):
    _, net, _, _, (test, labels) = digits

    def ask(seed):
        return robustness_report(
            {"softmax": net}, test, labels, corruptions=("fog",), severities=(2, 5),
            sources={"net": net}, attacks=("pgd",), epsilons=(0.1,), generator=seeded(seed),
        )  # fmt: skip

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_what_was_not_asked_for_is_listed_as_not_tested(digits):
    _, net, _, _, (test, labels) = digits
    report = robustness_report({"net": net}, test, labels, corruptions=())
    assert [words.split(":")[0] for words in report.not_tested] == [
        "corruptions", "attacks", "credibility",
    ]  # fmt: skip
    assert "not tested: attacks" in str(report)


def test_a_baseline_that_loses_nothing_leaves_no_ratio_but_words(digits):
    _, net, _, _, (test, labels) = digits
    blind = lambda x: F.one_hot(labels, 10).double()
    report = robustness_report(
        {"blind": blind, "net": net}, test, labels, corruptions=("contrast",), severities=(1,)
    )
    assert report.mean_corruption_error("net") is None
    assert "makes no error under 'contrast'" in report.notes[0]
    assert "see below" in str(report)


def test_bytes_are_read_as_images_in_the_unit_range(digits):
    _, net, _, _, (test, labels) = digits
    from_bytes = robustness_report(
        {"net": net}, (test * 255).round().byte(), labels, corruptions=()
    )
    assert from_bytes.row("net", "clean").accuracy > 0.8


def test_classes_may_have_names(digits):
    trunk, _, _, (x, y), (test, labels) = digits
    names = np.array([f"digit {c}" for c in range(10)])
    head = KNNClassifier(k=5).fit(trunk(x).detach(), names[y])
    named = robustness_report({"knn": head}, test, names[labels], embed=trunk, corruptions=())
    assert named.row("knn", "clean").accuracy > 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": {}}, "`heads` is empty"),
        ({"heads": {"a": 3}}, "head 'a' must be a fitted classifier"),
        ({"heads": {"a": lambda x: torch.ones(len(x), 10)}}, "must sum to 1"),
        ({"heads": {"a": lambda x: torch.ones(3, 10)}}, "must give probabilities"),
        ({"baseline": "b"}, "`baseline` must be one of 'net'"),
        ({"labels": torch.zeros(3)}, "same number of rows"),
        ({"credibility": lambda x: x}, "one number for each of the 120 images"),
        ({"attacks": ("cw",), "sources": {"net": nn.Flatten()}}, "`attacks` must be one of"),
        ({"corruptions": ("fogg",)}, "Did you mean 'fog'"),
    ],
)
def test_wrong_input_is_answered_in_words(digits, change, words):
    _, net, _, _, (test, labels) = digits
    arguments = {"heads": {"net": net}, "images": test, "labels": labels} | change
    with pytest.raises(InputError, match=words):
        robustness_report(**arguments)


# ------------------------------------------------------------------ attack_audit


def test_the_worst_case_is_the_examples_that_survive_everything(digits, ned):
    trunk, net, _, _, (test, labels) = digits
    audit = attack_audit(
        ned, test, labels, 0.1, net=trunk, proxy=net, steps=10, queries=0, generator=seeded()
    )
    assert audit.square_only is None
    every = [audit.clean, audit.fitted, audit.smoothed, audit.transfer]
    assert audit.worst_case == tuple(all(example) for example in zip(*every, strict=True))
    assert audit.worst_case_accuracy == pytest.approx(np.mean(audit.worst_case))
    assert audit.worst_case_accuracy <= min(
        audit.fitted_accuracy, audit.smoothed_accuracy, audit.transfer_accuracy
    )
    assert audit.clean_accuracy > 0.9 > audit.fitted_accuracy
    assert AttackAudit.from_json(audit.to_json()) == audit


def test_the_white_box_figure_is_that_of_an_attack_through_the_module(digits, ned):
    trunk, _, _, _, (test, labels) = digits
    audit = attack_audit(
        ned, test, labels, 0.1, net=trunk, attack="pgd", loss="cross_entropy", steps=10, restarts=1,
        queries=0, generator=seeded(3),
    )  # fmt: skip
    model = nn.Sequential(trunk, ned.module())
    moved = pgd(model, test, labels, 0.1, steps=10, generator=seeded(3))
    right = (model(moved).argmax(1) == labels) & torch.tensor(audit.clean)
    assert audit.fitted_accuracy == pytest.approx(float(right.double().mean()), abs=0.02)


@pytest.fixture(scope="module")
def saturated(digits, ned):
    """The fitted temperature over 1000: flat almost everywhere, and no better for it."""
    trunk, _, _, (x, y), _ = digits
    return NEDClassifier(k=30, temperature=ned.temperature_ / 1000).fit(trunk(x).detach(), y)


def test_a_saturated_head_is_caught_by_transfer(digits, ned, saturated):
    trunk, net, _, _, (test, labels) = digits
    plainly = {"attack": "pgd", "loss": "cross_entropy", "steps": 10, "queries": 0}
    sharp = attack_audit(saturated, test, labels, 0.1, net=trunk, proxy=net, **plainly)
    plain = attack_audit(ned, test, labels, 0.1, net=trunk, proxy=net, **plainly)
    assert sharp.masked_gradients
    assert "masks its gradients" in str(sharp)
    assert sharp.transfer_only > 0
    assert sharp.fitted_accuracy > plain.fitted_accuracy + 0.1
    assert sharp.worst_case_accuracy < sharp.fitted_accuracy


def test_a_saturated_head_hides_nothing_from_the_default_audit(digits, saturated):
    """Against a long attack on the margin of all support rows, and AutoAttack where it is."""
    trunk, _, _, _, (test, labels) = digits
    test, labels = test[:100], labels[:100]
    audit = attack_audit(saturated, test, labels, 0.1, net=trunk, queries=200, generator=seeded())
    model = nn.Sequential(trunk, saturated.module(full_support=True)).eval()
    moved = [
        pgd(model, test, labels, 0.1, loss="margin", steps=100, restarts=3, generator=seeded(1))
    ]
    with contextlib.suppress(ImportError):
        oracle = importlib.import_module("pyautoattack").AutoAttack(model, eps=0.1, seed=0)
        moved.append(oracle.run_standard_evaluation(test, labels)[0])
    left = torch.tensor(audit.clean)
    for images in moved:
        read = torch.as_tensor(saturated.predict_proba(trunk(images).detach())).argmax(1)
        left &= read == labels
    assert sum(audit.worst_case) <= int(left.sum()) + 2


def test_square_finds_what_gradients_do_not(digits, ned):
    """One step of a useless size leaves all; the attack without gradients does not care."""
    trunk, _, _, _, (test, labels) = digits
    weak = {"net": trunk, "attack": "pgd", "steps": 1, "restarts": 1, "loss": "cross_entropy"}
    blind = attack_audit(ned, test[:40], labels[:40], 0.1, queries=0, generator=seeded(), **weak)
    asked = attack_audit(ned, test[:40], labels[:40], 0.1, queries=200, generator=seeded(), **weak)
    assert asked.square_only > 0
    assert sum(asked.worst_case) == sum(blind.worst_case) - asked.square_only


def test_the_warm_surrogate_does_not_follow_the_fitted_temperature(ned, saturated):
    own, warm = _surrogates(saturated, 1.0)
    assert own.parameters_.temperature == saturated.temperature_
    assert warm.parameters_.temperature == _surrogates(ned, 1.0)[1].parameters_.temperature
    scale = float(ned.loo_neighborhood().distances.mean())
    assert warm.parameters_.temperature == pytest.approx(scale, rel=1e-4)
    assert warm.k == len(warm.support)


def test_without_a_proxy_transfer_is_not_tested_and_the_note_says_so(digits, ned):
    trunk, _, _, _, (test, labels) = digits
    audit = attack_audit(ned, test[:20], labels[:20], 0.1, net=trunk, attack="fgsm", queries=20)
    assert audit.transfer is None
    assert audit.masked_gradients is None
    assert "not tested" in str(audit)


def test_a_plain_vote_is_attacked_through_its_surrogate(digits):
    trunk, net, _, (x, y), (test, labels) = digits
    knn = KNNClassifier(k=10).fit(trunk(x).detach(), y)
    audit = attack_audit(
        knn, test, labels, 0.15, net=trunk, proxy=net, attack="bim", steps=10, queries=0
    )
    assert audit.clean_accuracy > 0.9
    assert audit.worst_case_accuracy < 0.6
    assert not FORBIDDEN.search(str(audit) + repr(audit))


def test_a_head_is_attacked_on_embeddings_without_a_network(digits, ned):
    trunk, _, _, _, (test, labels) = digits
    rows = trunk(test).detach()
    audit = attack_audit(ned, rows, labels, 0.5, bounds=None, norm="l2", steps=10, queries=20)
    assert audit.worst_case_accuracy < audit.clean_accuracy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": -1.0}, "`epsilon` must be a finite number ≥ 0"),
        ({"attack": "cw"}, "`attack` must be one of"),
        ({"head": nn.Linear(2, 2)}, "is not fitted"),
        ({"y": torch.full((120,), 11)}, "a label that the head does not know"),
        ({"loss": "hinge"}, "`loss` must be one of 'cross_entropy', 'margin', 'both'"),
        ({"smoothing": 0.0}, "`smoothing` must be a finite number above 0"),
    ],
)
def test_wrong_input_to_the_audit_is_answered_in_words(digits, ned, change, words):
    trunk, _, _, _, (test, labels) = digits
    arguments = {"head": ned, "x": test, "y": labels, "epsilon": 0.1, "net": trunk} | change
    with pytest.raises(InputError, match=words):
        attack_audit(**arguments)


def test_a_head_without_gradients_and_support_is_sent_elsewhere(digits):
    class Forest:
        classes_ = np.arange(10)

    _, _, _, _, (test, labels) = digits
    with pytest.raises(InputError, match=r"without gradients.*perturbations\.pgd"):
        attack_audit(Forest(), test, labels, 0.1)
