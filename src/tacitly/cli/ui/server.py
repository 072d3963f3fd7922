"""Serve the page on this machine: addresses and access checks."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tacitly.cli.ui import pages
from tacitly.cli.ui.work import Desk, Order

HOSTS = ["127.0.0.1", "localhost"]
_LONGEST_FORM = 100_000
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
    "connect-src 'self'; form-action 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class OwnPages:
    """Refuses forms that are sent by pages of other origins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it."""
        headers = {key: value for key, value in scope.get("headers", ())}
        origin, host = headers.get(b"origin", b"").decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
        if scope["type"] == "http" and scope["method"] == "POST" and origin not in ("", "null", f"http://{host}"):
            await Response("a form from another site", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def application(folder: Path, token: str) -> Starlette:
    """Return the application; every address begins with ``/token/``."""
    desk = Desk(folder)

    async def start(request: Request) -> Response:
        return _page(lambda nonce: pages.start(desk.tables(), desk.models()))

    async def table(request: Request) -> Response:
        path = request.query_params.get("path", "")
        return _page(lambda nonce: pages.columns(path, desk.columns(path), desk.dates(path)))

    async def plan(request: Request) -> Response:
        order = Order.of(request.query_params.multi_items())
        looked = await asyncio.to_thread(desk.look, order)
        return _page(lambda nonce: pages.plan(order, looked, desk.plan_of(order, looked), desk.free_name(), nonce))

    async def fit(request: Request) -> Response:
        fields = parse_qs((await _body(request)).decode("utf-8"), keep_blank_values=True)
        order = Order.of([(key, value) for key, values in fields.items() for value in values])
        number = desk.begin(order)
        return RedirectResponse(f"run/{number}", status_code=303)

    async def run(request: Request) -> Response:
        job = desk.job(request.path_params["number"])
        return _page(lambda nonce: pages.run(job.state(), nonce))

    async def events(request: Request) -> Response:
        job = desk.job(request.path_params["number"])

        async def told() -> AsyncIterator[str]:
            while True:
                state = job.state()
                yield f"data: {json.dumps(state)}\n\n"
                if state["done"] or await request.is_disconnected():
                    return
                await asyncio.sleep(0.3)

        return StreamingResponse(told(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def report(request: Request) -> Response:
        page = await asyncio.to_thread(desk.report, request.path_params["name"], request.path_params["edition"])
        own = "Content-Security-Policy"  # a report has its own, stricter policy
        return HTMLResponse(page, headers={key: value for key, value in _HEADERS.items() if key != own})

    routes = [
        Route("/", start),
        Route("/table", table),
        Route("/plan", plan),
        Route("/fit", fit, methods=["POST"]),
        Route("/run/{number:int}", run),
        Route("/run/{number:int}/events", events),
        Route("/report/{edition}/{name}", report),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(OwnPages)],
        exception_handlers={ValueError: _error, OSError: _error, RuntimeError: _error},
    )


def serve(folder: Path, port: int, on_start: Callable[[str], None]) -> None:
    """Serve until interrupted; call ``on_start`` with the address, including the token, once the port is open."""
    token = secrets.token_urlsafe(24)
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))
        on_start(f"http://127.0.0.1:{door.getsockname()[1]}/{token}/")
        settings = uvicorn.Config(application(folder, token), log_level="error", access_log=False, lifespan="off")
        uvicorn.Server(settings).run(sockets=[door])


def _page(drawn: Callable[[str], str]) -> Response:
    nonce = secrets.token_urlsafe(12)
    headers = {key: value.format(nonce=nonce) for key, value in _HEADERS.items()}
    return HTMLResponse(drawn(nonce), headers=headers)


async def _body(request: Request) -> bytes:
    body = await request.body()
    if len(body) > _LONGEST_FORM:
        raise ValueError(f"a form must be shorter than {_LONGEST_FORM} bytes. Found {len(body)}.")
    return body


async def _error(request: Request, error: Exception) -> Response:
    """Show a user error; any other exception is a bug and is raised again."""
    from tacitly.privacy.ledger import BudgetExceeded, LedgerMismatch, RunInUse

    if isinstance(error, RuntimeError) and not isinstance(error, BudgetExceeded | LedgerMismatch | RunInUse):
        raise error
    response = _page(lambda nonce: pages.failed(str(error)))
    response.status_code = 400
    return response
