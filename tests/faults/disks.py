"""Disks that are full, and folders that nobody can write to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PIECE_BYTES = 1 << 16


@contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path]:
    """Mount a disk of that size at a folder that is made for it, and unmount it afterwards.

    Raises:
        RuntimeError: nothing can be mounted here.
    """
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={nbytes},mode=700", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))
        folder.rmdir()


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Mount an empty disk at a new folder that even root cannot write to."""
    with small_disk(folder, 1 << 20):
        _mount("-o", "remount,ro", str(folder))
        yield folder


def fill(folder: Path, left: int = 0) -> Path:
    """Fill the disk of a folder up to so many bytes; return the file that does it."""
    path = folder / "full"
    with open(path, "wb", buffering=0) as file:
        while (free := _free(folder) - left) > 0:
            try:
                file.write(bytes(min(PIECE_BYTES, free)))
            except OSError:
                break
    return path


def _free(folder: Path) -> int:
    result = os.statvfs(folder)
    return result.f_bavail * result.f_bsize


def _mount(*arguments: str) -> None:
    try:
        _run("mount", *arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", "") or str(error)
        raise RuntimeError(
            f"these tests mount a small tmpfs, which needs root (or CAP_SYS_ADMIN) on Linux: mount "
            f"{' '.join(arguments)}: {message.strip()}"
        ) from error


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
