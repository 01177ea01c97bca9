"""Modules of the user's train on DataFrames, in tasks, with their parameters on the servers."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from ps2 import DCV, EmbeddingTable
from ps2.algorithms.feature import KeyHasher
from ps2.client.matrix import DCVMatrix
from ps2.errors import CheckpointCorruptError, ConfigError, InputError, NotFoundError, PS2Error, UsageError
from ps2.torch import RemoteEmbedding, RemoteOptimizer, TorchEstimator, TorchModel

pytestmark = pytest.mark.usefixtures("spark_ps")

KEYS, K, ROWS, FIELDS = 40, 4, 600, 3


class Net(torch.nn.Module):
    """A factorization machine without its linear part, beside a layer for numbers."""

    def __init__(self, table):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = RemoteEmbedding(table)
        self.dense = torch.nn.Linear(2 + K, 1)

    def forward(self, keys, numbers):
        vectors = self.embedding(keys)
        crossed = (vectors.sum(dim=1) ** 2 - (vectors**2).sum(dim=1)) / 2
        return self.dense(torch.cat([crossed + vectors.sum(dim=1), numbers], dim=1)).squeeze(1)


def make(**settings):
    table = EmbeddingTable(K, "sgd", lr=0.5, **settings)
    weights = np.random.default_rng(2).normal(size=(KEYS, K)).astype(np.float32)
    return Net(table.push(np.arange(KEYS), weights * -2e-1))


def estimator(**params):
    inputs = {"inputCols": ["keys", "numbers"], "batchSize": 50, "epochs": 2, "lr": 0.1, "optimizer": "sgd"}
    return TorchEstimator(make, torch.nn.BCEWithLogitsLoss(), torch.sigmoid, **{**inputs, **params})


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    keys, numbers = rng.integers(0, KEYS, (ROWS, FIELDS)), rng.normal(size=(ROWS, 2))
    effect = rng.normal(size=KEYS)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-(effect[keys].sum(axis=1) + numbers[:, 0])))
    return keys, numbers.astype(np.float32), labels.astype(np.float32)


@pytest.fixture(scope="module")
def df(spark, rows):
    table = [(k.tolist(), n.tolist(), float(y)) for k, n, y in zip(*rows, strict=True)]
    frame = spark.createDataFrame(table, "keys array<bigint>, raw array<double>, label double")
    frame = frame.withColumn("numbers", array_to_vector("raw")).coalesce(1).cache()
    frame.count()
    return frame


@pytest.fixture(scope="module")
def model(df):
    return estimator(seed=3).fit(df)


def test_torch_estimator_of_one_worker_then_steps_are_torchs(rows, model):
    keys, numbers, labels = map(torch.from_numpy, rows)
    net = make()
    weights = torch.from_numpy(net.embedding.table.pull(np.arange(KEYS)))
    net.embedding = torch.nn.Embedding.from_pretrained(weights, freeze=False)
    optimizer = torch.optim.SGD(
        [{"params": net.dense.parameters(), "lr": 0.1}, {"params": net.embedding.parameters(), "lr": 0.5}]
    )
    result = []
    for epoch in range(2):
        order = torch.from_numpy(np.random.default_rng((3, 0, epoch)).permutation(ROWS))
        for part in order.split(50):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(keys[part], numbers[part]), labels[part])
            loss.backward()
            optimizer.step()
            result.append(loss.item())
    np.testing.assert_allclose(model.summary.objectiveHistory, result, rtol=1e-4)


def test_torch_model_when_transforming_then_predicts(rows, df, model):
    keys, numbers, _ = map(torch.from_numpy, rows)
    with torch.no_grad():
        expected = torch.sigmoid(model.module.eval()(keys, numbers)).numpy()
    result = np.array([row.prediction for row in model.transform(df).select("prediction").collect()])
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_torch_estimator_of_two_workers_then_loss_falls(df):
    model = estimator(numWorkers=2, epochs=6, staleness=1, seed=1).fit(df)
    history = model.summary.objectiveHistory
    assert len(history) == 6 * 6
    assert np.mean(history[-6:]) < np.mean(history[:6]) - 0.02


@pytest.mark.parametrize("workers", [1, 2])
def test_torch_estimator_when_rows_are_held_out_then_best_stays(df, workers):
    """Labels of a tenth of the rows are learned by heart, and the best epoch's model predicts the others best."""
    marked = df.withColumn("held", F.xxhash64("raw") % 10 != 0)
    settings = {"epochs": 30, "patience": 2, "validationIndicatorCol": "held", "numWorkers": workers, "lr": 0.3}
    stopped = estimator(batchSize=20, **settings)
    stopped.modelFn = partial(make, withCopy=True)
    model = stopped.fit(marked)
    history = model.summary.history
    steps = 1 + history.steps - len(history.validation)  # of an epoch: the first has one loss, the others one for each
    assert history.best == steps * (1 + np.argmin(history.validation[::steps]))
    assert history.steps == history.best + 2 * steps < 30 * steps
    tested = model.transform(marked.where("held")).select("label", "prediction").toPandas()
    losses = -np.log(np.where(tested.label > 0, tested.prediction, 1 - tested.prediction))
    assert losses.mean() == pytest.approx(min(history.validation), rel=1e-4)


