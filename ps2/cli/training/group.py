"""``ps2 train``: the estimators on anybody's file, a command each."""

from __future__ import annotations

import click

from ps2.cli.training.ctr import ctr
from ps2.cli.training.dictionary import dictionary
from ps2.cli.training.forest import forest
from ps2.cli.training.gbt import gbt
from ps2.cli.training.graphs import deepwalk, line, node2vec
from ps2.cli.training.kmeans import kmeans
from ps2.cli.training.lda import lda
from ps2.cli.training.lr import lr
from ps2.cli.training.metric import metric
from ps2.cli.training.mf import mf


@click.group()
def train() -> None:
    """Train a model on the rows of a file."""


for command in (ctr, deepwalk, dictionary, forest, gbt, kmeans, lda, line, lr, metric, mf, node2vec):
    train.add_command(command)
