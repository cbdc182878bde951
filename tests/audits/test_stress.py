"""The kept head under corruptions and attacks, and the layers over checkpoints."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vicinal.audits.entangled_layers import states_of
from vicinal.audits.stress import EXTENTS, FEW, costs
from vicinal.audits.stress_records import StressExample
from vicinal.audits.stressed_inputs import EPSILONS, SEVERITIES, Pixels, sample_of
from vicinal.checks import InputError
from vicinal.confidence.verdicts import VERDICTS
from vicinal.perturbations import corrupt, fgsm
from vicinal.studies import About, Audit, AuditSettings, audit

QUICK = AuditSettings(k=10, network_rows=0, space="raw", target_accuracy=0.9)


def striped(n, seed):
    """Gray images of 10 x 10 with a bright row that tells the class."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = 0.3 * torch.rand(n, 1, 10, 10, generator=rng)
    x[torch.arange(n), 0, 3 * y + 1] += 0.5
    return x.clamp(0, 1), y


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(100, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = striped(300, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def report(net):
    return audit(net, striped(240, 2), striped(160, 3), settings=QUICK)


def test_every_perturbation_has_its_line_with_accuracy_calibration_and_verdicts(report):
    found = report.stress
    names = [(row.name, row.level) for row in found.results]
    assert names == [
        ("clean", None),
        *((name, float(severity)) for name in FEW for severity in SEVERITIES),
        *(("fgsm", epsilon) for epsilon in EPSILONS),
    ]
    for row in found.results:
        assert 0 <= row.accuracy <= 1
        assert row.ece is not None
        assert set(row.verdicts) == set(VERDICTS)
        assert sum(row.verdicts.values()) == pytest.approx(1)
        assert row.wrong_supported <= min(1 - row.accuracy, row.verdicts["supported"]) + 1e-9
    assert "stress" not in report.not_checked
    worst = min(row.accuracy for row in found.results[1:])
    assert found.results[found.worst].accuracy == worst < found.results[0].accuracy


def test_the_numbers_are_those_of_the_saved_head_on_the_inputs_perturbed_by_hand(net, report):
    x, y = striped(160, 3)
    rows = np.sort(np.random.default_rng(0).permutation(160)[: report.stress.rows])
    x, y = x[rows], y[rows]
    draws = torch.Generator().manual_seed(2)  # fog is the third of them
    parts = [corrupt(p, "fog", 5, constants="cifar", generator=draws) for p in x.split(64)]
    foggy = torch.cat(parts)
    for moved, name, level in ((foggy, "fog", 5.0), (fgsm(net, x, y, 8 / 255), "fgsm", 8 / 255)):
        row = next(r for r in report.stress.results if (r.name, r.level) == (name, level))
        with torch.no_grad():
            z, logits = net[:3](moved), net(moved)
        out = report.head.predict(z)
        assert row.accuracy == pytest.approx(
            float((torch.as_tensor(out.label) == y).double().mean())
        )
        assert row.softmax_accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
        assert row.verdicts["unfamiliar"] == pytest.approx((out.verdict == "unfamiliar").mean())


def test_the_worst_case_is_shown_with_the_picture_before_and_after(report):
    examples = report.stress.examples
    assert examples
    for example in examples:
        assert example.label != example.predicted
        before, after = (
            np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))), dtype=int)
            for uri in (example.before, example.after)
        )
        original = striped(160, 3)[0][example.row, 0].numpy() * 255
        assert np.abs(before - original).max() <= 1
        assert np.abs(before - after).max() > 1


def test_a_forged_record_is_refused(report):
    for other in ("data:text/html;base64,AAAA", "javascript:alert(1)"):
        with pytest.raises(InputError, match="PNG"):
            StressExample(0, 0, 1, 0.5, "supported", other, None)
    with pytest.raises(InputError, match="verdict"):
        StressExample(0, 0, 1, 0.5, "fine")
    with pytest.raises(InputError, match="must hold shares of supported, contested"):
        replace(report.stress.results[0], verdicts={"supported": 1.0})
    with pytest.raises(InputError, match="none of its"):
        replace(report.stress, worst=99)
    stranger = replace(report.stress, examples=(StressExample(0, 0, 9, 0.5, "supported"),))
    with pytest.raises(InputError, match="none of its 3 classes"):
        replace(report, stress=stranger)


def test_the_record_goes_through_json_and_the_summary_leaves_the_pictures_out(report):
    assert Audit.from_json(report.to_json()).stress == report.stress
    told = report.summary["stress"]
    assert "examples" not in told
    assert told["results"][0]["name"] == "clean"


def test_rows_that_are_foreign_corrupted_or_attacked_are_told_by_low_credibility(net):
    noise = torch.rand(60, 1, 10, 10, generator=torch.Generator().manual_seed(5))
    found = audit(net, striped(240, 2), striped(160, 3), foreign=noise, settings=QUICK)
    sets = list(dict.fromkeys(d.set for d in found.credibility.detections))
    assert sets == ["foreign", "corrupted", "FGSM, ε = 0.125"]
    assert [h.name for h in found.credibility.histograms] == ["query", *sets]
    by = {(d.set, d.detector): d for d in found.credibility.detections}
    foreign = by["foreign", "familiarity ≤ 0.05"]
    assert foreign.rows == found.unknowns.rows == 30
    assert foreign.flagged / foreign.rows == pytest.approx(found.unknowns.parts[0].flagged)
    assert foreign.false_alarms == pytest.approx(found.unknowns.flagged)
    assert foreign.flagged / foreign.rows > foreign.false_alarms
    hidden = [c for c in found.cases.credibility if c <= 0.05]
    assert by["corrupted", "credibility ≤ 0.05"].false_alarms == pytest.approx(len(hidden) / 160)


