"""How do time and memory of a whole audit grow with the rows, against cleanlab and bare faiss?

Support rows in shards of 50,000 and 10,000 query rows, 128 columns: 500 groups of 20 classes, each
group varies in 16 directions, 3 % of the labels are wrong; with ``--data DIR`` also MNIST's digits,
each row one of them turned, stretched and shifted a little, in their 128 first directions: rows
that lie as those of real images do. ``--memory 2GB``, k = 100, the space as given. Every point is a
process of its own with one thread: CPU seconds and peak resident memory, Python and torch
included. ``rows only`` is what reading, importing and nothing else would take.
Finished points are kept in the JSON file, so that a run that was stopped goes on.

cleanlab: ``Datalab.find_issues`` with features, for label, outlier and near-duplicate issues (its
kNN graph of 10 neighbors, exact, by cosine, as its default is) and the predictions of 5 neighbors'
votes that it needs. Bare faiss: IndexFlat (100,000 rows) or IVF,Flat read as widely as the audit
read its lists, k = 100, every row; asked on 2,000 rows and multiplied up.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from experiments.data import Source, images
from torch.nn.functional import affine_grid, grid_sample

from benchmarks.runner import RESULTS, save

NAME = "how_does_an_audit_grow"
D, CLASSES, GROUPS, SHARD, K, QUERIES = 128, 20, 500, 50_000, 100, 10_000
SIZES = (100_000, 300_000, 1_000_000)
START = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
torch.set_num_threads(1)
support, query, k = sys.argv[1], sys.argv[2], int(sys.argv[3])

def tell(**found):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, "cpu_s": time.process_time(), **found}))
"""
AUDIT = """
import vicinal
from vicinal.audits.settings import AuditSettings
begun = time.process_time()
seen = {}
def progress(title, done, total):
    seen[title] = time.process_time() - begun
settings = AuditSettings(k=k, space="raw", search=sys.argv[4])
audit = vicinal.audit(
    support=support, query=query, settings=settings, memory="2GB", progress=progress
)
facts = audit.search
tell(
    audit_cpu_s=time.process_time() - begun, streamed=audit.scale is not None, engine=facts.engine,
    recall=facts.recall, recall_se=facts.recall_se, nll_moved=facts.nll_moved,
    ece_moved=facts.ece_moved, suspects_moved=facts.suspects_moved, suspects=audit.suspect_count,
    until=seen,
)
"""
READ = """
import glob
def whole(folder):
    files = [np.load(f) for f in sorted(glob.glob(folder + "/*.npz"))]
    return np.concatenate([f["Z"] for f in files]), np.concatenate([f["y"] for f in files])
x, y = whole(support)
begun = time.process_time()
"""
DATALAB = (
    READ
    + """
from cleanlab import Datalab
from sklearn.neighbors import KNeighborsClassifier
lab = Datalab({"y": y}, label_name="y", verbosity=0)
kinds = {"label": {}, "outlier": {}, "near_duplicate": {}}
lab.find_issues(features=x, issue_types=kinds)
found = lab.get_issues("label")
tell(audit_cpu_s=time.process_time() - begun, suspects=int(found.is_label_issue.sum()))
"""
)
FAISS = (
    READ
    + """
import faiss
faiss.omp_set_num_threads(1)
probes, lists = int(sys.argv[4]), int(sys.argv[5])
index = faiss.index_factory(x.shape[1], f"IVF{lists},Flat" if lists else "Flat")
if lists:
    index.cp.niter, index.cp.min_points_per_centroid = 10, 1
    index.train(x[:: max(1, len(x) // (64 * lists))])
    index.nprobe = probes
index.add(x)
made = time.process_time() - begun
some = x[:: max(1, len(x) // 2_000)]
index.search(some, k)
asked = (time.process_time() - begun - made) * len(x) / len(some)
tell(audit_cpu_s=made + asked, made_cpu_s=made, asked_cpu_s=asked)
"""
)


def shards(folder: Path, n: int, seed: int) -> str:
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    centers = fixed.normal(size=(GROUPS, D)).astype(np.float32)
    plane = (fixed.normal(size=(16, D)) * 0.5).astype(np.float32)
    folder.mkdir()
    for start in range(0, n, SHARD):
        group = rng.integers(0, GROUPS, min(SHARD, n - start))
        inner = rng.normal(size=(len(group), 16)).astype(np.float32)
        noise = rng.normal(size=(len(group), D)).astype(np.float32)
        y, wrong = group % CLASSES, rng.random(len(group)) < 0.03
        y = np.where(wrong, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)
        z = centers[group] + inner @ plane + 0.1 * noise
        np.savez(folder / f"{start:09d}.npz", Z=z, y=y)
    return str(folder)


