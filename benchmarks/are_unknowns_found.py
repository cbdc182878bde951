"""Are unknown inputs found: each part of familiarity, their combination and rivals, pair by pair?

A support of labeled rows, fresh rows of the same kind, and foreign rows: AUROC, FPR95 (fresh rows
flagged where 95 % of the foreign ones are), and for the head that is saved what share of foreign
rows it calls unfamiliar and supported, and of fresh rows unfamiliar, at promises of 1, 5 and 10 %.
Nothing is fitted on foreign rows. Five splits; means and standard errors over the splits.

Where a network is audited its layers, DkNN and the energy of its logits are parts as well:
``models`` has the verdicts of an audit of small networks beside those of their embeddings alone,
foreign rows among the query under a class that the support lacks.

``--data`` has the folders of :func:`pairs`; ``features`` in it may hold 1280-d features of pictures
by one pretrained network (``cifar_train.npz``, ``cifar_test.npz``, ``fashion.npz``,
``notmnist.npz``, keys ``f`` and ``y``). Without it only scikit-learn's digits are asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from torch import nn

from benchmarks.quality.sets import idx
from benchmarks.runner import save
from vicinal.audits import AuditSettings, audit
from vicinal.confidence import NEDClassifier, TrustHead
from vicinal.confidence.familiarity import PARTS
from vicinal.evaluation import auroc, fpr_at_tpr

SUPPORT, FRESH, FOREIGN, SPLITS = 800, 300, 300, 5
PROMISES = (0.01, 0.05, 0.1)
IMAGES = {"mnist": "train", "fashion_mnist": "train", "notmnist": "t10k"}
Rows = Any
Group = tuple[str, Rows, Rows, Rows, dict[str, Rows]]  # name, support, codes, fresh, foreign sets


def pairs(data: Path | None, seed: int) -> Iterator[Group]:
    """Every support with its fresh rows and its foreign sets."""
    rng = np.random.default_rng(seed)
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    yield grouped("digits 0-4", x[y < 5], y[y < 5], {"digits 5-9": x[y >= 5]}, rng)
    if data is None:
        return
    images = {name: idx(data / name, split, None) for name, split in IMAGES.items()}
    some = {name: rng.permutation(len(y))[:5000] for name, (_, y) in images.items()}
    images = {name: (x[some[name]], y[some[name]]) for name, (x, y) in images.items()}
    packed = np.load(data / "omniglot" / "omniglot_28px.npz")["images"]
    drawn = packed.reshape(len(packed), -1).astype(np.float32) / 255
    alphabet = np.load(data / "omniglot" / "omniglot_105px.npz")["alphabet"]
    known = np.isin(alphabet, rng.permutation(50)[:5])
    others = {"other alphabets": drawn[~known], "notmnist": images["notmnist"][0]}
    yield grouped("omniglot, 5 alphabets", drawn[known], alphabet[known], others, rng)
    for name, (x, y) in images.items():
        foreign = {n: z for n, (z, _) in images.items() if n != name} | {"omniglot": drawn}
        yield grouped(f"{name} pixels", x, y, foreign, rng)
        embed = trained(x[:2500], y[:2500], seed)
        far = {n: embed(z[rng.permutation(len(z))[:FOREIGN]]) for n, z in foreign.items()}
        yield grouped(f"{name} net", embed(x[2500:]), y[2500:], far, rng)
    yield from features(data, rng)


def features(data: Path, rng: np.random.Generator) -> Iterator[Group]:
    """Birds, and where they are at hand CIFAR, clothes and letters, as one pretrained net sees."""
    folder = data / "cub200_lite0"
    birds, other = (np.load(folder / f"{p}_classes_1280.npz") for p in ("train", "test"))
    x, y = birds["features"].astype(np.float32), birds["label"]
    mine, rest = np.isin(y, rng.permutation(100)[:50]), other["features"].astype(np.float32)
    foreign, more = {"other birds": rest}, data / "features"
    if more.is_dir():
        seen = {p.stem: np.load(p) for p in more.glob("*.npz")}
        train, labels = seen["cifar_train"]["f"].astype(np.float32), seen["cifar_train"]["y"]
        sets = {n: seen[n]["f"].astype(np.float32) for n in ("fashion", "notmnist")}
        yield grouped("cifar features", train, labels, sets | {"birds": rest}, rng)
        foreign["cifar"] = seen["cifar_test"]["f"].astype(np.float32)
    yield grouped("50 birds features", x[mine], y[mine], foreign, rng)


def grouped(name: str, x: Rows, y: Rows, foreign: dict[str, Rows], rng: Any) -> Group:
    order = rng.permutation(len(x))
    cut = min(SUPPORT, int(0.7 * len(x)))
    support, fresh = order[:cut], order[cut : cut + FRESH]
    far = {n: z[rng.permutation(len(z))[:FOREIGN]] for n, z in foreign.items()}
    return name, x[support], np.unique(y[support], return_inverse=True)[1], x[fresh], far


def network(x: Rows, y: Rows, seed: int) -> nn.Sequential:
    """A small classifier of pictures, convolutional where they have 28 x 28 pixels."""
    torch.manual_seed(seed)
    count, codes = int(y.max()) + 1, torch.from_numpy(y.astype(np.int64))
    body = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 49, 64)]  # fmt: skip
    if x.shape[1] != 784:
        body = [nn.Flatten(), nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64)]
    net, inputs = nn.Sequential(*body, nn.ReLU(), nn.Linear(64, count)), pictures(x)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(6 if x.shape[1] == 784 else 30):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[rows]), codes[rows]).backward()
            optimizer.step()
    return net.eval()


def pictures(x: Rows) -> torch.Tensor:
    side = round(x.shape[1] ** 0.5)
    return torch.from_numpy(np.ascontiguousarray(x)).view(-1, 1, side, side)


def trained(x: Rows, y: Rows, seed: int) -> Callable[[Rows], Rows]:
    """A small convolutional classifier's last layer but one."""
    net = network(x, y, seed)[:-2]

    @torch.no_grad()
    def embed(z: Rows) -> Rows:
        return net(pictures(np.asarray(z))).numpy()

    return embed


