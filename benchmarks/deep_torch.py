"""DeepFM in PyTorch, in one process: what ``benchmarks.deep`` runs in an environment that has torch.

    python -m benchmarks.deep_torch ROWS.npz ASKED.json

Beside ``benchmarks.deep_auc`` it imports NumPy and torch only. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.deep_auc import auc


class DeepFM(nn.Module):  # type: ignore[misc]
    """Guo et al. (2017); embeddings of rows with one key in each field, the linear weight first."""

    def __init__(self, keys: int, fields: int, asked: dict[str, Any]) -> None:
        super().__init__()
        k = asked["k"]
        self.table = nn.Embedding(keys, 1 + k, sparse=asked["sparse"])
        with torch.no_grad():
            self.table.weight.normal_(0, asked["init_scale"])
            self.table.weight[:, 0] = 0
        layers: list[nn.Module] = []
        before = fields * k
        for size in asked["hidden"]:
            layers += [nn.Linear(before, size), nn.ReLU(), nn.Dropout(asked["dropout"])]
            before = size
        self.layers = nn.Sequential(*layers, nn.Linear(before, 1))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        blocks = self.table(ids)
        vectors = blocks[:, :, 1:]
        sums = vectors.sum(1)
        pairs = 0.5 * (sums * sums - (vectors * vectors).sum(1)).sum(1)
        return blocks[:, :, 0].sum(1) + pairs + self.layers(vectors.flatten(1)).squeeze(1)


def main(rows_path: str, asked_path: str) -> None:
    asked, rows = json.loads(Path(asked_path).read_text()), np.load(rows_path)
    torch.set_num_threads(asked["threads"])
    torch.manual_seed(asked["seed"])
    ids, labels = torch.from_numpy(rows["train"]), torch.from_numpy(rows["train_labels"].astype(np.float32))
    test = torch.from_numpy(rows["test"])
    model = DeepFM(int(rows["keys"]), ids.shape[1], asked)
    of_table = torch.optim.Adagrad(model.table.parameters(), lr=asked["table_lr"], eps=1e-8)
    of_layers = torch.optim.Adam(model.layers.parameters(), lr=asked["lr"])
    loss_of = nn.BCEWithLogitsLoss()
    generator, batch, seconds, scores, losses = torch.Generator().manual_seed(asked["seed"]), asked["batch"], [], [], []
    for _ in range(asked["epochs"]):
        began, total = time.perf_counter(), 0.0
        model.train()
        order = torch.randperm(len(ids), generator=generator)
        for begin in range(0, len(ids), batch):
            part = order[begin : begin + batch]
            loss = loss_of(model(ids[part]), labels[part])
            of_table.zero_grad()
            of_layers.zero_grad()
            loss.backward()
            of_table.step()
            of_layers.step()
            total += float(loss) * len(part)
        seconds.append(time.perf_counter() - began)
        losses.append(total / len(ids))
        model.eval()
        with torch.no_grad():
            scores.append(model(test).double().numpy())
    aucs = [auc(rows["test_labels"], score) for score in scores]
    print(json.dumps({"seconds": seconds, "auc": aucs, "loss": losses, "rows": len(ids)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
