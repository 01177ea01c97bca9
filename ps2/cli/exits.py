"""Exit codes of the ``ps2`` command."""

from __future__ import annotations

from ps2.errors import AuthError, ConfigError, DeadlineError, PS2Error, UnavailableError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 4
EXIT_UNAUTHENTICATED = 6
# Exit code of a command that Ctrl-C has ended, as shells report it.
EXIT_INTERRUPTED = 130


def exit_code(error: PS2Error) -> int:
    """Return the exit code of an error."""
    if isinstance(error, AuthError):
        return EXIT_UNAUTHENTICATED
    if isinstance(error, (UnavailableError, DeadlineError)):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
