"""Every error that PS2 raises, as one tree whose branches are what a caller can do about it.

``UsageError``: change the call. ``TransientError``: try again. ``RecoveryError``: choose another checkpoint.
``OpError``: fix the function that ran on the server; ``WorkerError``: the one that ran in a task.
``ps2.rpc.status`` maps each class to a gRPC status and back.
"""

from __future__ import annotations


class PS2Error(Exception):
    """Base of every error that PS2 raises on purpose."""


class UsageError(PS2Error, ValueError):
    """The call cannot work as it stands; repeating it will not help."""


class ConfigError(UsageError):
    """A setting, option or environment variable has a value that cannot be used."""


class ShapeError(UsageError):
    """An array has the wrong length or number of dimensions."""


class DTypeError(UsageError):
    """An array or scalar has a type that the vector cannot hold."""


class OutOfRangeError(UsageError, IndexError):
    """An index or key lies outside ``[0, dim)``, or a row outside the matrix."""


class NotFoundError(UsageError, LookupError):
    """The matrix, row or operation named does not exist (any more)."""


class NotColocatedError(UsageError):
    """Two vectors are not co-located and the context is strict about it."""


class StoppedError(UsageError):
    """The context, fleet or Spark application that this needs has been stopped."""


class LimitError(UsageError):
    """The request would take more memory than the server's limit leaves, even when all others are done."""


class AuthError(UsageError):
    """No token, or not the fleet's token."""


class ProtocolError(UsageError):
    """A message that does not follow the contract in ``proto/ps2/v1``."""


class InputError(UsageError):
    """An input file is missing, empty or malformed."""


class DivergedError(UsageError):
    """A training has left the numbers, or made its objective far worse: its step size is too large for the data."""


class SlotsError(UsageError):
    """Spark has no free task slot to run on."""


class LaunchError(UsageError):
    """A server process could not be started; the message ends with the tail of its log."""


class TransientError(PS2Error):
    """Something that may pass by itself; the same call may succeed later."""


class UnavailableError(TransientError, ConnectionError):
    """A server or the master cannot be reached."""


class UnreachableError(UnavailableError):
    """What this process is to connect to has never been reached from here: an address, or a firewall, is wrong."""


class LostError(UnavailableError):
    """A server is gone and nothing brings it back: trying again does not help, what it held has to be made anew."""


class RecoveringError(UnavailableError):
    """A server is being brought back; the call will succeed when it is there."""


class StaleRouteError(TransientError):
    """The request names a partition that this server does not hold (any more)."""


class KeyMissError(TransientError):
    """The request names a set of keys by its hash, and this server does not remember it (any more)."""


class BusyError(TransientError):
    """The request does not fit a server's memory limit until others are done."""


class DeadlineError(TransientError, TimeoutError):
    """A server did not answer in time."""


class RecoveryError(PS2Error):
    """Saved state is missing or cannot be trusted."""


class CheckpointMissingError(RecoveryError):
    """There is no complete save at this place."""


class CheckpointCorruptError(RecoveryError):
    """A save exists, but its size, shape or checksum is not what its manifest says."""


class RolledBack(RecoveryError):
    """The whole fleet went back to a checkpoint; go on from ``step``, the one that it was made after (None: unknown).

    Attributes:
        step: first step that has to be done again; 0 if the checkpoint was made before any.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class OpError(PS2Error):
    """An operation or a user's function failed on a server; the text carries that server's traceback."""


class WorkerError(PS2Error):
    """A worker of ``ps.run`` failed; the text names its rank and clock, and carries its traceback."""


class NotColocatedWarning(UserWarning):
    """Two vectors of one operation are not co-located: their data travelled through the network."""


class PrecisionWarning(UserWarning):
    """Numbers that float64 cannot hold were rounded."""


class CheckpointWarning(UserWarning):
    """A checkpoint by interval could not be made; the one before stays the newest."""
