"""One Spark session for the modules here, and ways to run programs that need a Spark of their own.

Nested functions and lambdas go to tasks by value. Workers cannot import the test modules: one whose tasks use its own
functions asks for ``by_value``.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import psutil
import pyspark
import pytest
from faults.sparks import ENVIRONMENT

from ps2.cli.main import main
from ps2.config import write_token
from tests import forks
from tests.ports import free_port

REPO = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 200
LINK = "PS2: live page at "

os.environ.update(ENVIRONMENT)
os.environ.pop("SPARK_HOME", None)


@pytest.fixture(scope="session")
def spark():
    """The shared session: two slots, and four attempts a task."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # Seven calls of Java for each operation on a column.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    _end(session)


def _end(session):
    """Stop Spark and its JVM."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(10)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def sc(spark):
    return spark.sparkContext


@pytest.fixture(scope="session")
def shared_fleet(spark, sharing):
    """A fleet that the tasks of the shared session reach."""
    from ps2 import PS2Context

    fleet = sharing(lambda servers: PS2Context.getOrCreate(spark, servers=servers))
    yield fleet
    fleet.end()


@pytest.fixture
def no_fleet(shared_fleet):
    """No context runs: for tests that come after those with ``ps``, and start one of their own."""
    shared_fleet.end()


@pytest.fixture(scope="module")
def by_value(request):
    """Let tasks use the functions of the test's module, and of ``forks``: they are pickled with their code."""
    from pyspark import cloudpickle

    for module in (request.module, forks):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (request.module, forks):
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def busy(sc, tmp_path, until):
    """Two tasks on the two slots of the shared session; calling it, or the test's end, ends them."""
    from ps2.run.spark.backend_lookup import backend_of, free_slots

    release = str(tmp_path / "release")

    def work(_):
        import os
        import time

        give_up_s = time.monotonic() + 60
        while not os.path.exists(release) and time.monotonic() < give_up_s:
            time.sleep(0.05)

    def end():
        open(release, "w").close()

    job = threading.Thread(target=lambda: sc.parallelize(range(2), 2).foreach(work))
    job.start()
    try:
        until(lambda: free_slots(backend_of(sc)) == 0, "both slots taken")
        yield end
    finally:
        end()
        job.join()


@pytest.fixture(scope="session")
def mllib():
    """The folder of sample data that comes with pyspark."""
    return Path(pyspark.__file__).parent / "data" / "mllib"


@pytest.fixture(scope="session")
def environment():
    """The environment of programs: this one's, so that they find the same Python and Java."""
    return dict(os.environ)


@pytest.fixture(scope="session")
def run_program(environment):
    """``run_program(*command)``: run to the end and return the CompletedProcess, output as text."""

    def run(*command, env=None, cwd=REPO, timeout_s=PROGRAM_TIMEOUT_S):
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=env or environment,
            cwd=cwd,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def start_program(environment, tmp_path_factory):
    """``start_program(*command)``: start a program, and return it with the file that it prints to.

    It gets a session, so a process group, of its own; what is left of it is killed after the module.
    """
    started = []

    def start(*command):
        path = tmp_path_factory.mktemp("program") / "output.txt"
        with open(path, "wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=REPO,
                start_new_session=True,
            )
        started.append(process)
        return process, path

    yield start
    for process in started:
        for member in [*_family_of(process.pid), *_session_of(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


@pytest.fixture(scope="session")
def ps2_command():
    """The ``ps2`` command."""
    return Path(sys.executable).with_name("ps2")


@pytest.fixture(scope="module")
def token_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet") / "token"
    write_token(path, "a-token-of-the-fleet")
    return path


@pytest.fixture(scope="session")
def serving(until):
    """``serving(token_file, *options)``: a server that runs by itself, while the context lasts; yields its address."""

    @contextlib.contextmanager
    def serve(token_file, *options):
        port = free_port()
        command = [sys.executable, "-m", "ps2.cli.main", "server", "--listen", f"127.0.0.1:{port}", *options]
        log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        process = subprocess.Popen([*command, "--token-file", str(token_file)], stdout=log, stderr=log)

        def answers():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(answers, "server listens", 20)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                code = process.wait(PROGRAM_TIMEOUT_S)
            finally:
                process.kill()
                log.seek(0)
                message = log.read().decode()
                log.close()
            assert code == 0, message

    return serve


@pytest.fixture(scope="module")
def server(serving, token_file):
    """The address of a server that runs by itself."""
    with serving(token_file) as address:
        yield address


@pytest.fixture(scope="module")
def run_train(spark, server, token_file):
    """``run_train(*words)``: run ``ps2 train`` in this process, on the shared session and a server that runs already.

    It returns the exit code, stdout, and stderr without the link of the live page.
    """

    class SharedSession:
        def __getattr__(self, name):
            return getattr(spark, name)

        def stop(self):
            """Others need it."""

    def session(master, name):
        assert master == "local[2]", "Spark is asked for"
        return SharedSession()

    def run(*words, fleet=server, token=token_file, master="local[2]"):
        there = ["--fleet", fleet, "--token-file", token, "--master", master]
        out, err = io.StringIO(), io.StringIO()
        command = [str(word) for word in ("ps2", "train", *words, *there)]
        with (
            mock.patch("ps2.run.spark.session.get_or_create_session", session),
            # Told on a busy machine alone.
            mock.patch("ps2.cli.training.running.INTERVAL_S", 600.0),
            mock.patch.object(sys, "argv", command),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        message = [line for line in err.getvalue().splitlines(keepends=True) if not line.startswith(LINK)]
        return ended.value.code or 0, out.getvalue(), "".join(message)

    return run


@pytest.fixture(scope="session")
def family_of():
    """``family_of(pid)``: a process and all below it."""
    return _family_of


def _family_of(pid):
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _session_of(pid):
    """Return the processes that were started in a program's own session."""
    result = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid:
                result.append(process)
        except ProcessLookupError:
            continue
    return result
