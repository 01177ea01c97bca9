"""``RemoteOptimizer``: a PyTorch optimizer with parameters and state on the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import ConfigError, DivergedError, DTypeError, ShapeError, UsageError
from ps2.torch.device import copy_in, copy_out
from ps2.torch.settings import STEPS

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
DEVICES = ("cpu", "cuda")
WEIGHT = "weight"
# The key of ``state_dict`` for the parameters and states on the servers. torch's optimizers do not have this key.
REMOTE = "remote"


class RemoteOptimizer(torch.optim.Optimizer):
    """A PyTorch optimizer with dense parameters and state on the servers, which take each ``step``.

    Example::

        optimizer = RemoteOptimizer(model.parameters(), "adam", lr=1e-3)  # in the driver: copies the values to servers
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()  # one request per server: sends gradients, receives parameters

    The optimizer can be pickled together with the module, for example in the closure of a worker of ``ps.run``. In each
    task, call ``pull`` first. The servers take the steps of several workers one after the other (asynchronous SGD). The
    parameters that a worker receives after its step contain the steps of other workers. Schedulers of the learning rate
    work as usual; each process sends its own learning rate.
    """

    def __init__(  # noqa: PLR0913 - the scalars of four optimizers
        self,
        params: Iterable[Any],
        optimizer: str = "adam",
        lr: float = 1e-3,
        *,
        momentum: float = 0.9,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        withCopy: bool = False,
    ) -> None:
        """Copy the parameters to the servers.

        Args:
            params: parameters or groups of parameters, as for torch's optimizers. All parameters of a group have one
                dtype, float32 or float64, and are on one device, the CPU or a GPU. They may move with their module.
            optimizer: "sgd", "momentum", "adagrad" or "adam", with the formulas of torch (``momentum``: no dampening).
            lr: learning rate. Like the other scalars, it may differ between groups.
            momentum: decay rate of the velocity, for "momentum".
            beta1, beta2: decay rates of the moments, for "adam".
            eps: the constant that "adagrad" and "adam" add to the denominator.
            withCopy: whether the servers have room for a copy of all values (``storeCopy``), which doubles the memory.

        Raises:
            ConfigError: there is no such optimizer, or a scalar is out of range.
            DTypeError: a parameter has another dtype, or another device.
            StoppedError: there is no PS2Context.
        """
        if optimizer not in STEPS:
            raise ConfigError(f"optimizer: expected one of {', '.join(STEPS)}, got {optimizer!r}")
        scalars = {"momentum": momentum, "beta1": beta1, "beta2": beta2, "eps": eps}
        self.optimizer = optimizer
        self._remote: tuple[_RemoteGroup, ...] | None = None
        super().__init__(params, {"lr": lr, **{name: scalars[name] for name in STEPS[optimizer][2]}})
        for number, group in enumerate(self.param_groups):
            _check(number, group["params"])
        states = STEPS[optimizer][1]
        self._remote = tuple(_RemoteGroup.of(group["params"], states, withCopy) for group in self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None, pull: bool = True) -> Any:
        """Send the gradients, let the servers take a step, and read the new parameters.

        A parameter without a gradient has the gradient 0.

        Args:
            closure: a function that evaluates the model again and returns the loss, as in torch's optimizers.
            pull: False does not read the new parameters; call ``pull`` later.

        Returns:
            The result of ``closure``; None if there is no closure.

        Raises:
            DivergedError: a gradient is not finite. Nothing has been sent.
            ConfigError: a scalar is out of range.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        name, _, scalars = STEPS[self.optimizer]
        gradients = [remote.gradient(self.param_groups[index]["params"]) for index, remote in self._groups()]
        answers = []
        with batch():
            for index, remote in self._groups():
                values = {scalar: float(self.param_groups[index][scalar]) for scalar in ("lr", *scalars)}
                remote.weight.zip(*remote.states).apply(name, gradient=gradients[index], **values)
                if pull:
                    answers.append(remote.weight.pull())
        if pull:
            self._write(answers)
        return loss

    def pull(self) -> None:
        """Read the parameters from the servers."""
        with batch():
            answers = [remote.weight.pull() for _, remote in self._groups()]
        self._write(answers)

    def push(self) -> None:
        """Overwrite the parameters on the servers with the module's parameters; the optimizer's state stays."""
        for index, remote in self._groups():
            remote.weight.push(_flatten(self.param_groups[index]["params"]))

    def storeCopy(self) -> None:
        """Copy the parameters and the state, on the servers, over an earlier copy.

        Raises:
            UsageError: the optimizer was not made with ``withCopy``.
        """
        self._copy(is_restored=False)

    def restoreCopy(self) -> None:
        """Set the parameters and the state on the servers to the copy, for ``pull``. Raises like ``storeCopy``."""
        self._copy(is_restored=True)

    def _copy(self, is_restored: bool) -> None:
        with batch():
            for _, remote in self._groups():
                if not remote.copies:
                    raise UsageError("the optimizer has no room for a copy: make it with withCopy=True")
                for vector, copy in zip(remote.vectors, remote.copies, strict=True):
                    target, source = (vector, copy) if is_restored else (copy, vector)
                    target.copy(source)

    def free(self) -> None:
        """Free the parameters and the state on the servers."""
        for _, remote in self._groups():
            for vector in (*remote.copies, *remote.states, remote.weight):
                vector.free()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, in the constructor; raise UsageError later."""
        if self._remote is not None:
            raise UsageError("add_param_group: groups of parameters can be added only in the constructor")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the scalars, and the parameters and state on the servers, for ``load_state_dict``."""
        names = (WEIGHT, *STEPS[self.optimizer][1])
        remote = [
            {name: torch.from_numpy(vector.pull()) for name, vector in zip(names, group.vectors, strict=True)}
            for _, group in self._groups()
        ]
        return {**super().state_dict(), "optimizer": self.optimizer, REMOTE: remote}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Write what ``state_dict`` returned to the servers and to the module.

        Raises:
            UsageError: ``state_dict`` belongs to another optimizer, or its groups have other numbers of parameters.
        """
        state = state_dict.get("optimizer"), [len(rows.get(WEIGHT, ())) for rows in state_dict.get(REMOTE, ())]
        expected = self.optimizer, [remote.weight.dim for _, remote in self._groups()]
        if state != expected:
            raise UsageError(
                f"load_state_dict: expected optimizer {expected[0]!r} with groups of {expected[1]} parameters, got "
                f"{state[0]!r} with groups of {state[1]}"
            )
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        names = (WEIGHT, *STEPS[self.optimizer][1])
        for (_, remote), rows in zip(self._groups(), state_dict[REMOTE], strict=True):
            for name, vector in zip(names, remote.vectors, strict=True):
                vector.push(rows[name].numpy())
        self.pull()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizer": self.optimizer, "_remote": self._remote}

    def _groups(self) -> list[tuple[int, _RemoteGroup]]:
        assert self._remote is not None
        return list(enumerate(self._remote))

    def _write(self, answers: Sequence[Any]) -> None:
        with torch.no_grad():
            for group, answer in zip(self.param_groups, answers, strict=True):
                (flat,), begin = copy_in([answer.result()], group["params"][0].device), 0
                for param in group["params"]:
                    param.copy_(flat[begin : begin + param.numel()].view_as(param))
                    begin += param.numel()


@dataclass(frozen=True, eq=False)
class _RemoteGroup:
    """One group of parameters on the servers.

    Attributes:
        weight: all parameters of the group, flattened and concatenated.
        states: the optimizer's state vectors, co-located with ``weight``.
        copies: vectors for a copy of ``vectors``; empty: there is no room for one.
    """

    weight: DCV
    states: tuple[DCV, ...]
    copies: tuple[DCV, ...] = ()

    @classmethod
    def of(cls, params: Sequence[Any], states: Sequence[str], with_copy: bool = False) -> _RemoteGroup:
        """Copy parameters to a new vector on the servers, with a state vector of zeros for each of ``states``."""
        flat, rows = _flatten(params), 1 + len(states)
        weight = DCV.dense(len(flat), 2 * rows if with_copy else rows, flat.dtype.name)
        weight.push(flat)
        copies = tuple(weight.derive() for _ in range(rows if with_copy else 0))
        return cls(weight, tuple(weight.derive() for _ in states), copies)

    @property
    def vectors(self) -> tuple[DCV, ...]:
        return self.weight, *self.states

    def gradient(self, params: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the gradients of all parameters, flattened and concatenated; zeros for parameters without gradient."""
        flat, begin = torch.zeros(self.weight.dim, dtype=params[0].dtype, device=params[0].device), 0
        for number, param in enumerate(params):
            if param.grad is not None:
                if param.grad.is_sparse:
                    raise UsageError(f"parameter {number}: expected a dense gradient, got a sparse gradient")
                flat[begin : begin + param.numel()] = param.grad.detach().reshape(-1)
            begin += param.numel()
        if begin != len(flat):
            raise ShapeError(f"expected parameters with {len(flat)} elements in total, as on the servers, got {begin}")
        gradient = copy_out(flat)
        if not np.isfinite(gradient).all():
            raise DivergedError("a gradient of the dense parameters is not finite: lower lr, or clip gradients")
        return gradient


def _check(number: int, params: Sequence[Any]) -> None:
    dtypes = {param.dtype for param in params}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        got = ", ".join(sorted(map(str, dtypes))) or "no parameter"
        raise DTypeError(f"group {number}: expected parameters of one dtype, float32 or float64, got {got}")
    devices = {str(param.device) for param in params}
    if len(devices) != 1 or params[0].device.type not in DEVICES:
        got = ", ".join(sorted(devices))
        raise DTypeError(f"group {number}: expected parameters on one device, the CPU or a CUDA device, got {got}")


def _flatten(params: Sequence[Any]) -> Any:
    return copy_out(torch.cat([param.detach().reshape(-1) for param in params]))