def test_the_full_set_has_every_corruption_and_the_worst_case_of_many_attacks(net, monkeypatch):
    monkeypatch.setitem(EXTENTS, "full", EXTENTS["full"]._replace(corruptions=FEW[:1], attacked=6))
    about = About(show_images=False)
    found = audit(net, striped(240, 2), striped(40, 3), stress=True, settings=QUICK, about=about)
    attack = found.stress.attack
    assert attack.rows == 6
    assert attack.worst <= min(attack.fitted, attack.smoothed, attack.transfer) <= attack.clean
    assert found.provenance.config["stress"] == "full"
    assert all(example.before is example.after is None for example in found.stress.examples)
    assert found.stress.results[0].ece is None  # 40 rows are too few


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (lambda x: x[:, 0, 0], r"no images"),
        (lambda x: x[:, :, :6, :6], "6 x 6 pixels are too small"),
    ],
)
def test_inputs_that_are_no_pictures_are_named(inputs, why):
    (x, y), (xq, yq) = striped(90, 2), striped(60, 3)
    width = inputs(x)[0].numel()
    net = nn.Sequential(nn.Flatten(), nn.Linear(width, 4), nn.Linear(4, 3))
    found = audit(net, (inputs(x), y), (inputs(xq), yq), settings=QUICK)
    assert found.stress is None
    assert why in found.not_checked["stress"]


def test_no_stress_is_run_where_none_was_asked_for_or_each_row_would_meet_itself(net):
    data = striped(90, 2)
    asked = audit(net, data, striped(60, 3), stress=False, settings=QUICK)
    alone = audit(net, data, data, settings=QUICK)
    assert "not asked for" in asked.not_checked["stress"]
    assert "its own original" in alone.not_checked["stress"]


def test_normalized_inputs_are_perturbed_as_the_pixels_they_came_from():
    x, y = striped(64, 4)
    x[0, 0, 0, 0], x[1, 0, 0, 0] = 0.0, 1.0  # black and white occur
    x = x.expand(-1, 3, -1, -1)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.25])
    normal = (x - mean[:, None, None]) / std[:, None, None]

    class Source:
        model, train, test = nn.Identity(), normal, normal

    sample = sample_of(Source, np.arange(64), y)
    torch.testing.assert_close(sample.x, x.contiguous(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sample.net(sample.x), normal, atol=1e-5, rtol=0)


def test_a_layer_seen_from_the_pixels_has_a_gradient(net):
    x, _ = striped(4, 6)
    below = Pixels(net, torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).of("2")
    x = x.requires_grad_()
    below(x).sum().backward()
    assert torch.equal(below(x), net[:3](x))
    assert float(x.grad.abs().sum()) > 0


def test_the_cost_is_said_before_and_bounded_by_the_data():
    small = EXTENTS["small"]
    assert small.rows(10_000, 60_000) == 256
    assert small.rows(1000, 3000) * small.passes <= 3000
    assert small.rows(1000, 200) == 100  # enough for an ECE
    lines = costs(AuditSettings(), 900, 300, 3)
    assert [line.partition(":")[0] for line in lines] == [
        "network view", "stress, where the inputs are images", "checkpoints"
    ]  # fmt: skip
    assert "1,600 forward and 300 backward passes of a row, 133 % of embedding" in lines[1]
    full = costs(AuditSettings(stress="full"), 900, 300)[1]
    assert "12 times the cost of embedding the sets; the worst case of 64 rows" in full
    assert "of embedding" not in " ".join(costs(AuditSettings(), None, None))


# ------------------------------------------------------------------ layers over training


def test_checkpoints_give_every_layer_its_history_on_the_same_rows(net, tmp_path):
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(100, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.save(fresh.state_dict(), tmp_path / "step_2.pt")
    torch.save({"epoch": 1, "model": net.state_dict()}, tmp_path / "step_10.pt")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = striped(240, 2)
    y[::12] = (y[::12] + 1) % 3  # without a wrong label nothing is entangled
    found = audit(
        net, (x, y), striped(60, 3), stress=False, settings=QUICK,
        checkpoints=str(tmp_path / "*.pt"), about=About(name="steps"),
    )  # fmt: skip
    for layer in found.layers:
        assert layer.steps == (2, 10)
        assert layer.se > 0
        assert layer.history[1] == pytest.approx(layer.entanglement)  # the same rows and weights
        assert layer.history_se[1] == pytest.approx(layer.se)
    last = found.layers[-1]
    assert last.history[1] < last.history[0]  # classes part as it learns
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_steps_are_the_numbers_in_the_names_or_the_places_of_the_files(tmp_path):
    names = [tmp_path / f"e{n}.pt" for n in (10, 9, 1)]
    assert list(states_of(names)) == [1, 9, 10]
    assert list(states_of(["a.pt", "b.pt"])) == [1, 2]
    assert list(states_of({5: "x", 3: "y"})) == [3, 5]
    assert states_of(None) == {}
    with pytest.raises(InputError, match="no checkpoint matches"):
        states_of(tmp_path / "*.none")


def test_a_checkpoint_of_another_model_is_refused_with_a_count(net, tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "1.pt")
    with pytest.raises(InputError, match="weights match 0 of 4 parameters"):
        audit(net, striped(90, 2), striped(60, 3), checkpoints=[tmp_path / "1.pt"], settings=QUICK)
