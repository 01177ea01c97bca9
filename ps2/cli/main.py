"""The ``ps2`` command. Commands import slow modules only when they run, so ``ps2 --help`` is fast."""

from __future__ import annotations

import sys

import click

from ps2.cli.checkpoint import checkpoint
from ps2.cli.dashboard import dashboard
from ps2.cli.env import env
from ps2.cli.k8s import k8s
from ps2.cli.launch import launch
from ps2.cli.ops import ops
from ps2.cli.output import EXIT_FAILURE, EXIT_INTERRUPTED, exit_code
from ps2.cli.serve import serve
from ps2.cli.server import server
from ps2.cli.status import status
from ps2.cli.stop import stop
from ps2.cli.token import token
from ps2.cli.training.ctr import CTRCommand
from ps2.cli.training.graphs import DeepWalkCommand, LINECommand, Node2VecCommand
from ps2.cli.training.lda import LDACommand
from ps2.cli.training.mf import MFCommand
from ps2.cli.training.rows import DictionaryCommand, KMeansCommand, LRCommand, MetricCommand
from ps2.cli.training.trees import ForestCommand, GBTCommand
from ps2.errors import PS2Error
from ps2.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ps2")
def cli() -> None:
    """PS2: a parameter server for Apache Spark."""


@cli.group()
def train() -> None:
    """Train a model on the rows of a file."""


for command in (checkpoint, dashboard, env, k8s, launch, ops, serve, server, status, stop, token):
    cli.add_command(command)
for training in (
    *(CTRCommand, DeepWalkCommand, DictionaryCommand, ForestCommand, GBTCommand, KMeansCommand),
    *(LDACommand, LINECommand, LRCommand, MetricCommand, MFCommand, Node2VecCommand),
):
    train.add_command(training.command())


def main() -> None:
    """Run the command line. An error becomes a message on stderr and an exit code, without a traceback."""
    try:
        code = cli(prog_name="ps2", standalone_mode=False)
    except PS2Error as error:
        click.echo(f"ps2: {error}", err=True)
        code = exit_code(error)
    except OSError as error:
        click.echo(f"ps2: {error}", err=True)
        code = EXIT_FAILURE
    except click.NoSuchOption as error:
        _hinted(error).show()
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    # A finished command returns None; options such as --help return their exit code.
    sys.exit(code if isinstance(code, int) else 0)


def _hinted(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error with the most similar option as a hint. Names of params stand for their options."""
    from ps2.name_hints import nearest

    options = [] if error.ctx is None else [p for p in error.ctx.command.params if isinstance(p, click.Option)]
    params = {str(option.name): option.opts[0] for option in options}
    # A name that the user may have meant -> the option.
    spellings = params | {name: name for option in options for name in (*option.opts, *option.secondary_opts)}
    match = nearest(error.option_name, spellings)
    hint = "" if match is None else f" Did you mean {spellings[match]}?"
    return click.NoSuchOption(error.option_name, f"No such option {error.option_name!r}.{hint}", ctx=error.ctx)


if __name__ == "__main__":
    main()
