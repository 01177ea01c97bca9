"""DeepFM in PyTorch, in one process: what ``benchmarks.deep`` runs in an environment that has torch.

    python -m benchmarks.deep_torch ROWS.npz SETTINGS.json

It imports NumPy and torch only. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


def auc(labels: Any, scores: Any) -> float:
    """Return the area under the ROC curve; equal scores count half.

    Args:
        labels: above 0, or not.
        scores: of the same rows.
    """
    _, position, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
    good = np.asarray(labels) > 0
    return float((ranks[good].sum() - good.sum() * (good.sum() + 1) / 2) / (good.sum() * (~good).sum()))


def main(rows_path: str, settings_path: str) -> None:
    import torch
    from torch import nn

    settings, rows = json.loads(Path(settings_path).read_text()), np.load(rows_path)
    k, fields = settings["k"], rows["train"].shape[1]
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    # Guo et al. (2017): embeddings of rows with one key in each field, the linear weight first.
    table = nn.Embedding(int(rows["keys"]), 1 + k, sparse=settings["sparse"])
    with torch.no_grad():
        table.weight.normal_(0, settings["init_scale"])
        table.weight[:, 0] = 0
    widths = (fields * k, *settings["hidden"], 1)
    parts: list[Any] = []
    for before, size in pairwise(widths):
        linear = nn.Linear(before, size)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.ReLU(), nn.Dropout(settings["dropout"])]
    layers = nn.Sequential(*parts[:-2])

    def margins(ids: Any) -> Any:
        blocks = table(ids)
        vectors = blocks[:, :, 1:]
        sums = vectors.sum(1)
        pairs = 0.5 * (sums * sums - (vectors * vectors).sum(1)).sum(1)
        return blocks[:, :, 0].sum(1) + pairs + layers(vectors.flatten(1)).squeeze(1)

    ids, labels = torch.from_numpy(rows["train"]), torch.from_numpy(rows["train_labels"].astype(np.float32))
    test = torch.from_numpy(rows["test"])
    optimizers = (
        torch.optim.Adagrad(table.parameters(), lr=settings["table_lr"], eps=1e-8),
        torch.optim.Adam(layers.parameters(), lr=settings["lr"]),
    )
    mean_loss = nn.BCEWithLogitsLoss()
    generator, batch, seconds, aucs = torch.Generator().manual_seed(settings["seed"]), settings["batch"], [], []
    for _ in range(settings["epochs"]):
        began_s = time.perf_counter()
        layers.train()
        order = torch.randperm(len(ids), generator=generator)
        for begin in range(0, len(ids), batch):
            part = order[begin : begin + batch]
            for optimizer in optimizers:
                optimizer.zero_grad()
            mean_loss(margins(ids[part]), labels[part]).backward()
            for optimizer in optimizers:
                optimizer.step()
        seconds.append(time.perf_counter() - began_s)
        layers.eval()
        with torch.no_grad():
            aucs.append(auc(rows["test_labels"], margins(test).double().numpy()))
    print(json.dumps({"seconds": seconds, "auc": aucs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
