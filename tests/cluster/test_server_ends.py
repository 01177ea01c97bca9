"""A server that was told to end, while something in it never does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

# A call that runs for ever in a thread that the interpreter waits for.
STUCK = """
import sys
import threading
from ps2.cli.main import main
from ps2.server import process
process.END_S = 1.0
def never_ends():
    threading.Event().wait()
threading.Thread(target=never_ends).start()
sys.argv = ["ps2", "server", "--listen", "127.0.0.1:0", "--insecure"]
main()
"""
END_S = 30.0


def test_a_server_when_something_in_it_never_ends_then_it_says_what_and_ends():
    with subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.PIPE, text=True) as process:
        last = threading.Timer(END_S, process.kill)
        last.start()
        try:
            assert any("listening on" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            left = process.stderr.read()
            assert process.wait() == 1, left
        finally:
            last.cancel()
            process.kill()
    assert "never_ends" in left
