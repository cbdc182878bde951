"""Damage, seeded: to bytes, to the values of a JSON text, to the parts of a head."""

import hashlib
import io
import json
import zipfile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from vicinal.confidence.bundle import _checksum

ODD = [
    None, True, -1, 0, 1, 2**31, 2**70, 1e308, -1e308, 0.5, float("nan"), float("inf"), "", "x",
    "²", "../../x", "/etc/passwd", "os:system", "\0", "\x1b[31m", "\ud800", "x" * 5000, [], [1],
    ["a"], [[]], [None], {}, {"a": 1}, [[1, 2], [3]],
]  # fmt: skip


def bytes_of(raw, rng):
    """One to three of: a bit flipped, a cut, a piece zeroed, doubled, removed or of other bytes."""
    raw = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        if not raw:
            break
        at, size = int(rng.integers(len(raw))), int(rng.integers(1, 40))
        match int(rng.integers(6)):
            case 0:
                raw[at] ^= 1 << int(rng.integers(8))
            case 1:
                del raw[at:]
            case 2:
                raw[at : at + size] = bytes(len(raw[at : at + size]))
            case 3:
                raw[at:at] = raw[at : at + size]
            case 4:
                del raw[at : at + size]
            case _:
                raw[at : at + size] = rng.bytes(size)
    return bytes(raw)


def places_of(value, path=()):
    """Every place in nested lists and objects; of long lists the first few and the last."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places_of(value[key], (*path, key))
    elif isinstance(value, list):
        for at in sorted({*range(min(3, len(value))), len(value) - 1}) if value else ():
            yield from places_of(value[at], (*path, at))


def json_of(value, rng):
    """A field replaced by something odd, removed, added, or swapped with another."""
    value = json.loads(json.dumps(value))
    places = [path for path in places_of(value) if path]
    if not places:
        return ODD[int(rng.integers(len(ODD)))]
    path = places[int(rng.integers(len(places)))]
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    match int(rng.integers(8)):
        case 0:
            del holder[path[-1]]
        case 1 if isinstance(holder, dict):
            holder["odd"] = ODD[int(rng.integers(len(ODD)))]
        case 2 if len(holder) > 1:
            other = next(iter(holder)) if isinstance(holder, dict) else 0
            holder[path[-1]], holder[other] = holder[other], holder[path[-1]]
        case _:
            holder[path[-1]] = ODD[int(rng.integers(len(ODD)))]
    return value


def forged_head(path, rng):
    """A ``.vic`` whose facts or tensors were changed, with a checksum that is right again."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    facts = json.loads(metadata["vicinal"])
    if rng.random() < 0.5:
        facts = json_of(facts, rng)
    else:
        name = sorted(tensors)[int(rng.integers(len(tensors)))]
        tensors = changed_tensor(tensors, name, rng)
    page = json.dumps(facts, sort_keys=True)
    metadata |= {"vicinal": page, "checksum": _checksum(metadata["kind"], tensors, page)}
    if rng.random() < 0.1:
        metadata[["kind", "version", "format"][int(rng.integers(3))]] = "²"
    return save({k: v.contiguous() for k, v in tensors.items()}, metadata)


def changed_tensor(tensors, name, rng):
    value, tensors = tensors[name], dict(tensors)
    match int(rng.integers(9)):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = value[: max(0, len(value) - 1)].clone()
        case 2:
            tensors[name] = value.reshape(1, *value.shape).clone()
        case 3:
            tensors[name] = value.to(torch.float16) if value.is_floating_point() else value.int()
        case 4:
            tensors[name] = torch.empty(0, dtype=value.dtype)
        case 5:
            tensors[name] = value.double() * float("nan")
        case 6:
            tensors[name] = torch.full_like(value, -7)
        case 7:
            tensors[name] = torch.full_like(value, 10**6)
        case _:
            tensors[name] = torch.cat([value, value])
    return tensors


def npy_bytes(shape="(3, 4)", descr="'<f4'", body=b"\0" * 48, version=(1, 0), order="False"):
    """A file of numpy.save with any header."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    size = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + header + body


def odd_arrays(rng):
    """Keys and arrays of an ``.npz`` that numpy writes gladly and nobody can use."""
    n, d = 30, 4
    kinds = [
        lambda: np.array(["word"] * n), lambda: np.zeros((n, d), dtype=bool),
        lambda: np.zeros(n, dtype=[("a", "f4"), ("b", "i4")]), lambda: np.float32(3),
        lambda: np.zeros((0, d)), lambda: np.zeros((n, 0)), lambda: np.zeros((n, d)) * 1j,
        lambda: np.zeros((n, 2, 2, 2)), lambda: np.full((n, d), np.nan), lambda: np.zeros(n),
        lambda: np.zeros((n, d), dtype="M8[s]"), lambda: np.zeros((n, d), dtype="S3"),
        lambda: rng.normal(size=(n, d)), lambda: np.arange(n), lambda: np.arange(n) % 3,
        lambda: np.array(list("abc") * 10), lambda: np.full(n, 1e300), lambda: np.zeros((n, 1)),
        lambda: rng.normal(size=(n, d)).astype(np.float16), lambda: np.zeros((d, n)),
        lambda: np.zeros((n, 8, 8)), lambda: np.zeros((n - 1, 3)), lambda: np.array(5),
        lambda: np.full((n, d), 2**63, dtype=np.uint64), lambda: np.full((n, d), 1e200),
        lambda: np.array([b"\xff"] * n), lambda: np.zeros(n, dtype="V4"),
        lambda: np.array(["NaT"] * n, dtype="M8[D]"), lambda: np.full((n, d), np.inf),
    ]  # fmt: skip
    draw = lambda: kinds[int(rng.integers(len(kinds)))]()
    arrays = {"Z": rng.normal(size=(n, d)), "y": np.arange(n) % 3}
    for key in ("Z", "y", "ids", "images", "paths", "text", "logits", "label_ids"):
        if rng.random() < 0.3:
            arrays[key] = draw()
    return arrays


def odd_zip(rng):
    """Archives that are no archives of arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("Z.npy", "y.npy", "../up.npy", "words.txt", "Z.npy")[
            : int(rng.integers(1, 6))
        ]:
            part = [
                npy_bytes(),
                npy_bytes(shape="(10**13, 4)"),
                b"",
                rng.bytes(80),
                npy_bytes()[:20],
            ]
            file.writestr(name, part[int(rng.integers(len(part)))])
    raw = bytearray(buffer.getvalue())
    if rng.random() < 0.4:  # say that it is encrypted, or packed in a way nobody knows
        for mark, shift in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
            at = raw.find(mark)
            raw[at + shift + 2 * int(rng.random() < 0.5)] |= 1 if rng.random() < 0.7 else 99
    return bytes(raw)


def seed_of(*words):
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:4], "little")
