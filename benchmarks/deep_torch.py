"""Deep models in PyTorch, in one process: what ``benchmarks.deep`` runs in an environment that has torch.

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


def stack(inputs: int, hidden: Any, dropout: float = 0.0) -> Any:
    """Return fully connected layers with ReLU, and an output, with Glorot's weights."""
    from torch import nn

    parts: list[Any] = []
    for before, size in pairwise((inputs, *hidden, 1)):
        parts += [glorot(before, size), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*parts[:-2])


def glorot(inputs: int, outputs: int, bias: bool = True) -> Any:
    from torch import nn

    linear = nn.Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def interaction(kind: str, fields: int, settings: Any) -> Any:
    """Return the interaction of a kind, as its paper defines it: a module of vectors, (n, fields, k)."""
    import torch
    from torch import nn

    k = settings["k"]

    class Crosses(nn.Module):  # type: ignore[misc]
        """DCN V2, Wang et al., 2021, Equation 1."""

        def __init__(self) -> None:
            super().__init__()
            width = fields * k
            self.crosses = nn.ModuleList(glorot(width, width) for _ in range(settings["crossLayers"]))
            self.output = glorot(width, 1, bias=False)

        def forward(self, vectors: Any) -> Any:
            x = first = vectors.flatten(1)
            for cross in self.crosses:
                x = first * cross(x) + x
            return self.output(x).squeeze(1)

    class Compressed(nn.Module):  # type: ignore[misc]
        """xDeepFM, Lian et al., 2018, Equations 6 and 7."""

        def __init__(self) -> None:
            super().__init__()
            sizes = settings["cinLayers"]
            self.filters = nn.ModuleList(
                glorot(before * fields, size, bias=False) for before, size in pairwise((fields, *sizes))
            )
            self.output = glorot(sum(sizes), 1, bias=False)

        def forward(self, vectors: Any) -> Any:
            x, pools = vectors, []
            for filters in self.filters:
                products = torch.einsum("nik,njk->nkij", x, vectors).flatten(2)
                x = filters(products).transpose(1, 2)
                pools.append(x.sum(2))
            return self.output(torch.cat(pools, 1)).squeeze(1)

    class Attention(nn.Module):  # type: ignore[misc]
        """AutoInt, Song et al., 2019, Equations 5 to 8 and 10."""

        def __init__(self) -> None:
            super().__init__()
            self.heads, width = settings["numHeads"], settings["numHeads"] * settings["headSize"]
            sizes = (k, *[width] * (settings["interactingLayers"] - 1))
            self.projections = nn.ModuleList(glorot(size, 4 * width, bias=False) for size in sizes)
            self.output = glorot(fields * width, 1, bias=False)

        def forward(self, vectors: Any) -> Any:
            x = vectors
            for projection in self.projections:
                parts = projection(x).view(len(x), fields, 4, self.heads, -1).permute(2, 0, 3, 1, 4)
                queries, keys, values, residuals = parts
                outputs = torch.softmax(queries @ keys.transpose(2, 3), 3) @ values
                x = torch.relu(outputs + residuals).transpose(1, 2).flatten(2)
            return self.output(x.flatten(1)).squeeze(1)

    class Unit(nn.Module):  # type: ignore[misc]
        """DIN, Zhou et al., 2018, Equation 3."""

        def __init__(self) -> None:
            super().__init__()
            self.unit = stack(4 * k, settings["attentionLayers"])

        def forward(self, candidate: Any, history: Any, ids: Any) -> Any:
            q = candidate[:, None].expand_as(history)
            shares = self.unit(torch.cat([q, history, q - history, q * history], 2)).squeeze(2)
            return ((shares * (ids >= 0))[:, :, None] * history).sum(1)

    return {"dcn": Crosses, "xdeepfm": Compressed, "autoint": Attention, "din": Unit}[kind]()


def main(rows_path: str, settings_path: str) -> None:
    import torch
    from torch import nn

    settings, rows = json.loads(Path(settings_path).read_text()), np.load(rows_path)
    k, fields = settings["k"], settings.get("fields", rows["train"].shape[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    # Embeddings of rows with one key in each field, the linear weight first.
    table = nn.Embedding(int(rows["keys"]), 1 + k, sparse=settings["sparse"])
    with torch.no_grad():
        table.weight.normal_(0, settings["init_scale"])
        table.weight[:, 0] = 0
    kind = settings.get("kind", "deepfm")
    num_inputs = fields + (kind == "din")  # the pooled history is one more
    layers = nn.ModuleDict({"stack": stack(num_inputs * k, settings["hidden"], settings["dropout"])})
    if kind != "deepfm":
        layers["interaction"] = interaction(kind, fields, settings)

    def margins(ids: Any) -> Any:
        blocks = table(ids.clamp(min=0))
        vectors = blocks[:, :fields, 1:]
        if kind == "din":
            history = layers["interaction"](vectors[:, settings["candidate"]], blocks[:, fields:, 1:], ids[:, fields:])
            return layers["stack"](torch.cat([vectors.flatten(1), history], 1)).squeeze(1)
        linear = blocks[:, :, 0].sum(1) + layers["stack"](vectors.flatten(1)).squeeze(1)
        if kind != "deepfm":
            return linear + layers["interaction"](vectors)
        sums = vectors.sum(1)  # Guo et al. (2017)
        return linear + 0.5 * (sums * sums - (vectors * vectors).sum(1)).sum(1)

    ids, labels = torch.from_numpy(rows["train"]), torch.from_numpy(rows["train_labels"].astype(np.float32))
    test = torch.from_numpy(rows["test"])
    if settings.get("table_optimizer") == "adam":
        table_settings = {"lr": settings["table_lr"], "weight_decay": settings["table_decay"]}
        table_optimizer: Any = torch.optim.Adam(table.parameters(), **table_settings)
    else:
        table_optimizer = torch.optim.Adagrad(table.parameters(), lr=settings["table_lr"], eps=1e-8)
    optimizers = (
        table_optimizer,
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
