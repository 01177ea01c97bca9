"""Labelled rows of a libsvm file as an RDD of blocks that stay in Spark's cache."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.libsvm import Block, MalformedLine, parse
from ps2.algorithms.logistic_math import LocalBlock, compact_block, two_classes
from ps2.errors import InputError

# Lines that are parsed together; also the unit in which rows are spread over the RDD's partitions.
PIECE_LINES = 1024
# A file with more labels than this has none that two_classes could use.
MAX_LABELS = 100
# What Hadoop takes for a pattern of paths.
PATTERN = re.compile(r"[*?[{\\]")


@dataclass(frozen=True)
class _Piece:
    """Consecutive lines of one rdd_partition of the file.

    Attributes:
        rdd_partition: of the text.
        number: of the piece within it.
        lines: how many lines it has.
        block: the rows; None if a line is malformed.
        fault: which line, from 0, and why.
    """

    rdd_partition: int
    number: int
    lines: int
    block: Block | None
    fault: tuple[int, str] | None = None


@dataclass(frozen=True)
class _Summary:
    """What the driver has to know of a piece."""

    rdd_partition: int
    number: int
    lines: int
    rows: int
    features: int
    labels: tuple[float, ...]
    fault: tuple[int, str] | None


@dataclass(frozen=True)
class Dataset:
    """Rows in Spark's cache.

    Attributes:
        blocks: RDD of LocalBlock, at most one a partition.
        rows: how many there are.
        features: one more than the largest feature number.
        classes: the label of class 0 and that of class 1.
    """

    blocks: Any
    rows: int
    features: int
    classes: tuple[float, float]

    def unpersist(self) -> None:
        """Give Spark's memory back."""
        self.blocks.unpersist()


@dataclass(frozen=True)
class Pieces:
    """A file that has been parsed, but whose classes and number of features are not settled yet."""

    path: str
    rdd: Any
    rows: int
    features: int
    labels: tuple[float, ...]
    count: int

    def dataset(self, features: int, classes: tuple[float, float], intercept: bool, partitions: int) -> Dataset:
        """Spread the rows over ``partitions`` and number each block's features.

        Args:
            features: features numbered from this on are left out of the rows.
            classes: the label of class 0 and that of class 1.
            intercept: whether each row gets a feature ``features`` that is 1.
            partitions: of the RDD; less if there is little to spread.

        Raises:
            InputError: a label is in neither class.
        """
        strange = sorted(set(self.labels) - set(classes))
        if strange:
            raise InputError(f"{self.path}: expected labels {classes[0]:g} and {classes[1]:g}, got {strange[0]:g}")
        column = features if intercept else None
        spread = min(partitions, self.count)

        def build(pieces: Iterator[tuple[tuple[int, int], Block]]) -> Iterator[LocalBlock]:
            # A shuffle brings its records in any order; the rows of a block are to be the same every time.
            blocks = [block for _, block in sorted(pieces, key=lambda item: item[0])]
            if blocks:
                yield compact_block(_limit(_concatenate(blocks), features), classes, intercept=column)

        keyed = self.rdd.map(lambda piece: ((piece.rdd_partition, piece.number), piece.block))
        blocks = keyed.partitionBy(spread, lambda key: key[0] * 7 + key[1]).mapPartitions(build)
        blocks.persist(_memory_and_disk())
        rows = sum(blocks.map(lambda block: len(block.y)).collect())
        self.rdd.unpersist()
        return Dataset(blocks, rows, features, classes)


