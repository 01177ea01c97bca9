"""An HTTP endpoint for a ``Scorer``; requests and answers are JSON. Needs starlette and uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ps2.certificates import file_stamp
from ps2.config import LOOPBACK, is_loopback, read_token
from ps2.errors import ConfigError, LaunchError, PS2Error, UsageError
from ps2.listening import listening_socket
from ps2.logs import JSON, log_format
from ps2.number_checks import is_whole
from ps2.serving.scorer import Scorer

try:
    import uvicorn
    from anyio import fail_after
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from ps2.http_server import BACKLOG, HttpServer
except ImportError as error:
    raise ConfigError(
        f"scores over HTTP need starlette and uvicorn: pip install starlette uvicorn ({error})"
    ) from error

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
MAX_CONNECTIONS = 16_384
# Time limit for a client to send its whole body; a slower client gets an error, because it would occupy a connection.
BODY_S = 30.0
# Maximum number of values in an answer: a body of 16 MiB could request more values than fit into memory.
MAX_VALUES = 4 << 20
# Requests with more rows or bytes are parsed and scored in a thread, so that other requests need not wait.
INLINE_ROWS = 64
INLINE_BYTES = 1 << 16
# An answer with more values is converted to text in threads, in chunks of this many values. A chunk needs the GIL for a
# few milliseconds.
CHUNK_VALUES = 1 << 14
# Seconds between two checks of the token file for changes.
TOKEN_CHECK_S = 1.0

# A function from the list in a request, and its other fields by name, to the fields of the answer by name: arrays,
# lists of lists, and plain values.
Answer = Callable[..., Mapping[str, Any]]

# Upper limits of the durations in each bucket of the histogram.
BUCKETS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.2, 1.0)


class ScoringMetrics:
    """The metrics of the endpoint: counts of requests, and the scorer's state at the time of a scrape."""

    def __init__(self, scorer: Scorer) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "ps2_scoring_requests", "Answered requests", ["request", "status"], registry=self._registry
        )
        self._rows = Counter(
            "ps2_scored_rows", "Rows scored, users answered, or keys looked up", ["request"], registry=self._registry
        )
        self._seconds = Histogram(
            "ps2_scoring_duration_seconds",
            "Time to answer a request",
            ["request"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        for name, text, read in (
            ("ps2_export_number", "Number of the export in use", lambda: scorer.number),
            ("ps2_export_keys", "Keys of the export in use and of its merged deltas", lambda: scorer.keysCount),
            ("ps2_export_age_seconds", "Age of the export in use", lambda: time.time() - scorer.writtenS),
            ("ps2_refresh_failing", "1 if the last check for a new export failed", lambda: scorer.failure is not None),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def count(self, request: str, status: int, rows: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(request, str(status)).inc()
        if status == 200:
            self._rows.labels(request).inc(rows)
        self._seconds.labels(request).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics as text, and the text's content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _TooLarge(Exception):
    """A request's body has too many bytes, or requests too many values."""


class _LongAnswer(StreamingResponse):
    """An answer that is converted to text chunk by chunk while the client reads it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. If uvicorn cancels the answer at shutdown, it logs one line instead of a traceback."""
        with suppress(asyncio.CancelledError):
            await super().__call__(scope, receive, send)


class TokenFile:
    """The tokens in a file, read again when the file changes; tokens stay valid while the file is unusable."""

    def __init__(self, path: str) -> None:
        """Read the file; raise AuthError or ConfigError if it is not usable."""
        self._path = path
        self._tokens, self._stamp, self._checked_s = read_token(path).split(), file_stamp(path), time.monotonic()

    def accepts(self, token_text: str) -> bool:
        """Return True if the text is one of the tokens. Comparisons take constant time, which reveals nothing."""
        if time.monotonic() - self._checked_s > TOKEN_CHECK_S:
            self._checked_s = time.monotonic()
            self._reload()
        matches = [hmac.compare_digest(token_text.encode(), valid.encode()) for valid in self._tokens]
        return any(matches)

    def _reload(self) -> None:
        stamp = file_stamp(self._path)
        if stamp in (None, self._stamp):
            return
        self._stamp = stamp
        try:
            self._tokens = read_token(self._path).split()
        except PS2Error as error:
            log.warning("the previous tokens stay valid: %s", error)


class ScoringService:
    """Answers the requests that docs/serving.md describes."""

    def __init__(self, scorer: Scorer, tokens: TokenFile | None) -> None:
        self._scorer = scorer
        self._tokens = tokens
        self._metrics = ScoringMetrics(scorer)

    def application(self) -> Starlette:
        application = Starlette(
            routes=[
                Route("/score", self._score, methods=["POST"]),
                Route("/recommend", self._recommend, methods=["POST"]),
                Route("/vectors", self._vectors, methods=["POST"]),
                Route("/healthz", self._health, methods=["GET"]),
                Route("/metrics", self._scrape, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_error},
        )
        application.router.redirect_slashes = False  # a redirect would go to the host that the request names
        return application

    async def _score(self, request: Request) -> Response:
        def answer(rows: Any) -> dict[str, Any]:
            scores, number = self._scorer.scoreAt(rows)
            return {"scores": scores, "export": number}

        return await self._answer(request, "rows", answer)

    async def _recommend(self, request: Request) -> Response:
        def answer(users: Any, k: Any = 10, **lists: Any) -> dict[str, Any]:
            if is_whole(k) and k * len(users) > MAX_VALUES:
                raise _TooLarge(f"{MAX_VALUES:,} items for all users together")
            return self._scorer.recommend(users, k, **lists)._asdict()

        return await self._answer(request, "users", answer, options=("k", "exclude", "items"))

    async def _vectors(self, request: Request) -> Response:
        def answer(keys: Any) -> dict[str, Any]:
            vectors, present = self._scorer.lookUp(keys)
            return {"vectors": vectors, "present": present}

        return await self._answer(request, "keys", answer, self._scorer.manifest.description.width)

    async def _answer(
        self, request: Request, field: str, answer: Answer, width: int = 0, options: Collection[str] = ()
    ) -> Response:
        """Answer a request with the body ``{field: [...]}``, in a thread if it is long or if there are ``options``.

        ``width``: the number of values in the answer for each item of the request; 0: the answer's size is not limited.
        ``options``: the other fields that the body may have.
        """
        if (refusal := self._refusal(request)) is not None:
            return refusal
        began_s, rows, status = time.perf_counter(), 0, 500
        response: Response
        try:
            with fail_after(BODY_S):
                body = await _body(request)
            if (1 + body.count(b",")) * width > MAX_VALUES:  # an upper bound, before the body is parsed
                raise _TooLarge(f"{MAX_VALUES // width:,} {field}, for an answer of {MAX_VALUES:,} values")
            is_long = len(body) > INLINE_BYTES
            parse = partial(_fields, body, field, options)
            items, more = await run_in_threadpool(parse) if is_long else parse()
            rows = len(items)
            respond = partial(answer, items, **more)
            is_long = is_long or rows > INLINE_ROWS or bool(options)
            content = await run_in_threadpool(respond) if is_long else respond()
            chunks = _json_chunks(content)
            if sum(map(_num_values, content.values())) > CHUNK_VALUES:
                response = _LongAnswer(chunks, media_type=JSONResponse.media_type)
            else:
                response = Response("".join(chunks), media_type=JSONResponse.media_type)
            status = 200
        except _TooLarge as error:
            status, response = 413, _error(413, f"expected at most {error}; send several requests")
        except TimeoutError:
            status, response = 408, _error(408, f"expected the whole body within {BODY_S:g} s", {"Connection": "close"})
        except asyncio.CancelledError:  # uvicorn cancels requests seconds after SIGTERM, and would log a traceback
            status, response = 503, _error(503, "this endpoint is shutting down")
        except ClientDisconnect:
            status, response = 400, _error(400, "the client disconnected")
        except UsageError as error:
            status, response = 400, _error(400, str(error))
        finally:
            self._metrics.count(request.url.path.lstrip("/"), status, rows, time.perf_counter() - began_s)
        return response

    async def _health(self, request: Request) -> Response:
        failure = self._scorer.failure
        content = {"status": "ok", "export": self._scorer.number, "kind": self._scorer.manifest.description.kind}
        return JSONResponse(content | ({} if failure is None else {"refresh": str(failure)}))

    async def _scrape(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        text, kind = self._metrics.text()
        return Response(text, media_type=kind)

    def _refusal(self, request: Request) -> Response | None:
        """Return the error for a request without a valid token; None if the request may be answered."""
        if self._tokens is None:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._tokens.accepts(token.strip()):
            return None
        return JSONResponse(
            {"error": "expected the header Authorization: Bearer TOKEN, with the token of this endpoint"},
            401,
            {"WWW-Authenticate": "Bearer"},
        )


def listen(host: str, ports: range, tokens: TokenFile | None) -> socket.socket:
    """Return a socket that listens on the first free port.

    Raises ConfigError if other hosts could connect without a token, and LaunchError if no port is free.
    """
    if tokens is None and not is_loopback(host):
        raise ConfigError(f"{host} can be reached by other hosts: give --token-file, or listen at {LOOPBACK}")
    try:
        return listening_socket(host, ports, BACKLOG)
    except OSError as error:
        raise LaunchError(f"cannot listen at {host}, port {ports[0]}..{ports[-1]}: {error}") from error


def http_server(service: ScoringService, keep_alive_s: int, certificate: tuple[str, str] | None = None) -> HttpServer:
    """Return the server. Its ``run(sockets=[listener])`` answers requests until SIGINT, SIGTERM or ``should_exit``.

    ``keep_alive_s``: the server closes a connection after this time without a request. ``certificate``: the files of a
    certificate and its key (PEM), for HTTPS. Raises ConfigError if the files are unusable.
    """
    cert, key = certificate or (None, None)
    config = uvicorn.Config(
        service.application(),
        # With None, uvicorn logs to the process's log.
        log_config=None if log_format() == JSON else uvicorn.config.LOGGING_CONFIG,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=5,
    )
    server = HttpServer(config, MAX_CONNECTIONS)
    try:
        config.load()
    except OSError as error:  # or ssl.SSLError, its subclass
        raise ConfigError(f"--tls-cert {cert}, --tls-key {key}: expected a certificate and its key: {error}") from error
    return server


async def _body(request: Request) -> bytes:
    """Return the body; raise _TooLarge as soon as it has too many bytes."""
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:  # h11 has checked that the header is an integer
        raise _TooLarge(f"{MAX_BODY_BYTES:,} bytes")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _TooLarge(f"{MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)


def _fields(body: bytes, field: str, options: Collection[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the list called ``field`` in a request's body, and its other fields, which are among ``options``.

    Raises UsageError if the body has another form.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"expected JSON, {{{field!r}: [...]}}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get(field), list):
        raise UsageError(f"expected an object with a list {field!r}, got {type(content).__name__}")
    items: list[Any] = content.pop(field)
    if unknown := sorted(content.keys() - set(options)):
        expected = f"with {', '.join(map(repr, options))} at most" if options else "alone"
        raise UsageError(f"expected {field!r} {expected}, got {', '.join(map(repr, unknown))} as well")
    return items, content


def _num_values(value: Any) -> int:
    """Return the number of values of an array, or of a list of lists; 0 for other values."""
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(len, value)) if isinstance(value, list) else 0


def _json_chunks(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a JSON object in chunks of at most ``CHUNK_VALUES`` values, or of one row."""
    separator = "{"
    for name, value in content.items():
        yield f"{separator}{json.dumps(name)}:"
        separator = ","
        if not isinstance(value, (np.ndarray, list)):
            yield json.dumps(value)
            continue
        rows = max(1, CHUNK_VALUES // max(1, _num_values(value[:1])))
        yield "["
        for begin in range(0, len(value), rows):
            part = value[begin : begin + rows]
            values = part.tolist() if isinstance(part, np.ndarray) else part
            text = json.dumps(values, separators=(",", ":"), allow_nan=False)
            yield "," * (begin > 0) + text[1:-1]
        yield "]"
    yield "}"


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that no route matches, in the same form as other errors."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", dict(error.headers or {}))


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # JSON may contain a lone surrogate, for example in a column's name; UTF-8 cannot encode it.
    return JSONResponse({"error": text.encode(errors="backslashreplace").decode()}, status, headers)
