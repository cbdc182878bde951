"""Golden runs: what the main job, saved heads and losses said when they were last looked at.

``python tests/golden/record.py`` writes them anew; a changed file is a changed behavior and is
named in CHANGELOG.md. ``tests/test_golden.py`` makes every run again and compares.
"""

import csv
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import vicinal  # noqa: E402
from losses.catalog import CATALOG  # noqa: E402

VOLATILE = ("created", "seconds", "versions", "version", "command", "reproduce", "config", "git")
VOLATILE += ("model_fingerprint", "fingerprint")  # of weights trained here
VOLATILE += ("map_preservation", "density")  # no two machines round alike: a descent, edges of bars


def digits(rows=None):
    data = load_digits()
    order = np.random.default_rng(3).permutation(len(data.data))[:rows]
    return (data.data[order] / 16).astype(np.float32), data.target[order]


def arrays():
    """Support, query and calibration rows; names for classes, three labels wrong, one unknown."""
    x, y = digits()
    names = np.array([f"digit {c}" for c in range(10)])[y]
    names[[5, 17, 40]] = names[[6, 18, 41]]
    names[700] = "no digit"
    return (x[:600], names[:600]), (x[600:1000], names[600:1000]), (x[1000:1300], names[1000:1300])


def network():
    """A small perceptron of class means, made from a formula and in float64.

    Trained weights, or rows that say little of their class, would be rounded by machine.
    """
    x, y = load_digits(return_X_y=True)
    means = torch.stack([torch.from_numpy(x[y == c] / 16).mean(0) for c in range(10)])
    means = means - means.mean(0)
    eye, zeros = torch.eye(10, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    layers = torch.nn.Sequential()
    for name, weight, bias in (
        ("first", torch.cat([means, -means]) / 2, -torch.cat([means, -means]).square().sum(1) / 4),
        ("embedding", torch.cat([eye, -eye], 1), zeros[:10]),
        ("classes", 9 * eye, zeros[:10]),
    ):
        layer = torch.nn.Linear(*weight.shape[::-1], dtype=torch.float64)
        layer.weight.data, layer.bias.data = weight, bias
        layers.add_module(name, layer)
        if name != "classes":
            act = torch.nn.ReLU() if name == "first" else torch.nn.Tanh()
            layers.add_module("relu" if name == "first" else "act", act)
    return layers.eval()


def audit_runs():
    """Name -> (summary, samples, suspects, head) of every kind of audit."""
    from vicinal.cli.__main__ import main

    support, query, calib = arrays()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as parent:
        warnings.simplefilter("ignore")
        folder = f"{parent}/golden"  # runs are named by it
        Path(folder).mkdir()
        assert main(["demo", "-o", f"{folder}/demo", "--quiet"]) == 0
        files = {}
        for name, (x, y) in (("support", support), ("query", query), ("calib", calib)):
            files[name] = f"{folder}/{name}.npz"
            np.savez(files[name], embeddings=x, labels=y)
        common = ["--quiet", "--seed", "1"]
        split = ["audit", files["support"], files["query"], *common]
        assert main([*split, "-o", f"{folder}/arrays"]) == 0
        assert main([*split, "--calib", files["calib"], "-o", f"{folder}/calib"]) == 0
        assert main(["audit", files["support"], "-o", f"{folder}/alone", *common]) == 0
        for name in ("demo", "arrays", "calib", "alone"):
            yield name, run_files(Path(folder) / name), vicinal.load(f"{folder}/{name}/trust.vic")
        x, y = digits(700)
        x, y = torch.from_numpy(x).double(), torch.from_numpy(y)
        found = vicinal.audit(network(), (x[:400], y[:400]), (x[400:], y[400:]))
        found.head.save(f"{folder}/model.vic")
        yield "model", saved(found, Path(folder)), vicinal.load(f"{folder}/model.vic")


def run_files(folder):
    """The three files of a run, without what changes from day to day."""
    read = {name: (folder / name).read_text() for name in ("samples.csv", "suspects.csv")}
    return {"summary.json": stable(json.loads((folder / "summary.json").read_text())), **read}


def saved(audit, folder):
    """The same three files of an audit made in Python."""
    from vicinal.cli.run_folder import write_run

    (folder / "model").mkdir()
    write_run(audit, folder / "model", {})
    return run_files(folder / "model")


def stable(value):
    """A summary without times, versions and paths."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    return [stable(v) for v in value] if isinstance(value, list) else value


def head_facts(head):
    """What a saved head says of twenty rows."""
    rows = head.ned.support_.rows
    probe = (rows[:20] * 0.7 + rows[20:40] * 0.3).numpy()
    out = head.predict(probe)
    return {
        "label": [str(v) for v in out.label],
        "confidence": out.confidence.tolist(),
        "credibility": out.credibility.tolist(),
        "verdict": out.verdict.tolist(),
        "threshold": min(head.standards.threshold, 9.0),
        "temperature": head.ned.temperature_,
        "reason": out.reason,
    }


def loss_facts():
    """Value and gradient of every loss of the catalog at two sizes and in two precisions."""
    facts = {}
    for rows in (24, 700):
        grid = torch.arange(rows * 3, dtype=torch.float64).view(rows, 3)
        y = (torch.arange(rows) * 7) % 3
        for name, call, _ in CATALOG:
            for dtype in (torch.float32, torch.float64):
                x = (grid * 0.73).sin().mul(2).to(dtype).requires_grad_()
                value = call(x, y)
                (slope,) = torch.autograd.grad(value, x)
                kind = str(dtype).removeprefix("torch.")
                entries = slope[[0, rows // 2, -1]].flatten().tolist()
                facts[f"{name}/{rows}/{kind}"] = [value.item(), float(slope.norm()), *entries]
    return facts


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def main():
    for name, files, head in audit_runs():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        text = json.dumps(files["summary.json"], indent=1, ensure_ascii=False)
        (folder / "summary.json").write_text(text + "\n")
        (folder / "samples.csv").write_text(files["samples.csv"])
        (folder / "suspects.csv").write_text(files["suspects.csv"])
        facts = json.dumps(head_facts(head), indent=1, ensure_ascii=False)
        (folder / "head.json").write_text(facts + "\n")
    (HERE / "losses.json").write_text(json.dumps(loss_facts(), indent=0) + "\n")
    x, y = digits(120)
    small = vicinal.confidence.TrustHead.fit((x[:80], y[:80]), (x[80:], y[80:]))
    small.save(HERE / "kept.vic")
    (HERE / "kept.json").write_text(json.dumps(head_facts(small), indent=1) + "\n")


if __name__ == "__main__":
    main()
