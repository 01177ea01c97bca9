"""Spark's daemon of Python workers, whose workers each move to a host of their own before their first connection."""

from __future__ import annotations

import os
import runpy
import socket

import pyspark.daemon

from benchmarks.namespaces import enter_free

# Names of the hosts, separated by commas.
HOSTS = "PS2_BENCHMARK_HOSTS"
_worker = pyspark.daemon.worker


def _on_own_host(sock: socket.socket, authenticated: bool) -> int:
    """Do a Python worker's work; its socket to Spark was made before, and stays on the host of Spark."""
    with enter_free(os.environ[HOSTS].split(",")):
        return _worker(sock, authenticated)


if __name__ == "__main__":
    pyspark.daemon.worker = _on_own_host
    runpy.run_module("ps2.run.daemon", run_name="__main__")