def test_torch_estimator_when_table_has_no_room_then_says_so(df):
    marked = df.withColumn("held", F.lit(False))
    with pytest.raises(ConfigError, match=r"patience: .* the table of 'embedding' needs room for a copy"):
        estimator(validationIndicatorCol="held").fit(marked)
    assert estimator(validationIndicatorCol="held", patience=0).fit(marked).summary.validationHistory


def test_torch_estimator_when_a_part_is_empty_then_all_learn(df):
    """Rows are dealt out: one rdd_partition of two has them all, and there are two workers."""
    model = estimator(numWorkers=2).fit(df.union(df.where("label > 5")))
    assert len(model.summary.objectiveHistory) == 2 * 6
    with pytest.raises(InputError, match="expected rows to train on, got an empty DataFrame"):
        estimator().fit(df.limit(0))


def test_torch_model_when_saved_then_loads_alike(df, model, tmp_path):
    path = str(tmp_path / "model")
    model.save(path)
    loaded = TorchModel.load(path, make, torch.sigmoid)
    first = df.limit(20)
    assert loaded.transform(first).collect() == model.transform(first).collect()
    assert loaded.module.embedding.table.keysCount() == model.module.embedding.table.keysCount()


def test_torch_model_when_file_has_changed_then_is_refused(model, tmp_path):
    path = tmp_path / "model"
    model.save(str(path))
    with open(path / "state_dict.pt", "ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointCorruptError, match="checksum"):
        TorchModel.load(str(path), make)


def test_torch_model_when_folder_exists_then_is_refused(model, tmp_path):
    with pytest.raises(UsageError, match="something already"):
        model.save(str(tmp_path))


def test_torch_estimator_when_a_task_dies_then_counts_once(df, tmp_path):
    """The worker is killed between its pushes and the end of the clock; its next attempt repeats the step."""
    died, step = tmp_path / "died", RemoteOptimizer.step

    def last_step(optimizer, pull):
        step(optimizer, pull=pull)
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def loss(output, labels):
        if not died.exists():
            RemoteOptimizer.step = last_step  # of the task's process
        return torch.nn.functional.binary_cross_entropy_with_logits(output, labels)

    plain = estimator(seed=3).fit(df)
    killed = TorchEstimator(make, loss, inputCols=["keys", "numbers"], batchSize=50, epochs=2, lr=0.1, seed=3)
    killed.setOptimizer("sgd")
    result = killed.fit(df)
    assert died.exists()
    np.testing.assert_allclose(
        result.module.embedding.table.pull(np.arange(KEYS)),
        plain.module.embedding.table.pull(np.arange(KEYS)),
        rtol=1e-5,
    )
    torch.testing.assert_close(result.module.state_dict(), plain.module.state_dict())


def test_remote_module_in_tasks_then_all_push_to_one_table(spark):
    table = EmbeddingTable(K, "sgd", lr=1.0, init="zeros")
    module = torch.nn.Sequential(RemoteEmbedding(table, "sum"), torch.nn.Linear(K, 1))
    optimizer = RemoteOptimizer(module.parameters(), "sgd", lr=1.0)
    before = module[1].bias.item()

    def step(_):
        optimizer.pull()
        (module[0](torch.tensor([[1, 2]])).sum() + module[1].bias.sum()).backward()
        optimizer.step()

    spark.sparkContext.parallelize(range(4), 4).foreachPartition(step)
    np.testing.assert_allclose(table.pull([1, 2]), -4.0)
    optimizer.pull()
    assert module[1].bias.item() == pytest.approx(before - 4.0)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"inputCols": ["keys", "nothing"]}, InputError, "no column 'nothing'"),
        ({"batchSize": 0}, ConfigError, "batchSize"),
        ({"optimizer": "lion"}, ConfigError, "optimizer"),
        ({"device": "tpu"}, ConfigError, "device: expected 'auto', 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    ],
)
def test_torch_estimator_when_misused_then_error_says_why(df, change, error, said):
    with pytest.raises(error, match=said):
        estimator(**change).fit(df)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a host without a GPU is needed")
