"""The tables of ``benchmarks.tables``: public files and a generated one, and their random splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.frame import SkippedError
from benchmarks.ml_data import Array

ADULT = "age workclass fnlwgt education num marital occupation relationship race sex gain loss hours country label"
NOISE_ROWS, NOISE_IDS = 40_000, 2000


@dataclass(frozen=True, eq=False)
class Split:
    """A table in two parts, of which the second is held out.

    Attributes:
        train, test: the columns, strings or numbers.
        y, y_test: labels.
        group, group_test: the query of each row, whose rows lie side by side; None: the table is no ranking.
    """

    train: pd.DataFrame
    y: Array
    test: pd.DataFrame
    y_test: Array
    group: Array | None = None
    group_test: Array | None = None

    @property
    def categorical(self) -> list[str]:
        return [name for name in self.train.columns if not pd.api.types.is_numeric_dtype(self.train[name])]

    def as_categories(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return both parts with columns of pandas' categories, as LightGBM and xgboost take them."""
        train, test = self.train.copy(), self.test.copy()
        for name in self.categorical:
            dtype = pd.CategoricalDtype(sorted(train[name].dropna().unique()))
            train[name] = train[name].astype(dtype)
            test[name] = test[name].where(test[name].isin(dtype.categories)).astype(dtype)
        return train, test

    def as_numbers(self) -> tuple[Array, Array, dict[int, int]]:
        """Return both parts with the numbers of categories, and how many there are, by column.

        A missing value is NaN, and so is a category that only held-out rows have.
        """
        train, test = (np.empty(part.shape) for part in (self.train, self.test))
        counts = {}
        for index, name in enumerate(self.train.columns):
            if name in self.categorical:
                numbers = {value: i for i, value in enumerate(self.train[name].value_counts().index)}
                train[:, index], test[:, index] = self.train[name].map(numbers), self.test[name].map(numbers)
                counts[index] = max(len(numbers), 2)
            else:
                train[:, index], test[:, index] = self.train[name], self.test[name]
        return train, test, counts


def file_in(folder: str, name: str) -> Path:
    path = Path(folder) / name
    if not path.is_file():
        raise SkippedError(f"there is no {name} in {folder}")
    return path


def _split(columns: pd.DataFrame, y: Array, seed: int, share: float = 0.8) -> Split:
    order = np.random.default_rng(100 + seed).permutation(len(y))
    for name in columns.columns:  # one kind of missing value
        if not pd.api.types.is_numeric_dtype(columns[name]):
            columns[name] = columns[name].astype(object).where(columns[name].notna(), None)
    head, tail = np.split(order, [int(share * len(y))])
    train, test = (columns.iloc[rows].reset_index(drop=True) for rows in (head, tail))
    return Split(train, y[head], test, y[tail])


def adult(folder: str, seed: int) -> Split:
    columns = pd.read_csv(
        file_in(folder, "adult.data"), header=None, names=ADULT.split(), skipinitialspace=True, na_values="?"
    )
    return _split(columns, columns.pop("label").isin((">50K", "YES")).to_numpy(float), seed)


def bank(folder: str, seed: int) -> Split:
    columns = pd.read_csv(file_in(folder, "bank-full.csv"), sep=None, engine="python")
    return _split(columns, (columns.pop(columns.columns[-1]) == "yes").to_numpy(float), seed)


def amazon(folder: str, seed: int) -> Split:
    columns = pd.read_csv(file_in(folder, "amazon.csv"))
    y = columns.pop("ACTION").to_numpy(float)
    return _split(columns.astype(str), y, seed)


def ames(folder: str, seed: int) -> Split:
    columns = pd.read_csv(file_in(folder, "AmesHousing.csv"), encoding="utf-8-sig").drop(columns=["Order", "PID"])
    columns["MS SubClass"] = columns["MS SubClass"].astype(str)
    return _split(columns, np.log(columns.pop("SalePrice").to_numpy(float)), seed)


def noise(folder: str, seed: int) -> Split:
    """Return a table of one number that counts and ids that do not, of which half are held out."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=NOISE_ROWS)
    y = (rng.random(NOISE_ROWS) < 1 / (1 + np.exp(-1.2 * x))).astype(float)
    return _split(pd.DataFrame({"x": x, "id": rng.integers(0, NOISE_IDS, NOISE_ROWS).astype(str)}), y, seed, 0.5)


def ranking(folder: str, seed: int) -> Split:
    """Return LightGBM's example, train and test together, with a fifth of the queries held out."""
    columns, y, sizes = [], [], []
    for name in ("rank.train", "rank.test"):
        path, queries = file_in(folder, name), file_in(folder, f"{name}.query")
        for label, row in _libsvm(path):
            y.append(label)
            columns.append(row)
        sizes += [int(line) for line in queries.read_text().split()]
    table, labels = pd.DataFrame(columns).sort_index(axis=1), np.array(y)
    table.columns = [f"f{index}" for index in table.columns]
    group = np.repeat(np.arange(len(sizes)), sizes)
    test_queries = np.random.default_rng(100 + seed).permutation(len(sizes))[: len(sizes) // 5]
    test = np.isin(group, test_queries)
    parts = [(table[rows].reset_index(drop=True).fillna(0.0), labels[rows], group[rows]) for rows in (~test, test)]
    return Split(*parts[0][:2], *parts[1][:2], parts[0][2], parts[1][2])


def _libsvm(path: Path) -> Iterator[tuple[float, dict[int, float]]]:
    for line in path.read_text().splitlines():
        label, *entries = line.split()
        yield float(label), {int(index): float(value) for index, value in (entry.split(":") for entry in entries)}


TABLES: dict[str, tuple[Callable[[str, int], Split], str, str]] = {
    "adult": (adult, "AUC", "adult.data"),
    "bank": (bank, "AUC", "bank-full.csv"),
    "amazon": (amazon, "AUC", "amazon.csv"),
    "ames": (ames, "RMSE", "AmesHousing.csv"),
    "ranking": (ranking, "NDCG@10", "rank.train, rank.test and their .query"),
    "noise": (noise, "AUC", ""),
}


def ndcg(scores: Any, y: Array, group: Array, depth: int = 10) -> float:
    """Return the mean NDCG of queries; 1 for a query without a relevant row."""
    values = []
    for rows in np.split(np.arange(len(y)), np.flatnonzero(np.diff(group)) + 1):
        gains, discounts = 2.0 ** y[rows] - 1, 1 / np.log2(np.arange(2, len(rows) + 2))
        gains_by_score, best_gains = gains[np.argsort(-scores[rows], kind="stable")], -np.sort(-gains)
        ideal = float(best_gains[:depth] @ discounts[:depth])
        values.append(float(gains_by_score[:depth] @ discounts[:depth]) / ideal if ideal else 1.0)
    return float(np.mean(values))
