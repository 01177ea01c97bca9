"""A server that was told to end, while something in it never does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

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
# Once the main thread only waits, another thread receives the signal: the kernel may give it to any of them.
SIGNALLED_ELSEWHERE = """
import signal
import sys
import threading
import time
from ps2.cli.main import main
def functions_of_main():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back
def send():
    while not {"wait", "serve"} <= set(functions_of_main()):
        time.sleep(0.01)
    time.sleep(0.1)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=send).start()
sys.argv = ["ps2", "server", "--listen", "127.0.0.1:0", "--insecure"]
main()
"""
END_S = 30.0


def test_server_when_something_hangs_then_says_what_and_exits():
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


def test_server_when_told_to_end_while_starting_then_ends(until):
    command = [sys.executable, "-m", "ps2.cli.entry", "server", "--listen", "127.0.0.1:0", "--insecure"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            # The first process of a container is ended by what it has a handler for alone.
            until(lambda: handles(process.pid, signal.SIGTERM), "it has a handler")
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0
            assert process.stderr.read() == ""  # it had not come to listening
        finally:
            process.kill()


def test_server_when_another_thread_is_signalled_then_ends():
    with subprocess.Popen([sys.executable, "-c", SIGNALLED_ELSEWHERE], stderr=subprocess.DEVNULL) as process:
        try:
            assert process.wait(END_S) == 0
        finally:
            process.kill()


def handles(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)
