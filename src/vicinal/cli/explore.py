"""``vicinal explore``: the same page, live on this machine alone; new inputs are judged."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.entangled_layers import compact
from vicinal.audits.record import Audit
from vicinal.capture import capture
from vicinal.checks import InputError
from vicinal.cli.config import OWN_MODEL, read_config
from vicinal.cli.console import Console
from vicinal.cli.data_files import IMAGE_SUFFIXES
from vicinal.cli.explore_decode import uploaded_picture, uploaded_rows
from vicinal.cli.flags import FROM_CONFIG
from vicinal.cli.model_inputs import ImageReading
from vicinal.cli.models import model_of
from vicinal.cli.run_folder import CONFIG, HEAD, read_run
from vicinal.cli.verbs import AuditOptions, ExploreOptions
from vicinal.confidence import load
from vicinal.neighbors import unit_rows

Judge = Callable[[str, bytes], list[dict[str, Any]]]


def run(options: ExploreOptions) -> None:
    """Serve the page of a run on 127.0.0.1, read-only, behind a token in its address."""
    try:
        from vicinal.cli.explore_server import application, server_of  # of an extra
    except ImportError:
        raise InputError("explore needs a server: pip install 'vicinal[explore]'.") from None
    console = Console(quiet=options.quiet)
    token = secrets.token_urlsafe(16)
    audit = read_run(options.folder)
    trust = {"trust_pickle": options.trust_pickle, "trust_folder": options.trust_folder}
    judge = judge_of(options.folder, audit, **trust)
    listening = bound(options.port)
    port = listening.getsockname()[1]
    app = application(options.folder, audit, judge, token, port)
    address = f"http://127.0.0.1:{port}/?token={token}"
    threading.Thread(target=uploaded_rows, args=("first.txt", b"0"), daemon=True).start()
    console.print(f"open   {address}\nstop   Ctrl-C")
    if options.browser:
        webbrowser.open(address)
    server_of(app).run(sockets=[listening])


def judge_of(
    folder: Path, audit: Audit, *, trust_pickle: bool = False, trust_folder: bool = False
) -> Judge:
    """A function from an upload to answers, with the run's own head (and model, for images)."""
    head = load(folder / HEAD)
    names = dict(zip(audit.support.row, audit.support.id, strict=True))
    embed = _embedder(folder, trust_pickle, trust_folder)

    def judge(name: str, data: bytes) -> list[dict[str, Any]]:
        if not name.lower().endswith(IMAGE_SUFFIXES):
            rows = uploaded_rows(name, data)
        elif embed is not None:
            rows = embed(data)
        else:
            raise InputError(
                "this run was made from embeddings: an image cannot be judged without the "
                "model. Run the audit with --model."
            )
        out = head.predict(rows)
        return [_answer(out, row, names) for row in range(len(rows))]

    return judge


def _embedder(
    folder: Path, trust_pickle: bool, trust_folder: bool
) -> Callable[[bytes], NDArray[Any]] | None:
    """From the bytes of an image to its embedding by the model the run was made with."""
    config = folder / CONFIG
    given = read_config(config, AuditOptions) if config.exists() else {}
    if not trust_folder and given.get("model") not in (None, OWN_MODEL):
        name = given["model"]

        def refuse(_: bytes) -> NDArray[Any]:
            raise InputError(
                f"this run was made with the model {name}, which is code of whoever made the "
                "folder. If you trust it: vicinal explore --trust-folder."
            )

        return refuse
    settings = AuditOptions(**{"support": FROM_CONFIG, **given, "trust_pickle": trust_pickle})
    if not settings.model:
        return None
    model = model_of(settings.model, settings, Console(quiet=True)).model
    layer, how = settings.embedding or "output", ImageReading.of(settings)

    def embed(data: bytes) -> NDArray[Any]:
        pixels = uploaded_picture(data, size=settings.size, gray=settings.gray)
        rows = capture(model, how.as_input(pixels)[None], [layer], pool=compact)[layer].float()
        return np.asarray(unit_rows(rows) if settings.normalize else rows)

    return embed


def _answer(out: Any, row: int, names: dict[int, str]) -> dict[str, Any]:
    columns = (out.neighbors[row][:10], out.neighbor_labels[row][:10], out.weights[row][:10])
    return {
        "label": str(out.label[row]),
        "confidence": float(out.confidence[row]),
        "credibility": float(out.credibility[row]),
        "verdict": str(out.verdict[row]),
        "reason": str(out.reason[row]),
        "neighbors": [
            {"id": names.get(int(at), str(int(at))), "label": str(label), "weight": float(weight)}
            for at, label, weight in zip(*columns, strict=True)
        ],
    }


def bound(port: int) -> socket.socket:
    """A listening socket on the loopback interface: nobody else can reach it."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(128)  # who opens the address at once waits, and is not refused
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"--port {port} cannot be used: {error}. Leave it out.") from None
    return listening
