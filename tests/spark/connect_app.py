"""A client of a Spark Connect server, without a SparkContext.

    python connect_app.py PORT PID FOLDER MASTER (common | rare)

PORT and PID are the server's; MASTER is a free port. ``common``: runs and a fit. ``rare``: streams, refusals, sessions
that end; at last the server is killed in the middle of a run. It prints one line of JSON: what
``test_spark_connect.py`` asserts on.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.client import SparkConnectClient

from ps2 import DCV, PS2Conf, PS2Context
from ps2.algorithms import LogisticRegression, LogisticRegressionModel, OnlineLogisticRegression
from ps2.config import new_token, write_token
from ps2.errors import PS2Error
from ps2.listening import is_free

port, pid, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
# Of this host, where nobody listens.
ELSEWHERE = "127.0.0.2"
said = {}


def refusal(call):
    """Return how a call fails: the class of the error, and its message."""
    try:
        call()
    except PS2Error as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def rows_of(batches):
    return sum(batch.num_rows for batch in batches)


def run(ps, spark):
    total = DCV.dense(4)

    def work(worker, batches):
        rows = rows_of(batches)
        for _ in worker.clocks(3):
            total.add(np.full(4, rows))
        return worker.rank, rows

    said["results"] = list(ps.run(spark.range(100), work, workers=2))
    said["sum"] = total.sum()

    def push(batches):
        for batch in batches:
            total.add(np.full(4, batch.num_rows))
            yield batch

    total.zero()
    said["counted"] = spark.range(100).repartition(3).mapInArrow(push, "id long").count()
    said["sum of tasks"] = total.sum()
    total.zero()
    said["failure"] = refusal(lambda: ps.run(spark.range(9), lambda worker, batches: 1 / 0, workers=2))
    said["slots"] = refusal(lambda: ps.run(spark.range(99), work, workers=9))
    said["sum after failures"] = total.sum()


def run_local(ps):
    """Run workers over data of this process."""
    frame = pd.DataFrame({"id": range(5)})
    said["list"] = list(ps.run(["a", "b", "c"], lambda worker, rows: list(rows), workers=2))
    said["pandas"] = list(ps.run(frame, lambda worker, batches: [batch["id"].to_pylist() for batch in batches], 2))


def write_clicks(path, seed):
    ids = np.random.default_rng(seed).integers(0, 20, (100, 3))
    table = pa.table({"label": (ids[:, 0] < 10).astype(float), "keys": pa.array(list(ids))})
    pq.write_table(table, path)


def learn_from_stream(ps, spark):
    """Learn three files, one in each batch, in two queries; the fleet rolls back before the last one."""
    files, checkpoint = folder / "clicks", str(folder / "stream")
    files.mkdir()
    reader = spark.readStream.schema("label double, keys array<bigint>").option("maxFilesPerTrigger", 1)
    for number in range(2):
        write_clicks(files / f"{number}.parquet", number)
    estimator, once = OnlineLogisticRegression(), {"availableNow": True}
    first = estimator.fitStream(reader.parquet(str(files)), checkpoint, trigger=once)
    first.awaitTermination()
    said["stream"] = [[one.batch, one.total.rows] for one in first.recentProgress]
    second = estimator.fitStream(reader.parquet(str(files)), checkpoint)
    write_clicks(files / "2.parquet", 2)
    second.processAllAvailable()
    ps.rollBack()
    write_clicks(files / "3.parquet", 3)
    give_up_s = time.monotonic() + 100
    while second.lastProgress.batch < 3 and time.monotonic() < give_up_s:
        time.sleep(0.05)
    said["stream again"] = [second.restarts, [second.lastProgress.batch, second.lastProgress.total.rows]]
    second.stop(60)
    write_clicks(files / "4.parquet", 4)
    failing = reader.parquet(str(files)).withColumn("label", F.udf(lambda label: label / 0, "double")("label"))
    third = estimator.fitStream(failing, checkpoint, trigger=once)
    said["stream fails"] = refusal(third.awaitTermination)


def learn(spark):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4))
    y = (x @ [2.0, -1.0, 1.0, 0.0] > 0).astype(float)
    frame = spark.createDataFrame(
        [(float(label), Vectors.dense(row)) for label, row in zip(y, x, strict=True)], ["label", "features"]
    )
    model = LogisticRegression(maxIter=20, regParam=0.1, numWorkers=2).fit(frame)
    result = model.transform(frame).select("label", "probability", "prediction").collect()
    said["accuracy"] = float(np.mean([row.label == row.prediction for row in result]))
    said["probability"] = [row.probability[1] for row in result[:9]]
    said["expected"] = (1 / (1 + np.exp(-(x[:9] @ model.coefficients.toArray() + model.intercept)))).tolist()
    model.write().overwrite().save(f"{folder}/model")
    model.write().overwrite().save(f"{folder}/model")
    said["loaded"] = LogisticRegressionModel.load(f"{folder}/model").coefficients == model.coefficients
    said["to pyspark"] = refusal(model.toPyspark)


def be_out_of_reach(spark, master):
    """Run workers that cannot reach this driver, with a server that they can reach."""
    token = folder / "token"
    write_token(token, new_token())
    command = [sys.executable, "-m", "ps2.cli.main", "server", "--listen", f"127.0.0.1:{master}"]
    server = subprocess.Popen([*command, "--token-file", str(token)], stderr=subprocess.DEVNULL)
    try:
        give_up_s = time.monotonic() + 60
        while is_free(socket.AF_INET, ("127.0.0.1", master)) and time.monotonic() < give_up_s:
            time.sleep(0.05)
        inputs = {"fleet": f"127.0.0.1:{master}", "tokenFile": str(token), "conf": PS2Conf(advertiseAddress=ELSEWHERE)}
        with PS2Context.getOrCreate(spark, **inputs) as ps:
            said["unreached"] = refusal(lambda: ps.run(spark.range(2), lambda worker, batches: None, workers=1))
    finally:
        server.terminate()
        server.wait()


def end_session_in_run():
    """Stop the session of a client in the middle of its run."""
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    names[id(session.client)] = "stopped"
    with PS2Context.getOrCreate(session, servers=1) as ps:
        rows, stop = session.range(9), threading.Thread(target=session.stop)
        said["stopped"] = refusal(
            lambda: ps.run(rows, work_without_end, workers=1, onClock=lambda clock: clock == 1 and stop.start())
        )
    stop.join()


def release_session_in_stream():
    """Let the server release the session of a client in the middle of its stream."""
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    names[id(session.client)] = "released"
    with PS2Context.getOrCreate(session, servers=1):
        rate = session.readStream.format("rate").option("rowsPerSecond", 100).load()
        rows = rate.selectExpr("double(value % 2) label", "array(value % 9) keys")
        training = OnlineLogisticRegression().fitStream(rows, str(folder / "released"))
        give_up_s = time.monotonic() + 100
        while training.lastProgress is None and time.monotonic() < give_up_s:
            time.sleep(0.05)
        with suppress(SparkConnectException):  # PS2 closes the client as soon as it notices
            session.client.release_session()
        began_s = time.monotonic()
        said["released"] = refusal(lambda: training.awaitTermination(60))
        said["seconds to the end"] = time.monotonic() - began_s
    said["after the release"] = refusal(lambda: PS2Context.getOrCreate(session, servers=1))


def work_without_end(worker, batches):
    for _ in worker.clocks(10**6):
        time.sleep(0.05)


def lose_server(ps, spark):
    """Kill the Connect server after the first clock of a run without an end."""

    def kill(clock):
        if clock == 1:
            os.kill(pid, signal.SIGKILL)

    began_s = time.monotonic()
    said["lost"] = refusal(lambda: ps.run(spark.range(9), work_without_end, workers=1, onClock=kill))
    said["seconds"] = time.monotonic() - began_s


def close_clients():
    """Close the clients that are open: at the program's end, each would call the lost server for ten minutes."""
    clients = [one for one in gc.get_objects() if isinstance(one, SparkConnectClient) and not one.is_closed]
    said["open"] = [names.get(id(client), "batches of a stream") for client in clients]
    for client in clients:
        client.close()


names = {}
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
names[id(spark.client)] = "first"
if sys.argv[5] == "common":
    with PS2Context.getOrCreate(spark, servers=2) as context:
        run(context, spark)
        run_local(context)
        learn(spark)
else:
    with PS2Context.getOrCreate(spark, servers=2) as context:
        learn_from_stream(context, spark)
    said["launcher"] = refusal(lambda: PS2Context.getOrCreate(spark, launcher="spark"))
    be_out_of_reach(spark, int(sys.argv[4]))
    end_session_in_run()
    release_session_in_stream()
    with PS2Context.getOrCreate(spark, servers=1, driverHost="127.0.0.1") as context:
        lose_server(context, spark)
    close_clients()
print(json.dumps(said), flush=True)
