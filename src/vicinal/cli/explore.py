"""``vicinal explore``: the same page, live on this machine alone; new inputs are judged."""

from __future__ import annotations

import io
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vicinal.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from starlette.applications import Starlette

NAME = "explore"
EXAMPLES = "vicinal explore runs/audit-0001"
LIMIT = 32 << 20  # bytes of one upload


def run(
    folder: Annotated[Path, typer.Argument(help="Folder of an audit.")],
    port: Annotated[int, typer.Option("--port", help="0: any free port.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = True,
    trust_pickle: options.TrustPickle = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve the page of a run on 127.0.0.1, read-only, behind a token in its address."""
    from vicinal.checks import InputError
    from vicinal.cli.console import Voice

    try:
        import uvicorn
    except ImportError:
        raise InputError("explore needs a server: pip install 'vicinal[explore]'.") from None
    voice = Voice(quiet=quiet)
    token = secrets.token_urlsafe(16)
    app = application(folder, token, trust_pickle=trust_pickle)
    socket = _bound(port)
    address = f"http://127.0.0.1:{socket.getsockname()[1]}/?token={token}"
    voice.say(f"open   {address}\nstop   Ctrl-C")
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", server_header=False)
    uvicorn.Server(config).run(sockets=[socket])


def application(folder: Path, token: str, *, trust_pickle: bool = False) -> Starlette:
    """The server: a page, its data, and ``predict``; every address needs the token."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from vicinal.checks import InputError
    from vicinal.cli.audit import media_of_run
    from vicinal.cli.compare import read_audit
    from vicinal.report import live_files

    audit = read_audit(folder)
    files = live_files(audit, media_of_run(folder), token=token)
    kinds = {"html": "text/html", "json": "application/json", "css": "text/css"}
    judge = judge_of(folder, audit.support, audit.classes, trust_pickle=trust_pickle)
    headers = {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    def allowed(request: Request) -> bool:
        host = request.headers.get("host", "").rsplit(":", 1)[0]
        given = request.query_params.get("token", "")
        return host in ("127.0.0.1", "localhost", "testserver") and secrets.compare_digest(
            given.encode(), token.encode()
        )

    async def show(request: Request) -> Response:
        if not allowed(request):
            return PlainTextResponse("wrong or missing token", 403, headers)
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return PlainTextResponse("no such page", 404, headers)
        kind = kinds[name.rsplit(".", 1)[1]]
        return Response(files[name], media_type=kind, headers=headers)

    async def predict(request: Request) -> Response:
        if not allowed(request):
            return JSONResponse({"error": "wrong or missing token"}, 403, headers)
        if int(request.headers.get("content-length", 0)) > LIMIT:
            return JSONResponse({"error": f"at most {LIMIT >> 20} MB at once"}, 413, headers)
        try:
            form = await request.form()
            upload = form.get("file")
            if upload is not None and not isinstance(upload, str):
                name, data = upload.filename or "", await upload.read()
            else:
                name, data = "rows.txt", str(form.get("rows") or "").encode()
            return JSONResponse({"rows": judge(name, data)}, headers=headers)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400, headers)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/predict", predict, methods=["POST"]),
            Route("/{name}", show),
        ]
    )


def judge_of(
    folder: Path, support: Any, classes: tuple[str, ...], *, trust_pickle: bool
) -> Callable[[str, bytes], list[dict[str, Any]]]:
    """A function from an upload to answers, with the run's own head (and model, for images)."""
    from vicinal.checks import InputError
    from vicinal.confidence import load

    head = load(folder / "trust.vic")
    names = dict(zip(support.row, support.id, strict=True))
    embed = _embedder(folder, trust_pickle)

    def judge(name: str, data: bytes) -> list[dict[str, Any]]:
        if name.lower().endswith((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")):
            if embed is None:
                raise InputError(
                    "this run was made from embeddings: an image cannot be judged without the "
                    "model. Run the audit with --model."
                )
            rows = embed(data)
        else:
            rows = parsed_rows(name, data)
        out = head.predict(rows)
        return [_answer(out, row, names, classes) for row in range(len(rows))]

    return judge


def parsed_rows(name: str, data: bytes) -> NDArray[Any]:
    """Rows of numbers from JSON, CSV, ``.npy`` or ``.npz``; pickles are refused."""
    import numpy as np

    from vicinal.checks import InputError
    from vicinal.cli.data_files import EMBEDDING_KEYS

    try:
        if name.endswith((".npy", ".npz")):
            loaded = np.load(io.BytesIO(data), allow_pickle=False)
            if hasattr(loaded, "files"):
                key = next((k for k in EMBEDDING_KEYS if k in loaded.files), loaded.files[0])
                loaded = loaded[key]
            rows = np.asarray(loaded, dtype=np.float64)
        else:
            text = data.decode("utf-8").strip()
            if text[:1] in "[{":
                value = json.loads(text)
                value = value.get("rows", value) if isinstance(value, dict) else value
                rows = np.asarray(value, dtype=np.float64)
            else:
                lines = [line for line in text.splitlines() if line.strip()]
                rows = np.array([[float(v) for v in line.split(",")] for line in lines])
    except (ValueError, TypeError, UnicodeDecodeError, OSError, EOFError) as error:
        raise InputError(
            f"cannot read rows from {name}: {error}. Give one row of numbers per line."
        ) from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise InputError("give one row of numbers per line.")
    return rows


def _embedder(folder: Path, trust_pickle: bool) -> Callable[[bytes], NDArray[Any]] | None:
    """From the bytes of an image to its embedding by the model the run was made with."""
    config = folder / "config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    if not settings.get("model"):
        return None
    from vicinal.cli.embed import model_arguments
    from vicinal.cli.images import as_input, read_image
    from vicinal.cli.models import load_model

    loaded = load_model(
        settings["model"],
        weights=settings.get("weights"),
        arguments=model_arguments(settings.get("model_arg")),
        output=settings.get("output"),
        trust_pickle=trust_pickle,
    )

    def embed(data: bytes) -> NDArray[Any]:
        import numpy as np

        from vicinal.audits.model import compact
        from vicinal.capture import capture

        pixels = read_image(
            io.BytesIO(data), size=settings.get("size"), gray=bool(settings.get("gray"))
        )
        layer = settings.get("embedding") or "output"
        acts = capture(loaded.model, as_input(pixels)[None], [layer], pool=compact)
        rows = acts[layer].float()
        if settings.get("normalize"):
            from vicinal.neighbors import unit_rows

            rows = unit_rows(rows)
        return np.asarray(rows)

    return embed


def _answer(out: Any, row: int, names: dict[int, str], classes: tuple[str, ...]) -> dict[str, Any]:
    near = [
        {
            "id": names.get(int(support), str(int(support))),
            "label": str(label),
            "weight": float(weight),
        }
        for support, label, weight in zip(
            out.neighbors[row][:10],
            out.neighbor_labels[row][:10],
            out.weights[row][:10],
            strict=True,
        )
    ]
    return {
        "label": str(out.label[row]),
        "confidence": float(out.confidence[row]),
        "credibility": float(out.credibility[row]),
        "verdict": str(out.verdict[row]),
        "reason": str(out.reason[row]),
        "neighbors": near,
    }


def _bound(port: int) -> Any:
    """A listening socket on the loopback interface: nobody else can reach it."""
    import socket

    from vicinal.checks import InputError

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InputError(f"--port {port} cannot be used: {error}. Leave it out.") from None
    return listening
