"""The server of ``vicinal explore``: a page, its data, and ``predict``, behind a token."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from vicinal.audits.record import Audit
from vicinal.checks import InputError
from vicinal.cli.run_folder import MEDIA, load_media
from vicinal.report import live_files

LIMIT = 32 << 20  # bytes of one upload
HOSTS = ("127.0.0.1", "localhost", "testserver")
KINDS = {"html": "text/html", "json": "application/json", "css": "text/css"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(
    folder: Path, audit: Audit, judge: Callable[[str, bytes], list[dict[str, Any]]], token: str
) -> Starlette:
    """Every address needs the token; nothing is written.

    Parameters
    ----------
    folder : the run, for its media.
    audit : the record of the run.
    judge : from the name and the bytes of an upload to one answer per row.
    token : the secret part of the address.
    """
    files = live_files(audit, load_media(folder / MEDIA), token=token)

    def allowed(request: Request) -> bool:
        host = request.headers.get("host", "").rsplit(":", 1)[0]
        given = request.query_params.get("token", "")
        return host in HOSTS and secrets.compare_digest(given.encode(), token.encode())

    async def show(request: Request) -> Response:
        if not allowed(request):
            return PlainTextResponse("wrong or missing token", 403, HEADERS)
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return PlainTextResponse("no such page", 404, HEADERS)
        return Response(files[name], media_type=KINDS[name.rsplit(".", 1)[1]], headers=HEADERS)

    async def predict(request: Request) -> Response:
        if not allowed(request):
            return JSONResponse({"error": "wrong or missing token"}, 403, HEADERS)
        if int(request.headers.get("content-length", 0)) > LIMIT:
            return JSONResponse({"error": f"at most {LIMIT >> 20} MB at once"}, 413, HEADERS)
        try:
            return JSONResponse({"rows": judge(*await _upload(request))}, headers=HEADERS)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400, HEADERS)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/predict", predict, methods=["POST"]),
            Route("/{name}", show),
        ]
    )


async def _upload(request: Request) -> tuple[str, bytes]:
    """The name and the bytes of a file, or of the rows that were typed."""
    form = await request.form()
    upload = form.get("file")
    if upload is not None and not isinstance(upload, str):
        return upload.filename or "", await upload.read()
    return "rows.txt", str(form.get("rows") or "").encode()
