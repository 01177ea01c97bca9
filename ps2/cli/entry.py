"""The entry point of the ``ps2`` command. It handles SIGTERM before the imports of the command."""

from __future__ import annotations

import os
import signal
import sys

# The exit code that shells report for a process that SIGTERM has ended.
EXIT_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line (``ps2.cli.main``).

    The imports of a command take a second. The first process of a container ignores SIGTERM unless it has a handler.
    So without a handler, SIGTERM in that second would be lost, and the container would be killed later. A server that
    ends during the imports has no data to save, so its exit code is 0.
    """
    is_server = sys.argv[1:2] == ["server"]
    if is_server or os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if is_server else EXIT_TERMINATED))
    from ps2.cli.main import main

    main()


if __name__ == "__main__":
    main()
