"""All errors of PS2 in one tree. A branch tells the caller what to do.

``UsageError``: change the call. ``TransientError``: retry. ``RecoveryError``: choose another checkpoint.
``OpError``: fix the function that ran on the server; ``WorkerError``: fix the function that ran in a task.
``ps2.rpc.status`` maps each class to a gRPC status and back.
"""

from __future__ import annotations


class PS2Error(Exception):
    """Base of every error that PS2 raises on purpose."""


class UsageError(PS2Error, ValueError):
    """The call cannot work as it is; repeating it does not help."""


class ConfigError(UsageError):
    """A setting, option or environment variable has an unusable value."""


class ShapeError(UsageError):
    """An array has the wrong length or number of dimensions."""


class DTypeError(UsageError):
    """An array or scalar has a type that the vector cannot store."""


class OutOfRangeError(UsageError, IndexError):
    """An index or key lies outside ``[0, dim)``, or a row outside the matrix."""


class NotFoundError(UsageError, LookupError):
    """The named matrix, row or operation does not exist, or no longer exists."""


class NotColocatedError(UsageError):
    """Two vectors are not co-located and the context is strict about it."""


class StaleMarkError(UsageError):
    """The servers no longer know which keys have changed since a mark: read all keys instead."""


class StoppedError(UsageError):
    """The required context, fleet or Spark application has been stopped."""


class RunEndedError(StoppedError):
    """The run of this worker has ended: another worker or the driver failed, or it was stopped."""


class LimitError(UsageError):
    """The request exceeds a limit. For example, the server has too little memory for it even without other requests."""


class AuthError(UsageError):
    """The token is missing, or is not the fleet's token."""


class ProtocolError(UsageError):
    """A message that does not follow the contract in ``proto/ps2/v1``."""


class InputError(UsageError):
    """An input file is missing, empty or malformed, or rows of a DataFrame cannot be used."""


class DivergedError(UsageError):
    """A training's values became infinite or NaN, or its loss much larger: the step size is too large."""


class SlotsError(UsageError):
    """Spark has too few free task slots for the workers, or for a job that ``onClock`` has started."""


class LaunchError(UsageError):
    """A server process could not be started; the message ends with the tail of its log."""


class TransientError(PS2Error):
    """A failure that may be temporary; the same call may succeed later."""


class UnavailableError(TransientError, ConnectionError):
    """A server or the master cannot be reached."""


class UnreachableError(UnavailableError):
    """This process has never reached a peer that it must connect to: an address or a firewall is wrong."""


class LostError(UnavailableError):
    """A server is lost for good: retrying does not help, and its data must be created again."""


class RecoveringError(UnavailableError):
    """A server is being recovered; the call can succeed afterwards."""


class StaleRouteError(TransientError):
    """The request names a partition that this server does not hold, or no longer holds."""


class KeyMissError(TransientError):
    """The request names a set of keys by its hash, which this server does not remember, or no longer remembers."""


class BusyError(TransientError):
    """The request does not fit into a server's memory limit until other requests are done."""


class DeadlineError(TransientError, TimeoutError):
    """A server did not answer in time."""


class SpillError(TransientError):
    """A worker's local disk has no space for its rows, or fails; another attempt may run elsewhere."""


class RecoveryError(PS2Error):
    """Saved state is missing or invalid."""


class CheckpointMissingError(RecoveryError):
    """There is no complete checkpoint at this path."""


class CheckpointCorruptError(RecoveryError):
    """A checkpoint exists, but its size, shape or checksum differs from its manifest."""


class RolledBack(RecoveryError):
    """The whole fleet rolled back to a checkpoint; continue with ``step``.

    Attributes:
        step: first step to repeat; 0 if the checkpoint was made before any step; None if unknown.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class OpError(PS2Error):
    """An operation or a user's function failed on a server; the text contains the server's traceback."""


class WorkerError(PS2Error):
    """A worker of ``ps.run`` failed; the text contains its rank, its clock and its traceback."""


class NotColocatedWarning(UserWarning):
    """The vectors of one operation are not co-located, so their data were sent through the network."""


class PrecisionWarning(UserWarning):
    """Integers that float64 cannot represent were rounded."""


class DivergenceWarning(UserWarning):
    """A training diverged, and was repeated with smaller steps."""


class CheckpointWarning(UserWarning):
    """A periodic checkpoint failed; the previous checkpoint stays the newest."""
