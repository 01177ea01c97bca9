"""``ps2 env``: the shell variables with which a job attaches to a launched fleet."""

from __future__ import annotations

import shlex

import click

from ps2.certificates import VARIABLES, TlsFiles
from ps2.config import TOKEN_FILE_VARIABLE

EPILOG = """\b
Examples:
  eval "$(ps2 env)"
  eval "$(ps2 env --name ads)"

\b
Then in a job:
  PS2Context.getOrCreate(spark, conf=PS2Conf.load())

\b
Exit codes: 0 printed, 4 there is no such fleet.
"""
ADDRESSES_VARIABLE = "PS2_FLEET"


@click.command(epilog=EPILOG)
@click.option("--name", metavar="NAME", help="A fleet that 'ps2 launch' started here  [default: default].")
def env(name: str | None) -> None:
    """Print the variables with which a job attaches to a launched fleet, for a shell to evaluate.

    PS2_FLEET contains the servers' addresses, PS2_TOKEN_FILE the path of the token file, and PS2_TLS_* the paths of
    the certificates, if any.
    """
    from ps2.launched_fleets import DEFAULT_NAME, find

    fleet = find(DEFAULT_NAME if name is None else name)
    variables = {
        ADDRESSES_VARIABLE: ",".join(server.address for server in fleet.servers),
        TOKEN_FILE_VARIABLE: str(fleet.token_file),
    }
    tls = fleet.tls or TlsFiles()
    variables |= zip(VARIABLES, (tls.cert, tls.key, tls.ca, tls.name), strict=True)
    for variable, value in variables.items():
        if value:
            click.echo(f"export {variable}={shlex.quote(value)}")
