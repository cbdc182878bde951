"""``vicinal explore``: the same page, live on this machine alone; new inputs are judged."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vicinal.audits.encoder import ENCODER, SIZE
from vicinal.audits.entangled_layers import compact
from vicinal.audits.record import Audit
from vicinal.capture import capture
from vicinal.checks import InputError
from vicinal.cli.advice import CONFIG, HEAD
from vicinal.cli.config import OWN_MODEL, read_config
from vicinal.cli.console import Console
from vicinal.cli.data_files import IMAGE_SUFFIXES
from vicinal.cli.explore_decode import shown_name, uploaded_picture, uploaded_rows
from vicinal.cli.flags import FROM_CONFIG
from vicinal.cli.model_inputs import ImageReading
from vicinal.cli.models import model_of
from vicinal.cli.predict import answers
from vicinal.cli.row_set import RowSet
from vicinal.cli.run_folder import read_run
from vicinal.cli.verbs import AuditOptions, ExploreOptions
from vicinal.confidence import load
from vicinal.confidence.head import Judgement
from vicinal.confidence.made_from import MadeFrom

Judge = Callable[[str, bytes], list[dict[str, Any]]]


def run(options: ExploreOptions) -> None:
    """Serve the page of a run on 127.0.0.1, read-only, behind a token in its address."""
    try:
        from vicinal.cli.explore_server import application, server_of  # of an extra
    except ImportError:
        raise InputError("explore needs a server: pip install 'vicinal[explore]'.") from None
    console = Console(quiet=options.quiet)
    token = secrets.token_urlsafe(16)
    with console.progress("reading the run") as step:  # seconds pass on a terminal from the first
        audit = read_run(options.folder)
        step(1, 3)
        judge = judge_of(audit, options)
        step(2, 3)
        listening = bound(options.port)
        port = listening.getsockname()[1]
        app = application(options.folder, audit, judge, token, port)
    address = f"http://127.0.0.1:{port}/?token={token}"
    threading.Thread(target=uploaded_rows, args=("first.txt", b"0"), daemon=True).start()
    console.print(f"open   {address}\nstop   Ctrl-C")
    if options.browser:
        webbrowser.open(address)
    server_of(app).run(sockets=[listening])


def judge_of(audit: Audit, options: ExploreOptions) -> Judge:
    """A function from an upload to answers, with the run's own head (and model, for images)."""
    head: Any = load(options.folder / HEAD)
    names, called = audit.support_names, head.made_from.name_of
    embed = _embedder(options, head.made_from)

    def neighbors(out: Judgement, row: int) -> list[dict[str, Any]]:
        columns = (out.neighbors[row][:10], out.neighbor_labels[row][:10], out.weights[row][:10])
        return [
            {"id": names.get(int(at), str(int(at))), "label": called(y), "weight": float(weight)}
            for at, y, weight in zip(*columns, strict=True)
        ]

    def judge(name: str, data: bytes) -> list[dict[str, Any]]:
        if not name.lower().endswith(IMAGE_SUFFIXES):
            rows = uploaded_rows(name, data)
        elif embed is not None:
            rows = embed(data)
        else:
            raise InputError(
                "this run was made from embeddings: an image cannot be judged without the "
                "model they came from. Run the audit with --model."
            )
        return list(answers(head, RowSet(shown_name(name), rows), neighbors))

    return judge


def _embedder(options: ExploreOptions, made: MadeFrom) -> Callable[[bytes], NDArray[Any]] | None:
    """From the bytes of an image to its embedding by the model the run was made with.

    Code is that of this invocation: a typed model, our own, or the folder's where it is trusted. Of
    the folder's settings only those are used that say how a picture is read.
    """
    typed, config = options.model, options.folder / CONFIG
    given = read_config(config, AuditOptions) if config.exists() else {}
    named = given.get("model") or (ENCODER if made.model == ENCODER else None)
    if typed is None and not options.trust_folder and named not in (None, OWN_MODEL, ENCODER):

        def refuse(_: bytes) -> NDArray[Any]:
            raise InputError(
                f"this run was made with the model {named}, which is code of whoever made the "
                f"folder. If you know it, type it: vicinal explore --model {named}; if you trust "
                "all of the folder: --trust-folder."
            )

        return refuse
    spec = typed or named
    if spec is None:
        return None
    code = {} if options.trust_folder else {"model_arg": None, "online": False}
    settings = AuditOptions(
        **{"support": FROM_CONFIG, **given, **code, "trust_pickle": options.trust_pickle}
    )
    loaded = model_of(spec, settings, Console(quiet=True))
    layer = settings.embedding or made.embedding or "output"
    how = ImageReading.of(settings).filled(made).filled(loaded.named)
    how = replace(how, size=SIZE) if spec == ENCODER and how.size is None else how

    def embed(data: bytes) -> NDArray[Any]:
        x = how.as_input(uploaded_picture(data, size=how.size, gray=how.gray))[None]
        return np.asarray(capture(loaded.model, x, [layer], pool=compact)[layer].float())

    return embed


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
