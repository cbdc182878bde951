"""The exported graph gives Python's probabilities under onnxruntime, to 1e-4."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from torch.testing import assert_close

from vicinal.confidence import NEDClassifier, TrustHead
from vicinal.confidence.ned.onnx import export_onnx

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


def test_a_zero_row_is_at_cosine_distance_one_in_both(tmp_path):
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    ned = NEDClassifier(k=3, temperature=1.0, metric="cosine").fit(x, [0, 1, 2])
    queries = torch.tensor([[2.0, 1.0], [0.0, 0.0]])
    _, (_, probabilities) = run(export_onnx(ned, tmp_path / "n.onnx"), queries[:1])
    assert_close(torch.from_numpy(probabilities), ned.predict_proba(queries[:1]).float())