def read(spark_context: Any, path: str, partitions: int) -> Pieces:
    """Parse a libsvm file, or all files of a folder or glob; gzip and the like by their endings.

    Args:
        path: any URL that Spark reads.
        partitions: of the RDD to parse it with, where the file can be split.

    Raises:
        InputError: it is missing or empty, or a line is malformed; the text names the line.
    """
    _check_exists(spark_context, path)
    lines = spark_context.textFile(path, partitions, use_unicode=False)
    rdd = lines.mapPartitionsWithIndex(_parse_partition).persist(_memory_and_disk())
    summaries: list[_Summary] = sorted(rdd.map(_summarise).collect(), key=lambda s: (s.rdd_partition, s.number))
    _check_faults(path, summaries)
    rows = sum(summary.rows for summary in summaries)
    if rows == 0:
        raise InputError(f"{path}: expected lines 'label index:value ...', got no row at all")
    labels = tuple(sorted({label for summary in summaries for label in summary.labels}))
    features = max(summary.features for summary in summaries)
    return Pieces(path, rdd, rows, features, labels, len(summaries))


def read_classes(pieces: Pieces) -> tuple[float, float]:
    """Return the two labels of a file, or raise InputError that names it and the labels found."""
    try:
        return two_classes(pieces.labels)
    except InputError as error:
        raise InputError(f"{pieces.path}: {error}") from error


def _parse_partition(rdd_partition: int, lines: Iterable[bytes]) -> Iterator[_Piece]:
    source = iter(lines)
    for number in itertools.count():
        piece = list(itertools.islice(source, PIECE_LINES))
        if not piece:
            return
        try:
            yield _Piece(rdd_partition, number, len(piece), parse(piece))
        except MalformedLine as error:
            yield _Piece(rdd_partition, number, len(piece), None, (error.line, error.reason))
            return


def _summarise(piece: _Piece) -> _Summary:
    block = piece.block
    rows = 0 if block is None else len(block.labels)
    features = 0 if block is None or not len(block.indices) else int(block.indices.max()) + 1
    labels = () if block is None else tuple(np.unique(block.labels)[:MAX_LABELS].tolist())
    return _Summary(piece.rdd_partition, piece.number, piece.lines, rows, features, labels, piece.fault)


def _check_faults(path: str, summaries: list[_Summary]) -> None:
    """Raise for the first malformed line, with its number within the whole text, from 1.

    Lines before it are all counted: an rdd_partition is given up at its first fault, and this one comes first.
    """
    before = 0
    for summary in summaries:
        if summary.fault is not None:
            line, reason = summary.fault
            raise InputError(f"{path}: line {before + line + 1}: {reason}")
        before += summary.lines


def _concatenate(blocks: list[Block]) -> Block:
    offsets = np.cumsum([0] + [len(block.indices) for block in blocks])
    starts = [block.indptr[:-1] + offset for block, offset in zip(blocks, offsets[:-1], strict=True)]
    return Block(
        labels=np.concatenate([block.labels for block in blocks]),
        indptr=np.concatenate([*starts, offsets[-1:]]),
        indices=np.concatenate([block.indices for block in blocks]),
        values=np.concatenate([block.values for block in blocks]),
    )


def _limit(block: Block, features: int) -> Block:
    """Leave out the features numbered ``features`` and above: a model has no weight for them."""
    known = block.indices < features
    if known.all():
        return block
    kept_before = np.concatenate([[0], np.cumsum(known)])
    return Block(block.labels, kept_before[block.indptr], block.indices[known], block.values[known])


def check_local(path: str) -> None:
    """Raise InputError if a local file or folder is missing, which needs no Spark to see; patterns are left to it."""
    scheme, found, rest = path.partition(":")
    if found and "/" not in scheme:
        if scheme != "file":
            return
        path = "/" + rest.lstrip("/")
    elif "HADOOP_CONF_DIR" in os.environ:  # then a path may be one of HDFS
        return
    if not PATTERN.search(path) and not os.path.exists(path):
        raise InputError(f"{path}: there is no such file")


def _check_exists(spark_context: Any, path: str) -> None:
    jvm = spark_context._jvm
    location = jvm.org.apache.hadoop.fs.Path(path)
    found = location.getFileSystem(spark_context._jsc.hadoopConfiguration()).globStatus(location)
    if found is None or len(found) == 0:
        raise InputError(f"{path}: there is no such file")


def _memory_and_disk() -> Any:
    from pyspark import StorageLevel

    return StorageLevel.MEMORY_AND_DISK