def test_torch_estimator_when_no_worker_has_a_gpu_then_says_so(df):
    with pytest.raises(PS2Error, match="device: expected 'auto' or 'cpu', because PyTorch finds no GPU on this host"):
        estimator(device="cuda").fit(df)


def test_torch_estimator_when_arrays_are_ragged_then_names_row(df):
    ragged = df.withColumn(
        "keys", F.when(F.monotonically_increasing_id() == 7, F.array(F.lit(1))).otherwise(F.col("keys"))
    )
    with pytest.raises(InputError, match="column 'keys', row 7: expected an array of 3 numbers"):
        estimator().fit(ragged)


class BagNet(torch.nn.Module):
    def __init__(self, table):
        super().__init__()
        self.bag = RemoteEmbedding(table, "sum")

    def forward(self, keys, weights):
        return self.bag(keys, per_sample_weights=weights)


def test_torch_estimator_when_arrays_are_bags_then_sums_weights(spark):
    rows = [([1, 2], [1.0, 0.5], 0.0), ([], [], 0.0), ([3], [2.0], 0.0)] * 4
    df = spark.createDataFrame(rows, "keys array<bigint>, weights array<double>, label double").coalesce(1)
    inputs = {"inputCols": ["keys", "weights"], "raggedCols": ["keys", "weights"], "batchSize": 5}

    def make():
        table = EmbeddingTable(1, "sgd", lr=1.0, init="zeros")
        return BagNet(table.push(np.arange(KEYS), np.ones((KEYS, 1), np.float32)))

    # The loss has no gradient, so weights stay as they are: -1.
    model = TorchEstimator(make, lambda output, labels: 0 * output.sum(), **inputs).fit(df)
    assert [row.prediction for row in model.transform(df).collect()] == [-1.5, 0.0, -2.0] * 4


def test_torch_estimator_when_keys_are_hashed_then_learns_them(spark):
    """Rows with a null have a key less."""
    rng = np.random.default_rng(0)
    sites, ads = rng.integers(0, 3, 400), rng.integers(0, 3, 400)
    pairs = zip(sites.tolist(), ads.tolist(), strict=True)
    rows = [(f"s{s}" if s else None, f"a{a}", 1.0 + a, float(s + a > 2)) for s, a in pairs]
    df = spark.createDataFrame(rows, "site string, ad string, price double, label double").coalesce(1)
    hashed = KeyHasher(categoricalCols=["site", "ad"], numericCols=["price"]).transform(df)

    def make():
        return BagNet(EmbeddingTable(1, "adagrad", lr=0.5, init="zeros"))

    def loss(output, labels):
        return torch.nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), labels)

    inputs = {"inputCols": ["keys", "values"], "raggedCols": ["keys", "values"], "batchSize": 50, "epochs": 5}
    model = TorchEstimator(make, loss, **inputs).fit(hashed)
    history = model.summary.objectiveHistory
    assert history[-1] < 0.5 * history[0]
    assert model.module.bag.table.keysCount() == 2 + 3 + 1


def test_torch_estimator_when_ragged_is_unknown_then_names_it(df):
    with pytest.raises(InputError, match=r"raggedCols: .* got 'other'"):
        estimator(raggedCols=["other"]).fit(df)


def test_torch_estimator_when_model_is_given_then_goes_on(df, model):
    again = TorchEstimator(lambda: model.module, torch.nn.BCEWithLogitsLoss(), inputCols=["keys", "numbers"], lr=1e-6)
    first = again.fit(df).summary.objectiveHistory[0]
    assert first < np.mean(model.summary.objectiveHistory[:3])


def test_torch_estimator_when_loss_has_axes_then_says_so(df):
    with pytest.raises(InputError, match="expected the mean loss"):
        TorchEstimator(make, lambda output, labels: output - labels, inputCols=["keys", "numbers"]).fit(df)


def test_torch_estimator_when_model_is_no_module_then_says_so(df):
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module"):
        TorchEstimator(lambda: 3, torch.nn.MSELoss(), inputCols=["keys"]).fit(df)


def test_torch_estimator_when_pickled_then_keeps_functions():
    again = cloudpickle.loads(cloudpickle.dumps(estimator(batchSize=7)))
    assert again.getBatchSize() == 7


def test_model_when_dropped_then_servers_free_its_table(df):
    trained = estimator(epochs=1).fit(df)
    matrix = trained.module.embedding.table.matrix.number
    assert DCVMatrix.existing(matrix).shape[0] == K
    del trained
    gc.collect()
    DCV.dense(1).free()
    with pytest.raises(NotFoundError):
        DCVMatrix.existing(matrix)
