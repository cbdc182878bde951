"""The exported graph gives Python's probabilities under onnxruntime, to 1e-4."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vicinal.checks import InputError
from vicinal.confidence import NEDClassifier, NEDLinear, TrustHead
from vicinal.confidence.ned.onnx import export_onnx, export_program

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FORMS = [
    {"k": 15},
    {"k": 15, "metric": "euclidean"},
    {"k": 15, "metric": "cosine"},
    {"k": 120, "temperature": 0.4},
    {"k": 15, "temperature": 0.0},
    {"k": 15, "temperature": float("inf")},
    {"k": 15, "sharpness": 3.0, "background": 0.04, "prior": [0.5, 0.2, 0.3]},
    {"k": 30, "bandwidth": "class", "sharpness": "fit", "background": "fit"},
    {"k": 15, "space": "centered-unit"},
    {"k": 15, "space": "standardized", "metric": "euclidean"},
    {"k": 15, "space": "whitened"},
    {"k": 15, "space": "learned", "metric": "cosine"},
]


@pytest.fixture
def cloud(rng):
    y = torch.randint(0, 3, (120,), generator=rng)
    x = torch.randn(120, 5, generator=rng) + 30.0  # far from the origin, where products lose digits
    x[:, 0] += y
    return x, y, torch.randn(40, 5, generator=rng) + 30.0


def run(path, queries):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, session.run(None, {"x": queries.numpy()})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("soft", [False, True])
def test_onnx_equals_python(cloud, tmp_path, form, soft):
    x, y, queries = cloud
    ned = NEDClassifier(**form).fit(x, 0.9 * torch.eye(3)[y] + 0.1 / 3 if soft else y)
    session, (label, probabilities) = run(export_onnx(ned, tmp_path / "ned.onnx"), queries)
    expected = ned.predict_proba(queries)
    alone = session.run(None, {"x": queries[:1].numpy()})[1]  # any number of rows
    assert_close(torch.from_numpy(alone), expected[:1], rtol=0, atol=1e-4)
    assert_close(torch.from_numpy(probabilities), expected, rtol=0, atol=1e-4)
    top = expected.sort(1).values
    clear = (top[:, -1] - top[:, -2]) > 1e-3
    assert_close(torch.from_numpy(label)[clear], expected.argmax(1)[clear])


def test_a_head_exports_its_ned_and_names_its_classes(cloud, tmp_path):
    x, y, queries = cloud
    names = np.array(["ant", "bee", "cow"])[y.numpy()]
    head = TrustHead.fit((x.numpy(), names), ned=NEDClassifier(k=15))
    path = export_onnx(head, tmp_path / "head.onnx")
    session, (label, _) = run(path, queries)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    assert [classes[i] for i in label] == head.ned.predict(queries.numpy()).tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["head.onnx"]


@pytest.mark.parametrize(
    "blend",
    [
        {"weights": (0.7, 0.6)},
        {"weights": (0.0, 1.0), "background": 0.0},
        {"weights": (0.6, 0.5, 0.8), "background": 0.004},
    ],
)
def test_a_head_with_a_linear_part_exports_what_both_say(cloud, tmp_path, blend):
    x, y, queries = cloud
    head = TrustHead.fit((x, y), ned=NEDLinear(NEDClassifier(k=15, space="whitened"), **blend))
    expected = head.predict_proba(queries).float()
    _, (_, probabilities) = run(export_onnx(head, tmp_path / "head.onnx"), queries)
    assert_close(torch.from_numpy(probabilities), expected, rtol=0, atol=1e-4)
    program = export_program(head.model).module()
    assert_close(program(queries)[1], expected, rtol=0, atol=1e-4)
    apart = (expected - head.ned.predict_proba(queries)).abs().max()
    assert apart > 0.01, "the neighbors alone must say something else for this to show anything"


def test_a_zero_row_is_at_cosine_distance_one_in_both(tmp_path):
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    ned = NEDClassifier(k=3, temperature=1.0, metric="cosine").fit(x, [0, 1, 2])
    queries = torch.tensor([[2.0, 1.0], [0.0, 0.0]])
    _, (_, probabilities) = run(export_onnx(ned, tmp_path / "n.onnx"), queries[:1])
    assert_close(torch.from_numpy(probabilities), ned.predict_proba(queries[:1]).float())


@pytest.fixture
def pictures(rng):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    x, y = torch.randn(60, 1, 6, 6, generator=rng), torch.arange(60) % 3
    net.eval()
    with torch.no_grad():
        return net, x, y, net(x)


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_a_network_and_its_head_are_one_graph_of_any_number_of_rows(pictures, tmp_path, metric):
    net, x, y, z = pictures
    ned = NEDClassifier(k=7, metric=metric, space="standardized").fit(z, y)
    expected = ned.predict_proba(z)
    program = export_program(ned, net, x).module()
    path = export_onnx(ned, tmp_path / "all.onnx", net=net, example=x[:1])
    for rows in (x[:1], x[:5], x):
        for label, p in (program(rows), map(torch.from_numpy, run(path, rows)[1])):
            assert_close(p, expected[: len(rows)], rtol=0, atol=1e-4)
            assert_close(label, p.argmax(1))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_the_differentiable_head_exports_behind_a_network(pictures, full, metric):
    net, x, y, z = pictures
    ned = NEDClassifier(k=7, metric=metric, space="centered-unit").fit(z, y)
    whole = nn.Sequential(net, ned.module(full_support=full))
    program = torch.export.export(whole, (x[:2],), dynamic_shapes=({0: torch.export.Dim("n")},))
    for rows in (x[:1], x[:9]):
        assert_close(program.module()(rows), whole(rows), rtol=1e-4, atol=1e-5)


def test_the_differentiable_head_is_an_onnx_graph_too(pictures, tmp_path):
    net, x, y, z = pictures
    ned = NEDClassifier(k=7).fit(z, y)
    whole = nn.Sequential(net, ned.module())
    any_rows = ({0: torch.export.Dim("n")},)
    program = torch.onnx.export(
        whole, (x[:2],), dynamo=True, dynamic_shapes=any_rows, verbose=False
    )
    program.save(tmp_path / "log.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "log.onnx"))
    name = session.get_inputs()[0].name
    (log_p,) = session.run(None, {name: x[:9].numpy()})
    assert_close(torch.from_numpy(log_p).exp(), ned.predict_proba(z[:9]), rtol=0, atol=1e-4)


def test_a_network_of_another_width_is_refused(pictures, tmp_path):
    net, x, y, z = pictures
    ned = NEDClassifier(k=7).fit(z[:, :5], y)
    with pytest.raises(InputError, match=r"rows of shape \(16,\), but the support has 5"):
        export_onnx(ned, tmp_path / "no.onnx", net=net, example=x)
    with pytest.raises(InputError, match="`net` needs an `example`"):
        export_program(ned, net)
    assert list(tmp_path.iterdir()) == []
