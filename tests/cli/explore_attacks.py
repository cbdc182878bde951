"""Uploads that mean harm, by name: ``(file name, bytes)``. ``python -m cli.explore_attacks RUN``
sends each to a real server and prints the answer, the time and the peak memory."""

import io
import json
import pickle
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np

ROWS = np.zeros((3, 4))


def npy(x, **options):
    buffer = io.BytesIO()
    np.save(buffer, x, **options)
    return buffer.getvalue()


def claiming(shape, dtype="<f8", data=b"\0" * 64):
    head = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    head += b" " * (118 - len(head) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def zipped(parts, method=zipfile.ZIP_DEFLATED, level=None):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method, compresslevel=level) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def bomb(megabytes):
    """An archive of zeros: a thousandth of what it unpacks to."""
    buffer, chunk = io.BytesIO(), bytes(1 << 20)
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("Z.npy", "w", force_zip64=True) as part,
    ):
        part.write(claiming((megabytes << 10, 128), data=b""))
        for _ in range(megabytes):
            part.write(chunk)
    return buffer.getvalue()


def encrypted():
    data = bytearray(zipped({"Z.npy": npy(ROWS)}))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    return bytes(data)


def picture(side, kind="PNG"):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, kind)
    return buffer.getvalue()


def spin(name, path):
    """A parser that never ends."""
    while True:
        pass


def grow(name, path):
    """A parser that takes all memory."""
    return b"0" * (1 << 40)


class Harm:
    def __reduce__(self):
        return (print, ("a pickle ran",))


def attacks(bomb_megabytes=1300):
    harm = np.array([Harm()], dtype=object)
    good = npy(ROWS)
    return {
        "truncated npy": ("x.npy", good[:-8]),
        "no npy": ("x.npy", b"none"),
        "empty npy": ("x.npy", b""),
        "pickled npy": ("x.npy", npy(harm, allow_pickle=True)),
        "bare pickle": ("x.npy", pickle.dumps(Harm())),
        "pickled npz": ("x.npz", zipped({"Z.npy": npy(harm, allow_pickle=True)})),
        "npy of 60 GB": ("x.npy", claiming((60_000_000, 125))),
        "npy of 582 TiB": ("x.npy", claiming((80_000_000_000_000,))),
        "npy of negative size": ("x.npy", claiming((-3, 4))),
        "npz of 60 GB": ("x.npz", zipped({"Z.npy": claiming((60_000_000, 125))})),
        "npy of words": ("x.npy", npy(np.array([["a", "b"]]))),
        "npy of records": ("x.npy", npy(np.zeros(3, dtype=[("a", "f4")]))),
        "npy header that is code": ("x.npy", claiming("__import__('os').getcwd()")),
        "zip bomb": ("x.npz", bomb(bomb_megabytes)),
        "broken zip": ("x.npz", zipped({"Z.npy": good})[:-30]),
        "encrypted zip": ("x.npz", encrypted()),
        "zip of text": ("x.npz", zipped({"readme.txt": b"hello"})),
        "zip of no key": ("x.npz", zipped({"other.npy": good})),
        "deep json": ("rows.json", b"[" * 200_000),
        "deep jsonl": ("rows.jsonl", b'{"x":' * 100_000),
        "jsonl of lists": ("rows.jsonl", b"[1, 2]\n3\n"),
        "ragged json": ("rows.json", b"[[1, 2], [3]]"),
        "json of words": ("rows.json", json.dumps({"rows": [["a"]]}).encode()),
        "json of a long number": ("rows.json", b"[[" + b"9" * 5000 + b"]]"),
        "json of null": ("rows.json", b"[[null, 1, 2, 3]]"),
        "text with a late word": ("rows.csv", b"1,2,3,4\n" * 1000 + b"1,2,x,4\n"),
        "not UTF-8": ("rows.csv", b"\xff\xfe1,2,3,4"),
        "nothing": ("rows.csv", b""),
        "NaN rows": ("rows.csv", b"nan,1,2,3"),
        "infinite rows": ("rows.csv", b"inf,1,2,3"),
        "rows beyond squares": ("rows.csv", b"1e300,1,2,3"),
        "wrong width": ("rows.csv", b"1,2"),
        "too many rows": ("x.npy", npy(np.zeros((100_000, 4), np.float32))),
        "no parquet": ("x.parquet", b"PAR1" + bytes(100) + b"PAR1"),
        "parquet footer of 2 GB": ("x.parquet", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1"),
        "a name to climb": ("../../../etc/x.npy", b"none"),
        "a long name": ("a" * 5000 + ".npy", b"none"),
        "a name of controls": ("\x1b[31m\r\n.npy", b"none"),
        "picture of 169 Mpx": ("x.png", picture(13_000)),
        "picture of 100 Mpx": ("x.png", picture(10_000)),
        "gif of 169 Mpx": ("x.gif", picture(13_000, "GIF")),
        "truncated picture": ("x.png", picture(64)[:-30]),
        "no picture": ("x.png", b"<svg onload=alert(1)>"),
        "tiff of nothing": ("x.tiff", b"II*\0\xff\xff\xff\xff"),
    }


# ------------------------------------------------------------------ measured


def measured(folder, *options):
    """Each attack on a real server: status, seconds, and the peak of its processes in MB."""
    import httpx
    import psutil

    words = [sys.executable, "-m", "vicinal.cli", "explore", folder, "--no-browser", *options]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    address = server.stdout.readline().split()[1]
    base, token = address.split("/?token=")
    client, process, peak = httpx.Client(timeout=120), psutil.Process(server.pid), {}
    over = threading.Event()

    def watch():
        while not over.is_set():
            for each in [process, *process.children(recursive=True)]:
                try:
                    peak[each.pid] = max(peak.get(each.pid, 0), each.memory_info().rss)
                except psutil.Error:
                    continue
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    send = {"rows": (None, "0,0,0,0")}
    client.post(f"{base}/predict?token={token}", files=send)  # the first one warms up
    for name, (file, data) in attacks().items():
        rest = {pid: p.memory_info().rss for pid, p in _alive(process, psutil)}
        peak.clear()
        start, slowest = time.perf_counter(), 0.0
        answer = []
        sender = threading.Thread(
            target=lambda file=file, data=data, answer=answer: answer.append(
                httpx.post(
                    f"{base}/predict?token={token}", files={"file": (file, data)}, timeout=120
                )
            )
        )
        sender.start()
        while sender.is_alive():  # the page answers meanwhile
            asked = time.perf_counter()
            client.get(f"{base}/?token={token}")
            slowest = max(slowest, time.perf_counter() - asked)
            sender.join(0.02)
        took = time.perf_counter() - start
        grown = peak.get(server.pid, 0) - rest.get(server.pid, 0)
        worker = max([m for pid, m in peak.items() if pid not in rest], default=0)
        print(
            f"{name:28s} {answer[0].status_code}  {took:5.2f} s  server +{grown / 1e6:5.0f} MB  "
            f"worker {worker / 1e6:5.0f} MB  page {slowest:4.2f} s  "
            f"{str(answer[0].json().get('error'))[:90]!r}",
            flush=True,
        )
    over.set()
    server.terminate()
    print("terminal:", repr(server.stdout.read()))


def _alive(process, psutil):
    for each in [process, *process.children(recursive=True)]:
        try:
            each.memory_info()
        except psutil.Error:
            continue
        yield each.pid, each


if __name__ == "__main__":
    measured(*sys.argv[1:])