def models(data: Path | None, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Networks audited on the rows they were trained on: all classes, and six of ten."""
    rng = np.random.default_rng(seed)
    digits = load_digits()
    sets = {"digits": ((digits.data / 16).astype(np.float32), digits.target)}
    if data is not None:
        sets |= {name: idx(data / name, split) for name, split in IMAGES.items()}
    for name, (x, y) in sets.items():
        known = np.isin(y, rng.permutation(10)[:6])
        codes = np.unique(y[known], return_inverse=True)[1]
        foreign = {"the other four": x[~known]}
        yield from model_asked(f"six of {name}", x[known], codes, foreign, rng)
        if name != "digits":
            foreign = {n: z for n, (z, _) in sets.items() if n not in (name, "digits")}
            yield from model_asked(name, x, y, foreign, rng)


def model_asked(
    name: str, x: Rows, y: Rows, foreign: dict[str, Rows], rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, float]]]:
    """What an audit of the network and one of its embeddings say of fresh and foreign rows."""
    order = rng.permutation(len(x))[: SUPPORT + FRESH]
    cut = min(SUPPORT, int(0.7 * len(order)))
    mine, fresh = order[:cut], order[cut:]
    net = network(x[mine], y[mine], int(rng.integers(1000)))
    settings = AuditSettings(network_rows=0, map="none")
    train, body = (pictures(x[mine]), torch.from_numpy(y[mine].astype(np.int64))), net[:-1]
    for other, z in foreign.items():
        far = z[rng.permutation(len(z))[:FOREIGN]]
        rows, known = pictures(np.concatenate([x[fresh], far])), np.arange(len(fresh) + len(far))
        known = known < len(fresh)
        labels = np.concatenate([y[fresh].astype(np.int64), np.full(len(far), 99)])
        with torch.no_grad():
            seen = body(train[0]).numpy(), body(rows).numpy()
        test, found = (rows, torch.from_numpy(labels)), dict[str, float]()
        audits = {
            "model": audit(net, train, test, settings=settings, stress=False),
            "embeddings": audit(support=(seen[0], train[1].numpy()), query=(seen[1], labels),
                                settings=settings),
        }  # fmt: skip
        for how, record in audits.items():
            p, said = np.array(record.cases.familiarity), np.array(record.cases.verdict)
            found[f"AUROC, {how}"] = auroc(-p[known], -p[~known])
            found[f"fresh flagged, {how}"] = share(p[known] <= settings.unfamiliar)
            found[f"unfamiliar, {how}"] = share(p[~known] <= settings.unfamiliar)
            found[f"supported, {how}"] = share(said[~known] == "supported")
        yield f"{name} / {other}", found


def asked(group: Group) -> Iterator[tuple[str, dict[str, float]]]:
    """Every number of one support, for each of its foreign sets."""
    name, x, y, fresh, foreign = group
    head = TrustHead.fit((x, y), ned=NEDClassifier(sharpness="fit", background="fit"))
    rivals = {
        "kNN, k=50": lambda z: head.ned.kneighbors(z, min(50, head.ned.k_)).distances[:, -1],
    }
    forest = IsolationForest(random_state=0).fit(x)
    local = LocalOutlierFactor(novelty=True).fit(x)
    rivals |= {"isolation forest": lambda z: -forest.score_samples(z),
               "local outlier factor": lambda z: -local.score_samples(z)}  # fmt: skip
    familiar, inside = head.standards.familiarity, scores(head, fresh)
    assert familiar is not None
    p = familiar.p_values(inside)
    rates = {f"fresh flagged at {rate:g}": share(p <= rate) for rate in PROMISES}
    near = {rival: score(fresh) for rival, score in rivals.items()}
    for other, z in foreign.items():
        far, out = scores(head, z), head.predict(z)
        found = dict(rates)
        columns = {part: (inside[:, j], far[:, j]) for j, part in enumerate(PARTS)}
        columns["cosine kNN, k=5"] = columns["direction_5"]  # the support is all anchors here
        columns["combined"] = (-p, -familiar.p_values(far))
        columns |= {rival: (near[rival], score(z)) for rival, score in rivals.items()}
        for part, (low, high) in columns.items():
            found[f"AUROC {part}"] = auroc(low, high)
            found[f"FPR95 {part}"] = fpr_at_tpr(low, high)
        found["unfamiliar"] = share(out.verdict == "unfamiliar")
        found["supported"] = share(out.verdict == "supported")
        found["too far (0.1)"] = share(out.near_percentile >= 99)
        yield f"{name} / {other}", found


def scores(head: TrustHead, z: Rows) -> torch.Tensor:
    rows = torch.from_numpy(z)
    return head.surroundings.scores(rows, head.ned.neighborhood_of(rows), head.ned.parameters_)


def share(flags: Any) -> float:
    return float(np.asarray(flags).mean())


def main(quick: bool = False, data: Path | None = None) -> None:
    splits: dict[str, list[dict[str, float]]] = {}
    networks: dict[str, list[dict[str, float]]] = {}
    for seed in range(1 if quick else SPLITS):
        for group in pairs(None if quick else data, seed):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for pair, found in asked(group):
                    splits.setdefault(pair, []).append(found)
                    print(f"{seed} {pair:<40} {found['AUROC combined']:.3f}", flush=True)
            keep(splits, networks, quick)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for pair, found in models(None if quick else data, seed):
                networks.setdefault(pair, []).append(found)
                print(f"{seed} {pair:<40} {found['AUROC, model']:.3f}", flush=True)
        keep(splits, networks, quick)
    table = {pair: summed(found) for pair, found in splits.items()}
    for column in next(iter(table.values())):
        values = [row[column][0] for row in table.values()]
        ends = f"least {min(values):.3f}  most {max(values):.3f}"
        print(f"{column:<32} mean {mean(values):.3f}  {ends}")


def keep(splits: dict[str, Any], networks: dict[str, Any], quick: bool) -> None:
    """After every support: a run that is stopped leaves what it measured."""
    if not quick:
        counts = {pair: len(found) for pair, found in splits.items()}
        table, models = ({n: summed(v) for n, v in part.items()} for part in (splits, networks))
        found = {"pairs": table, "summary": slipped(table), "models": models}
        save("are_unknowns_found", found, splits=counts)


def slipped(table: dict[str, dict[str, list[Any]]]) -> dict[str, float]:
    """Shares of foreign rows that are not called unfamiliar: what the page says of experience."""
    shares = [1 - row["unfamiliar"][0] for row in table.values()]
    middle, high = float(np.median(shares)), max(shares)
    found = {"median": middle, "mean": mean(shares), "high": high}
    return {"pairs": len(shares), **{name: round(value, 3) for name, value in found.items()}}


def summed(found: list[dict[str, float]]) -> dict[str, list[Any]]:
    """Every number's mean over the splits, and its standard error; None after a single split."""
    columns = {name: [split[name] for split in found] for name in found[0]}
    return {name: [round(mean(v), 4), error(v)] for name, v in columns.items()}


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def error(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    return round(float(np.std(values, ddof=1) / len(values) ** 0.5), 4)
