"""DeepFM in PyTorch, with its embeddings and layers on servers, beside the same module in one process.

python examples/torch_clicks.py [--days N] [--rows N] [--ids N] [--epochs N] [--workers N]

Trains on generated click logs (examples/generated_clicks.py), and scores the day after them. PyTorch is needed:
pip install 'ps2-spark[torch]'. With one worker, both ways take the same steps from the same weights.
"""

import argparse
import tempfile
import time

import numpy as np
import torch
from generated_clicks import IDS, NUMBERS, ClickLog
from pyspark.sql import functions as F
from scipy.stats import rankdata

from ps2 import EmbeddingTable, PS2Context
from ps2.run.spark.session import get_or_create_session
from ps2.torch import RemoteEmbedding, TorchEstimator

K, LAYERS = 16, (128, 64)
EMBEDDING_RATE, DENSE_RATE, BATCH, SEED = 0.05, 1e-3, 2048, 1

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--days", type=int, default=2, help="to train on")
parser.add_argument("--rows", type=int, default=100_000, help="a day")
parser.add_argument("--ids", type=int, default=1_000_000, help="at a time")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--workers", type=int, default=1)


class DeepFM(torch.nn.Module):
    """Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017.

    ``embedding`` returns 1 + K numbers for each key: a linear weight, and a vector.
    """

    def __init__(self, embedding):
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding = embedding
        layers, inputs = [], len(IDS) * K + len(NUMBERS)
        for size in LAYERS:
            layers += [torch.nn.Linear(inputs, size), torch.nn.ReLU()]
            inputs = size
        self.deep = torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 1))
        self.linear = torch.nn.Linear(len(NUMBERS), 1)

    def forward(self, keys, numbers):
        result = self.embedding(keys)
        weights, vectors = result[..., 0], result[..., 1:]
        pairs = (vectors.sum(dim=1) ** 2 - (vectors**2).sum(dim=1)).sum(dim=1) / 2
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], dim=1)).squeeze(1)
        return weights.sum(dim=1) + pairs + deep + self.linear(numbers).squeeze(1)


def new_table():
    """Initial weights follow from seed and key: all tables of one seed begin alike."""
    return EmbeddingTable(1 + K, "adagrad", lr=EMBEDDING_RATE, zeroColumns=1, seed=SEED)


def make():
    return DeepFM(RemoteEmbedding(new_table()))


def read(spark, folder, day):
    """A day's rows: a key for each id, which names its field; logarithms of numbers, 0 where there is none."""
    raw = spark.read.parquet(f"{folder}/day={day}")
    keys = [F.xxhash64(F.lit(name), name).bitwiseAND(2**63 - 1) for name in IDS]
    numbers = [F.coalesce(F.log1p(F.col(name)), F.lit(0.0)).cast("float") for name in NUMBERS]
    return raw.select(F.array(*keys).alias("keys"), F.array(*numbers).alias("numbers"), F.col("label").cast("float"))


def arrays(df):
    result = df.toPandas()
    return np.stack(result["keys"]), np.stack(result["numbers"]), result["label"].to_numpy(np.float32)


def auc(labels, scores):
    """Area under the ROC curve: how often a click has a higher score than no click."""
    positive = labels > 0
    ranks, count = rankdata(scores)[positive], int(positive.sum())
    return (ranks.sum() - count * (count + 1) / 2) / (count * (len(labels) - count))


def in_process(rows, test, epochs):
    """Train the module with its embeddings in this process; return its losses, seconds, and scores of other rows."""
    vocabulary, ids = np.unique(np.concatenate([rows[0], test[0]]), return_inverse=True)
    ids = torch.from_numpy(ids.reshape(-1, len(IDS)))
    weights = torch.from_numpy(new_table().pull(vocabulary))
    module = DeepFM(torch.nn.Embedding.from_pretrained(weights, freeze=False, sparse=True))
    dense = [*module.deep.parameters(), *module.linear.parameters()]
    optimizers = (
        torch.optim.Adagrad(module.embedding.parameters(), lr=EMBEDDING_RATE, eps=1e-8),
        torch.optim.Adam(dense, lr=DENSE_RATE),
    )
    keys, (numbers, labels) = ids[: len(rows[0])], map(torch.from_numpy, rows[1:])
    steps, losses = -(-len(labels) // BATCH), []
    began_s = time.perf_counter()
    for epoch in range(epochs):
        order = torch.from_numpy(np.random.default_rng((SEED, 0, epoch)).permutation(len(labels)))
        for step in range(steps):
            part = order[len(labels) * step // steps : len(labels) * (step + 1) // steps]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(module(keys[part], numbers[part]), labels[part])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    seconds = time.perf_counter() - began_s
    with torch.no_grad():
        return losses, seconds, module(ids[len(rows[0]) :], torch.from_numpy(test[1])).numpy()


def main():
    asked = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default, but then torch warns
    spark = get_or_create_session("local[2]", "torch clicks")
    with tempfile.TemporaryDirectory() as folder, PS2Context.getOrCreate(spark, servers=1):
        log = ClickLog(ids=asked.ids)
        for day in range(asked.days + 1):
            log.write(folder, day, asked.rows)
        train = read(spark, folder, 0)
        for day in range(1, asked.days):
            train = train.union(read(spark, folder, day))
        train, test = train.coalesce(asked.workers).cache(), read(spark, folder, asked.days).coalesce(1).cache()
        print(f"{train.count():,} rows to train on, {test.count():,} of the day after")

        loss = torch.nn.BCEWithLogitsLoss()
        estimator = TorchEstimator(make, loss, inputCols=["keys", "numbers"], labelCol="label", seed=SEED)
        estimator.setParams(batchSize=BATCH, epochs=asked.epochs, lr=DENSE_RATE, numWorkers=asked.workers)
        model = estimator.fit(train)
        scores = np.array([row.prediction for row in model.transform(test).select("prediction").collect()])
        seconds = sum(model.summary.stepSeconds[1:])
        used = asked.epochs * asked.days * asked.rows
        tested = arrays(test)
        print(
            f"servers:    test AUC {auc(tested[2], scores):.4f}, loss {model.summary.objectiveHistory[-1]:.4f}, "
            f"{used / seconds:,.0f} rows/s, {model.module.embedding.table.keysCount():,} keys"
        )
        losses, seconds, scores = in_process(arrays(train), tested, asked.epochs)
        print(f"in process: test AUC {auc(tested[2], scores):.4f}, loss {losses[-1]:.4f}, {used / seconds:,.0f} rows/s")
    spark.stop()


if __name__ == "__main__":
    main()
