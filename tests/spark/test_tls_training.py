"""A training on a fleet with TLS: tasks and workers get certificates as they get the token."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from ps2 import DCV, PS2Conf, PS2Context
from ps2.client.fleet import unseal
from ps2.client.task import ACCESS_VARIABLE
from tests.certificates import write

DIM = 50


@pytest.fixture
def only_tcp(sc, monkeypatch):
    """Unix sockets are not encrypted, so nobody is to use them."""
    monkeypatch.setenv("PS2_UNIX_SOCKETS", "0")
    monkeypatch.setitem(sc.environment, "PS2_UNIX_SOCKETS", "0")


def test_training_when_certificates_rotate_then_new_ones_serve(spark, only_tcp, tmp_path, until):
    from ps2.algorithms.classification import LogisticRegression

    rng = np.random.default_rng(7)
    x = rng.normal(size=(200, DIM))
    labels = (x @ rng.normal(size=DIM) > 0).astype(float)
    rows = spark.createDataFrame(
        [(label, Vectors.dense(row)) for label, row in zip(labels.tolist(), x, strict=True)], ["label", "features"]
    )
    files = write(tmp_path)
    conf = PS2Conf(tlsCert=files.cert, tlsKey=files.key, tlsCa=files.ca)
    with PS2Context.getOrCreate(spark, servers=2, conf=conf) as ps:
        total = DCV.dense(DIM, dtype="float64")
        total.zero()

        def work(worker, items):
            from ps2.client.sessions import current_session

            for _ in worker.clocks(2):
                total.add(np.ones(DIM))
            total.pull()
            (peer, *_) = current_session().network._pool._peers.values()
            return [type(connection).__name__ for connection in peer.idle]

        connections = ps.run(spark.sparkContext.parallelize(range(4), 2), work)
        np.testing.assert_array_equal(total.pull(), np.full(DIM, 4.0))
        assert {name for names in connections for name in names} == {"TlsConnection"}
        model = LogisticRegression(maxIter=5).fit(rows)
        write(tmp_path)
        renewed = (tmp_path / "cert.pem").read_text()
        environment = spark.sparkContext.environment
        until(lambda: renewed in unseal(environment[ACCESS_VARIABLE]).tls.cert, "tasks get the new certificate")
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: total.add(np.ones(DIM)))
        np.testing.assert_array_equal(total.pull(), np.full(DIM, 6.0))
        key = (tmp_path / "key.pem").read_text()
        assert key not in str(spark.sparkContext.getConf().getAll())
        assert "PRIVATE KEY" not in repr(ps._coordinator.application._access)
    assert np.mean((x @ np.asarray(model.coefficients) > 0) == labels) > 0.9
