"""Entry point of the ``ps2`` command, which can be interrupted from its first moment on."""

from __future__ import annotations

import os
import signal
import sys

# Exit code of a process that a signal has ended, as shells report it.
EXIT_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line (``ps2.cli.main``).

    What a command imports takes a second. The first process of a container is not ended by SIGTERM unless it has a
    handler, so one that came meanwhile would be lost, and the container killed some time later. A server has nothing
    yet to bring to safety: it ends as one that was told to.
    """
    is_server = sys.argv[1:2] == ["server"]
    if is_server or os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if is_server else EXIT_TERMINATED))
    from ps2.cli.main import main

    main()


if __name__ == "__main__":
    main()
