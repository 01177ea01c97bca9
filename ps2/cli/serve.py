"""``ps2 serve``: answer requests for scores of an exported model over HTTP."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from ps2.cli.options import FiniteRange, parse_listen
from ps2.config import join_address, split_listen
from ps2.errors import ConfigError
from ps2.logs import JSON, JsonLog, log_format

if TYPE_CHECKING:
    from ps2.serving.recommending import IndexName

DEFAULT_LISTEN = "127.0.0.1:8501"
# Proxies keep idle connections for 60 s, and answer 502 if the server closes a connection before.
KEEP_ALIVE_S = 75
EPILOG = """\b
Examples:
  ps2 serve --model /models/clicks
  curl -s localhost:8501/score -d '{"rows": [{"user": "u17", "item": "i4"}]}'
  curl -s localhost:8501/recommend -d '{"users": ["u17"], "k": 10, "exclude": [["i4"]]}'
  ps2 serve --model s3://models/clicks --listen 0.0.0.0:8501 --token-file serve.token --refresh 60
  curl -s -H "Authorization: Bearer $(cat serve.token)" host:8501/metrics

\b
docs/serving.md describes the requests.

\b
Exit codes: 0 ended by SIGTERM or Ctrl-C, 1 the export cannot be used or the port is taken, 2 an option is wrong,
6 there is no token file.
"""


@click.command(epilog=EPILOG)
@click.option("--model", required=True, metavar="PATH", help="Folder (a path or URL) to which a model was exported.")
@click.option(
    "--listen",
    callback=parse_listen,
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Address to listen on; HOST:FIRST-LAST is the first free port. Other hosts can reach it only with a token.",
)
@click.option(
    "--token-file",
    type=click.Path(),
    envvar="PS2_SERVE_TOKEN_FILE",
    show_envvar=True,
    help="File with the token that requests need ('ps2 token new FILE' makes one).",
)
@click.option(
    "--refresh",
    type=FiniteRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval of checks for a newer export.",
)
@click.option(
    "--index",
    type=click.Choice(["exact", "approximate"]),
    default="exact",
    show_default=True,
    help="How /recommend finds the best items; approximate is faster with many items, and needs the extra ann.",
)
@click.option(
    "--keep-alive",
    type=click.IntRange(1),
    default=KEEP_ALIVE_S,
    show_default=True,
    metavar="SECONDS",
    help="Time after which an idle connection is closed; it should be longer than the time of proxies.",
)
@click.option("--cache-dir", type=click.Path(), help="Local folder for the files of a remote export.")
@click.option("--tls-cert", type=click.Path(), metavar="FILE", help="Certificate of this endpoint (PEM): HTTPS.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Its private key (PEM).")
def serve(
    model: str,
    listen: str,
    token_file: str | None,
    refresh: float,
    index: IndexName,
    keep_alive: int,
    cache_dir: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Answer requests for scores and recommendations of an exported model over HTTP, without Spark and servers."""
    # Each request has its own thread, and scoring a few rows is too little work for several threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ps2.serving import http
    from ps2.serving.scorer import Scorer

    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key: expected both or neither")
    if log_format() == JSON:
        JsonLog(logger="").open()
    certificate = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    host, ports = split_listen(listen, "--listen")
    tokens = None if token_file is None else http.TokenFile(token_file)
    with (
        http.listen(host, ports, tokens) as listener,
        Scorer(model, refreshS=refresh, cacheDir=cache_dir, index=index) as scorer,
    ):
        # The HTTP server ends after these signals, and then raises them again for the earlier handlers.
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda *_: None)
        server = http.http_server(http.ScoringService(scorer, tokens), keep_alive, certificate)
        address = join_address(*listener.getsockname()[:2])
        click.echo(f"{scorer!r}\nlistening at {'http' if certificate is None else 'https'}://{address}")
        server.run(sockets=[listener])