def deformed(data: Path) -> Callable[[Path, int, int], str]:
    """Shards of MNIST's digits, each turned, stretched and shifted (seed 1: train, 2: test)."""
    sets = [images(Source(data), "mnist", part) for part in ("train", "test")]

    def drawn(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        x, y = sets[seed % 10 > 1]
        one = torch.randint(len(x), (n,), generator=rng)
        turn, wide, high, right, down = (torch.randn(n, generator=rng) for _ in range(5))
        c, s = (0.15 * turn).cos(), (0.15 * turn).sin()
        wide, high = (0.08 * wide).exp(), (0.08 * high).exp()
        moves = torch.stack([wide * c, -high * s, 0.07 * right, wide * s, high * c, 0.07 * down], 1)
        grid = affine_grid(moves.view(n, 2, 3), [n, 1, 28, 28], align_corners=False)
        return grid_sample(x[one].view(n, 1, 28, 28), grid, align_corners=False).flatten(1), y[one]

    first = drawn(20_000, 0)[0]
    directions = torch.linalg.eigh((first - first.mean(0)).T.cov()).eigenvectors[:, -D:]

    def made(folder: Path, n: int, seed: int) -> str:
        folder.mkdir()
        rng = np.random.default_rng(seed)
        for start in range(0, n, SHARD):
            x, y = drawn(min(SHARD, n - start), 10 * start + seed)
            wrong = rng.random(len(y)) < 0.03
            labels = np.where(wrong, (y.numpy() + rng.integers(1, 10, len(y))) % 10, y.numpy())
            np.savez(folder / f"{start:09d}.npz", Z=(x @ directions).numpy(), y=labels)
        return str(folder)

    return made


def one(
    make: Callable[[Path, int, int], str], code: str, n: int, *words: object, also: str = ""
) -> dict[str, object]:
    """A point in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        sets = [make(Path(place) / "s", n, 1), make(Path(place) / "q", min(QUERIES, n), 2)]
        command = [sys.executable, "-c", START + code, *sets, str(K), *map(str, words)]
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), also)))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300]}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def lists_read(point: dict[str, object]) -> tuple[int, int]:
    """Of "IVF over blocks (12 of 4,000 lists read)"; none where the search was exact."""
    words = str(point.get("engine", "")).replace(",", "").replace("(", "").split()
    if "of" not in words:
        return 0, 0
    at = words.index("of")
    return int(words[at - 1]), int(words[at + 1])


def growth(
    found: dict[str, dict[str, object]], sizes: tuple[int, ...], kind: str
) -> dict[str, float]:
    """Powers of the rows that CPU time grows by, and peaks against that of the fewest rows."""
    have = [n for n in sizes if "cpu_s" in found.get(f"auto {n}{kind}", {})]
    out = {}
    for few, many in [*itertools.pairwise(have), *([(have[0], have[-1])] if len(have) > 2 else [])]:
        a, b = found[f"auto {few}{kind}"], found[f"auto {many}{kind}"]
        ratio = float(b["audit_cpu_s"]) / float(a["audit_cpu_s"])  # type: ignore[arg-type]
        out[f"power {few} to {many}"] = math.log(ratio) / math.log(many / few)
        out[f"peak {many} over {few}"] = float(b["peak_mb"]) / float(a["peak_mb"])  # type: ignore[arg-type]
    return out


def main(quick: bool = False, data: Path | None = None) -> None:
    sizes = (500, 1_000) if quick else SIZES
    path = RESULTS / f"{NAME}.json"
    found = {}
    if path.exists() and not quick:
        found = json.loads(path.read_text())["results"]
    also = os.environ.get("CLEANLAB", "")  # a folder that it was installed to, if it was
    kinds = {"": shards} | ({", digits": deformed(data)} if data and not quick else {})
    points = [(f"auto {n}", AUDIT, n, ("auto",)) for n in sizes]
    points += [(f"exact {sizes[0]}", AUDIT, sizes[0], ("exact",))]
    points += [(f"bare faiss {n}", FAISS, n, ()) for n in sizes]
    points += [(f"cleanlab {n}", DATALAB, n, ()) for n in sizes[:2] if also]
    wanted = os.environ.get("POINTS", "")  # only those that begin with one of these
    for (kind, make), (name, code, n, words) in itertools.product(kinds.items(), points):
        key = name + kind
        if key in found or not name.startswith(tuple(wanted.split(","))):
            continue
        more = lists_read(found.get(f"auto {n}{kind}", {})) if code is FAISS else words
        found[key] = one(make, code, n, *more, also=also if code is DATALAB else "")
        print(key, found[key], flush=True)
        found["growth" + kind] = growth(found, sizes, kind)  # type: ignore[assignment]
        if not quick:
            save(NAME, found)
    print({name: value for name, value in found.items() if name.startswith("growth")})


if __name__ == "__main__":
    main(data=Path(sys.argv[2]) if sys.argv[1:2] == ["--data"] else None)
