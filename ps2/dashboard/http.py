"""The HTTP application of the page: files, a stream of snapshots, and the table of vectors."""

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

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# The time after which a viewer that receives no data is disconnected. Its browser connects again when it wakes up.
SEND_S = 20.0
# The milliseconds after which a browser connects again.
RETRY_MS = 1500
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
# This document opens the page, because a browser sends a strict cookie only if the request comes from the same site.
ADMITTED = (
    "<!doctype html><title>PS2</title><link rel='icon' href='/icon.svg'>"
    "<meta http-equiv='refresh' content='0;url=/'><a href='/'>Open the page</a>"
)


@dataclass(frozen=True)
class PageResources:
    """The parts of the application.

    Attributes:
        vectors: a function that returns a page of the table of vectors as JSON, given its first number and a text.
        hosts: the host names that requests may use. An attacker can make other names resolve to this host.
        port: the page's port, which is part of the cookie's name, as all ports of a host share cookies.
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
    assets = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(KINDS))}
    assets["/"] = assets["/index.html"]

    def asset(request: Request) -> Response:
        path = request.url.path
        kind = KINDS[path[path.rfind(".") :]] if path != "/" else "text/html"
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
    """Answer a request without a route."""
    assert isinstance(error, HTTPException)
    content = {"error": f"{request.method} {request.url.path}: {error.detail}"}
    return JSONResponse(content, error.status_code, dict(error.headers or {}))


class _AccessMiddleware:
    """Passes requests that name this host and have a session; exchanges the token of a link for a session."""

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
        refused = self._refused(HTTPConnection(scope))
        await (self._inner if refused is None else refused)(scope, receive, with_headers)

    def _refused(self, request: HTTPConnection) -> Response | None:
        """Return the response that refuses or admits the browser; None: the request may pass."""
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
        admitted = HTMLResponse(ADMITTED)
        admitted.set_cookie(site.cookie, cookie, httponly=True, samesite="strict", path="/")
        return admitted


class _EventStream:
    """A stream of server-sent events: each snapshot is a message; a slow viewer misses snapshots."""

    def __init__(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._publisher.viewers >= MAX_VIEWERS:
            busy = PlainTextResponse(f"{MAX_VIEWERS} browsers show this page; close one of them.", 503)
            return await busy(scope, receive, send)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, asyncio.TimeoutError, OSError):
                    await task

    async def _send(self, send: Send) -> None:
        async def part(body: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            await asyncio.wait_for(send(message), SEND_S)

        await part(b"retry: %d\n\n" % RETRY_MS)
        async with contextlib.aclosing(self._publisher.frames()) as frames:
            async for frame in frames:
                await part(b"data: " + frame + b"\n\n")
        await part(b"event: end\ndata: {}\n\n", more=False)


async def _disconnected(receive: Receive) -> None:
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
