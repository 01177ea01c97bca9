"""The HTTP application of the live page: its files, the stream of snapshots, and the table of vectors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.publisher import MAX_VIEWERS, SnapshotPublisher

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# A viewer that receives no data for so long is disconnected: its browser is suspended, and reconnects later.
SEND_TIMEOUT_S = 20.0
# The milliseconds after which a browser reconnects.
RETRY_MS = 1500
# Maximum length of a search text.
MAX_FIND_CHARS = 200
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LINK_USED = (
    "This link has been used, or belongs to another driver. A browser that has opened the page earlier needs no new "
    "link: open the address without the token. Otherwise get a link from the driver, print(ps.dashboardUrl), or from "
    "an open page: 'Link for another browser'."
)
NO_SESSION = (
    "This browser has no access yet: open the link with the token that the driver printed, print(ps.dashboardUrl)."
)
REFUSED = "<!doctype html><title>PS2: refused</title><p>{}<p><a href='/'>Try again</a>"
# This document loads the page. A redirect would not: browsers send a SameSite=Strict cookie only with requests that a
# document of the same site makes.
ADMITTED = (
    "<!doctype html><title>PS2</title><link rel='icon' href='/icon.svg'>"
    "<meta http-equiv='refresh' content='0;url=/'><a href='/'>Open the page</a>"
)


@dataclass(frozen=True)
class PageResources:
    """The objects that the application uses.

    Attributes:
        publisher: makes the snapshots.
        sessions: checks tokens and cookies.
        vectors: function that returns a page of the table of vectors as JSON, given (first index, search text).
        hosts: the host names that requests may use. Requests with other names are rejected: an attacker could make
            his own domain resolve to this host (DNS rebinding).
        port: the page's port. It is part of the cookie's name, because all ports of a host share cookies.
    """

    publisher: SnapshotPublisher
    sessions: BrowserSessions
    vectors: Callable[[int, str], bytes]
    hosts: frozenset[str]
    port: int

    @property
    def cookie(self) -> str:
        return f"ps2-{self.port}"


def application(site: PageResources) -> ASGIApp:
    folder = files("ps2.dashboard") / "assets"
    assets = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(MEDIA_TYPES))}
    assets["/"] = assets["/index.html"]

    def asset(request: Request) -> Response:
        path = request.url.path
        kind = MEDIA_TYPES[path[path.rfind(".") :]] if path != "/" else "text/html"
        return Response(assets[path], media_type=kind)

    async def vectors(request: Request) -> Response:
        begin, find = request.query_params.get("begin", "0"), request.query_params.get("find", "")
        if not begin.isdecimal() or len(begin) > 9 or len(find) > MAX_FIND_CHARS:
            return JSONResponse({"error": "vectors: expected begin=NUMBER, find=TEXT of at most 200 characters"}, 400)
        body = await asyncio.to_thread(site.vectors, int(begin), find)
        return Response(body, media_type="application/json")

    def link(request: Request) -> Response:
        return PlainTextResponse(f"http://{request.headers['host']}/?token={site.sessions.token}")

    routes = [Route(path, asset, methods=["GET"]) for path in assets]
    routes += [Route("/vectors", vectors, methods=["GET"]), Route("/link", link, methods=["POST"])]
    routes.append(Route("/events", _EventStream(site.publisher), methods=["GET"]))
    return _AccessMiddleware(site, Starlette(routes=routes, exception_handlers={HTTPException: _http_error}))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request for an unknown path or method."""
    assert isinstance(error, HTTPException)
    content = {"error": f"{request.method} {request.url.path}: {error.detail}"}
    return JSONResponse(content, error.status_code, dict(error.headers or {}))


class _AccessMiddleware:
    """Passes on requests that name this host and have a session. Replaces the token of a link by a cookie."""

    def __init__(self, site: PageResources, inner: ASGIApp) -> None:
        self._site = site
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        if scope["type"] != "http":
            return
        response = self._check(HTTPConnection(scope))
        await (self._inner if response is None else response)(scope, receive, with_headers)

    def _check(self, request: HTTPConnection) -> Response | None:
        """Return the response that rejects or admits the browser; None: the application answers the request."""
        site = self._site
        host = _host(request.headers.get("host", ""))
        if not _is_address(host) and host not in site.hosts:
            return PlainTextResponse(f"The page has no name {host[:200]!r}: use its address, or localhost.", 403)
        if request.headers.get("sec-fetch-site") == "cross-site" and request.url.path != "/":
            return PlainTextResponse("Requests from other sites are refused.", 403)
        if site.sessions.knows(request.cookies.get(site.cookie, "")):
            return None
        token = request.query_params.get("token")
        if token is None:
            return HTMLResponse(REFUSED.format(NO_SESSION), 403)
        cookie = site.sessions.admit(token)
        if cookie is None:
            return HTMLResponse(REFUSED.format(LINK_USED), 403)
        response = HTMLResponse(ADMITTED)
        response.set_cookie(site.cookie, cookie, httponly=True, samesite="strict", path="/")
        return response


class _EventStream:
    """Sends each snapshot as a server-sent event. A slow viewer gets only some of the snapshots."""

    def __init__(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._publisher.viewers >= MAX_VIEWERS:
            busy = PlainTextResponse(f"{MAX_VIEWERS} browsers show this page; close one of them.", 503)
            return await busy(scope, receive, send)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        send_task = asyncio.ensure_future(self._send(send))
        disconnect_task = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({send_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (send_task, disconnect_task):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, asyncio.TimeoutError, OSError):
                    await task

    async def _send(self, send: Send) -> None:
        async def send_body(body: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            await asyncio.wait_for(send(message), SEND_TIMEOUT_S)

        await send_body(b"retry: %d\n\n" % RETRY_MS)
        async with contextlib.aclosing(self._publisher.frames()) as frames:
            async for frame in frames:
                await send_body(b"data: " + frame + b"\n\n")
        await send_body(b"event: end\ndata: {}\n\n", more=False)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _host(header: str) -> str:
    """Return the host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
