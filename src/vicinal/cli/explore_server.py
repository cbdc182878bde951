"""The server of ``vicinal explore``: a page, its data, and ``predict``, behind one guard.

Every request passes the guard first: the Host is this machine by name, the token is right, and
whatever happens after it ends as an answer, not as words on the terminal. Bodies are counted as
they come in, whatever they claim; uploads are judged in a thread, so the page goes on answering.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.audits.record import Audit
from vicinal.checks import InputError
from vicinal.cli.run_folder import MEDIA, load_media
from vicinal.report import live_files

LIMIT = 32 << 20  # bytes of one upload
HEARD = 8 * LIMIT  # of one that is too large, before the line is cut
PATIENCE = 60  # seconds until the whole of it must be here
AT_ONCE = 2  # uploads judged at the same time; the others wait
UPLOADS = 64  # that may be on their way
IDLE = 10  # seconds that a line may be open without a whole request on it
LINES = 128  # open without one; beyond, the oldest are closed
KINDS = {"html": "text/html", "json": "application/json", "css": "text/css"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Judge = Callable[[str, bytes], list[dict[str, Any]]]


class _TooLarge(Exception):
    """More bytes have come in than one upload may have."""


class _Body:
    """What comes in of one request, counted."""

    def __init__(self, receive: Receive) -> None:
        self.receive, self.read, self.ended = receive, 0, False

    async def __call__(self) -> Message:
        message = await self.receive()
        self.read += len(message.get("body", b""))
        self.ended = not message.get("more_body")
        return message

    async def limited(self) -> Message:
        message = await self()
        if self.read > LIMIT:
            raise _TooLarge
        return message

    async def heard_out(self) -> None:
        """Read on and keep nothing: who is cut off while sending never hears why."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not self.ended and self.read < HEARD:
                    await self()


def application(
    folder: Path, audit: Audit, judge: Judge, token: str, port: int | None = None
) -> ASGIApp:
    """Every address needs the token; nothing is written.

    Parameters
    ----------
    folder : the run, for its media.
    audit : the record of the run.
    judge : from the name and the bytes of an upload to one answer per row.
    token : the secret part of the address.
    port : the one that the Host of a request must name; None allows any.
    """
    files = live_files(audit, load_media(folder / MEDIA), token=token)
    judging, coming = CapacityLimiter(AT_ONCE), CapacityLimiter(UPLOADS)

    async def show(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return PlainTextResponse("no such page", 404, HEADERS)
        return Response(files[name], media_type=KINDS[name.rsplit(".", 1)[1]], headers=HEADERS)

    async def predict(request: Request) -> Response:
        if not coming.available_tokens:
            return _refused(f"{UPLOADS} uploads are on their way. Wait for them.", 503)
        body = _Body(request.receive)
        try:
            async with coming:
                name, data = await asyncio.wait_for(_upload(request.scope, body), PATIENCE)
                rows = await to_thread.run_sync(judge, name, data, limiter=judging)
        except InputError as error:
            await body.heard_out()
            return _refused(str(error), 400)
        except _TooLarge:
            await body.heard_out()
            return _refused(f"at most {LIMIT >> 20} MB at once.", 413)
        except TimeoutError:
            return _refused(f"the upload took more than {PATIENCE} s.", 408)
        except ClientDisconnect:
            return _refused("the upload was broken off.", 400)
        return JSONResponse({"rows": rows}, headers=HEADERS)

    routes = [
        Route("/", show),
        Route("/predict", predict, methods=["POST"]),
        Route("/{name}", show),
    ]
    return _guarded(Router(routes), token, port)


class PatientServer(uvicorn.Server):
    """A server that closes lines on which nobody asks: who holds many open keeps nobody out."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.idle: dict[Any, tuple[Any, float]] = {}  # by line: its last request, and since when

    async def on_tick(self, counter: int) -> bool:
        now, known = time.monotonic(), self.idle
        every: set[Any] = set(self.server_state.connections)
        lines = [line for line in every if line.cycle is None or line.cycle.response_complete]
        fresh = {line: (line.cycle, now) for line in lines}
        self.idle = {
            line: known[line] if line in known and known[line][0] is line.cycle else since
            for line, since in fresh.items()
        }
        oldest = sorted(lines, key=lambda line: self.idle[line][1])
        for at, line in enumerate(oldest):
            if at < len(lines) - LINES or self.idle[line][1] < now - IDLE:
                line.transport.close()
        return await super().on_tick(counter)


def server_of(app: ASGIApp) -> PatientServer:
    """The server for ``app``, without words on the terminal."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # quotes what it cannot read
    return PatientServer(
        uvicorn.Config(
            app, log_level="critical", server_header=False, lifespan="off", ws="none",
            proxy_headers=False, timeout_keep_alive=5, http="h11",  # whose lines have a cycle
        )
    )  # fmt: skip


def _guarded(app: ASGIApp, token: str, port: int | None) -> ASGIApp:
    """``app`` for those who name this machine and have the token; its failures are answers."""
    digits = r"(:\d{1,5})?" if port is None else f":{port}"
    here = re.compile(rf"(127\.0\.0\.1|localhost){digits}")

    def refusal(request: Request) -> str | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not here.fullmatch(hosts[0]):
            return "wrong host: open the address that vicinal explore printed"
        if request.headers.get("origin", f"http://{hosts[0]}") != f"http://{hosts[0]}":
            return "this page was not asked by itself"
        given = request.query_params.get("token", "")
        right = secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())
        return None if right else "wrong or missing token"

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            why = refusal(Request(scope))
            inner = app if why is None else _refused(why, 403)
            await inner(scope, receive, sent)
        except Exception as error:  # a fault of ours: a line here, a sentence there
            sys.stderr.write(f"! explore failed: {type(error).__name__}: {str(error)[:200]!r}\n")
            if not begun:
                await _refused("vicinal failed on this one.", 500)(scope, receive, send)

    return guarded


def _refused(why: str, status: int) -> Response:
    said = "".join(filter(str.isprintable, " ".join(why.split())))  # parsers quote what they read
    return JSONResponse({"error": said}, status, HEADERS)


async def _upload(scope: Scope, body: _Body) -> tuple[str, bytes]:
    """The name and the bytes of a file, or of the rows that were typed."""
    try:
        async with Request(scope, body.limited).form(max_files=1, max_fields=4) as form:
            upload = form.get("file")
            if upload is not None and not isinstance(upload, str):
                return upload.filename or "", await upload.read()
            return "rows.txt", str(form.get("rows") or "").encode("utf-8", "replace")
    except (MultiPartException, ValueError) as error:  # of starlette's parser, and of its parser
        why = getattr(error, "message", error)
        raise InputError(f"no form with a file or rows: {why}") from None
