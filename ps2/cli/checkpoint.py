"""``ps2 checkpoint``: list checkpoints, and verify their files."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import EXIT_FAILURE, Format, format_option, print_data, print_table
from ps2.formats import duration, short_time, size
from ps2.text_tables import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps2.storage.folders import CheckpointFolder

LS_EPILOG = """\b
Examples:
  ps2 checkpoint ls /data/checkpoints
  ps2 checkpoint ls hdfs://namenode/models/ads -o json

\b
Exit codes: 0 done, 1 there is no such folder, or a manifest cannot be read.
"""
VERIFY_EPILOG = """\b
Examples:
  ps2 checkpoint verify /data/checkpoints                        the newest complete checkpoint
  ps2 checkpoint verify /data/checkpoints/checkpoint-00000012-3f9a2c1d77ab

\b
Exit codes: 0 all files are as saved, 1 a file has changed, or there is no complete checkpoint.
"""
LS_COLUMNS = (
    Column("number", right=True),
    Column("state"),
    Column("step", right=True),
    Column("age", right=True),
    Column("created (UTC)"),
    Column("took", right=True),
    Column("pause", right=True),
    Column("size", right=True),
    Column("matrices", right=True),
    Column("shards", right=True),
    Column("run"),
)
FILE_COLUMNS = (Column("file"), Column("size", right=True), Column("state", folds=True))


@click.group()
def checkpoint() -> None:
    """List and verify checkpoints."""


@checkpoint.command(epilog=LS_EPILOG)
@click.argument("path")
@format_option
def ls(path: str, output: Format) -> None:
    """List the checkpoints in the folder PATH, the oldest first.

    PATH is a path or a URL of fsspec: a folder of checkpoints, or one checkpoint.
    """
    from ps2.storage import folders

    checkpoints = [folders.at_url(path)] if folders.is_complete(path) else folders.find(path)
    records = [_record(checkpoint) for checkpoint in checkpoints]
    if output != "table":
        print_data({"path": path, "checkpoints": records}, output)
    elif records:
        print_table(LS_COLUMNS, [_row(record) for record in records])
    else:
        click.echo(f"there are no checkpoints in {path}")
    if problems := [record["problem"] for record in records if record["problem"]]:
        click.echo(f"ps2: {'; '.join(problems)}", err=True)
        sys.exit(EXIT_FAILURE)


@checkpoint.command(epilog=VERIFY_EPILOG)
@click.argument("path")
@format_option
def verify(path: str, output: Format) -> None:
    """Read all files of a checkpoint, and compare them with what was saved.

    PATH is the checkpoint's folder, or a folder of checkpoints, of which the newest complete one is verified.
    """
    from ps2.storage import folders

    url = folders.newest(path)
    manifest = folders.read_manifest(url)
    with _progress(manifest.nbytes) as progress:
        verified = folders.verify(url, progress)
    files = [
        {"name": file.name, "bytes": file.nbytes, "ok": file.problem is None, "problem": file.problem}
        for file in verified
    ]
    num_bad = sum(file.problem is not None for file in verified)
    if output != "table":
        print_data(
            {"path": url, "number": manifest.number, "step": manifest.step, "ok": not num_bad, "files": files}, output
        )
    else:
        rows = [[file.name, size(file.nbytes), _state(file.name, file.problem)] for file in verified]
        print_table(FILE_COLUMNS, rows)
    if num_bad:
        click.echo(f"ps2: {url}: {num_bad} of {len(verified)} files cannot be used", err=True)
        sys.exit(EXIT_FAILURE)
    if output == "table":
        click.echo(f"\n{url}: all {len(verified)} files, {size(manifest.nbytes)}, are as saved")


def _record(folder: CheckpointFolder) -> dict[str, Any]:
    from ps2.errors import RecoveryError
    from ps2.storage import folders

    record: dict[str, Any] = {
        "number": folder.number,
        "run": folder.run,
        "path": folder.url,
        "state": "incomplete",
        "problem": None,
    }
    if not folder.complete:
        return record
    try:
        manifest = folders.read_manifest(folder.url)
    except RecoveryError as error:
        return {**record, "state": "unreadable", "problem": str(error)}
    return {
        **record,
        "number": manifest.number,
        "state": "complete",
        "step": manifest.step,
        "created_s": manifest.created_s,
        "seconds": manifest.seconds,
        "pause_s": manifest.pause_s,
        "bytes": manifest.nbytes,
        "matrices": len(manifest.matrices),
        "shards": sum(len(matrix.shards) for matrix in manifest.matrices),
        "version": manifest.version,
    }


def _row(record: Mapping[str, Any]) -> list[str]:
    if record["state"] != "complete":
        return [str(record["number"]), record["state"], *["-"] * (len(LS_COLUMNS) - 3), record["run"]]
    return [
        str(record["number"]),
        record["state"],
        "-" if record["step"] is None else f"{record['step']:,}",
        duration(max(time.time() - record["created_s"], 0.0)),
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["created_s"])),
        short_time(record["seconds"]),
        short_time(record["pause_s"]),
        size(record["bytes"]),
        f"{record['matrices']:,}",
        f"{record['shards']:,}",
        record["run"],
    ]


def _state(name: str, problem: str | None) -> str:
    """Return "ok", or the problem without the folder's path, which is the same for all files."""
    if problem is None:
        return "ok"
    return problem.partition(f"/{name}: ")[2] or problem


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show progress if stderr is a terminal; yield the function to call with each number of verified bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(bar_width=30), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda nbytes: bar.advance(task, nbytes)
