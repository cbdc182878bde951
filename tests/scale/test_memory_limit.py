"""A streamed audit stays below the memory it is allowed, whatever its rows take on the disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WIDTH, ASKED = 512, 48_000  # 98 MB of query rows: an audit in memory holds them thrice
CHILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, vicinal
from vicinal.audits import sampled, scale
from vicinal.audits.settings import AuditSettings
from sklearn import linear_model, neighbors  # what every audit loads
def peak():  # getrusage's would count the parent's
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
sampled.ANCHORS, folder = 500, sys.argv[1]
query = np.load(folder + "/q.npy", mmap_mode="r")
settings = AuditSettings(space="raw", k=10, map="none")
begun = peak()
allowed = begun + (340 << 20)
audit = vicinal.audit(support=folder + "/s.npz", query=query, settings=settings, memory=allowed)
rows = audit.scale.query_rows if audit.scale else 0
print(json.dumps({"peak": peak(), "allowed": allowed, "begun": begun, "streamed": rows}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is asked of Linux")
def test_the_peak_of_a_streamed_audit_is_below_its_memory(tmp_path):
    """In a process of its own; the rows and their cases would take more than is left."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 1_500)
    z = rng.normal(size=(1_500, WIDTH)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "s.npz", Z=z, y=y)
    query = np.lib.format.open_memmap(
        tmp_path / "q.npy", "w+", dtype=np.float32, shape=(ASKED, WIDTH)
    )
    for start in range(0, ASKED, 1_500):
        query[start : start + 1_500] = z + rng.normal(size=(1_500, 1)).astype(np.float32) / 10
    query.flush()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["streamed"] == ASKED
    assert found["peak"] < found["allowed"], {name: n >> 20 for name, n in found.items()}


FITS = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, vicinal
from vicinal.audits import scale
from vicinal.audits.settings import AuditSettings
from vicinal.capture.sources import ArrayRows
from sklearn import linear_model, neighbors
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
rng = np.random.default_rng(0)
y = np.arange(8_000) % 60
z = (rng.normal(size=(60, 8))[y] + rng.normal(size=(8_000, 8))).astype(np.float32)
sets = {"support": (z[:4_000], y[:4_000]), "query": (z[4_000:], y[4_000:])}
settings, begun = AuditSettings(space="raw", k=10, map="none"), peak()
vicinal.audit(**sets, settings=settings)
foreseen = scale.needed({name: ArrayRows(*rows) for name, rows in sets.items()}, settings)
print(peak() - begun, foreseen - scale.PROCESS)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is asked of Linux")
def test_an_audit_in_memory_takes_no_more_than_was_foreseen():
    """Of narrow rows and few neighbors what heads answer for 60 classes is the most of it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FITS]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    took, foreseen = map(int, done.stdout.split())
    assert took < foreseen, (took >> 20, foreseen >> 20)
