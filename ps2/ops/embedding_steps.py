"""Optimizer steps on embedding tables: matrices with layout "column" that store weights and optimizer state by key.

The block of a key (its values in all rows) contains k weights, and then the state of the optimizer. A request has
gradients of shape (n, k) for n distinct keys, and the server takes one step for each of these keys. So steps are always
lazy: other keys do not change. Slot -1 stands for an absent key, and is never written.

``l1`` and ``l2`` are strengths of penalties that are not part of the gradient: a proximal step follows each step, for
the same keys, as in ``ps2.ops.optimizers``. FTRL has the penalties in its own formula.
"""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Any

import numpy as np

from ps2.errors import ShapeError
from ps2.ops.blocks import ACCESS_COST
from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.operands import SLOTS, along
from ps2.ops.optimizers import Decay, NonNegative, Positive
from ps2.ops.parallel import assign, over_blocks
from ps2.ops.prefetch import AHEAD, prefetch, prefetch_short
from ps2.ops.steps import adam_column, shrink
from ps2.ops.table import Array, Blocks, Range, Slots, Tiny, Values, op

FLOAT32 = ("float32",)
Width = Annotated[int, Range(at_least=1)]
Begin = Annotated[int, Range(at_least=0)]
# A table for ``ps2.ops.warm``, with enough rows for the state of every optimizer at k = 1.
Table = Annotated[Blocks, Tiny(lambda dtype: np.ones((1, 5), dtype))]
Gradients = Annotated[Values, along(SLOTS, "k")]
# Number of blocks between the current block and the prefetched block, in loops that use only weights. Weights take one
# or two cache lines.
WEIGHTS_AHEAD = 16


def sgd_block(k: int) -> int:
    """Return the number of values in a key's block for ``embedding_sgd``: k weights w."""
    return k


def adagrad_block(k: int) -> int:
    """Return the number of values in a key's block for ``embedding_adagrad``: w and s of k weights."""
    return 2 * k


def adam_block(k: int) -> int:
    """Return the number of values in a key's block for ``embedding_adam``: w, v, s, and two bias corrections."""
    return 3 * k + 2


def ftrl_block(k: int, linear: int) -> int:
    """Return the number of values in a key's block for ``embedding_ftrl``: w, n, and z of ``linear`` weights."""
    return 2 * k + linear


@op(initial=True)
def embedding_pull(m: Blocks, slots: Slots, *, k: Width) -> Annotated[Array, along(SLOTS, "k")]:
    """Return the first k values of the blocks at the slots, shape (n, k), in order of the slots; zeros at slot -1.

    Raises:
        ShapeError: blocks have fewer than k values.
        OutOfRangeError: a slot is not in the shard.
    """
    _check_block(m, k)
    out = np.empty((slots.size, k), dtype=m.dtype)
    block = readable(m)
    over_blocks(lambda s, o: take(block, s, o), (check_slots(slots, m.shape[0]), out), cost=ACCESS_COST + k)
    return out


@op(reduce="sum")
def embedding_count(m: Blocks) -> float:
    """Return the number of blocks: of columns, or of the keys that a sparse matrix stores."""
    return float(len(m))


@op(writes=("m",), dtypes=FLOAT32)
def embedding_copy(m: Table, *, source: Begin, target: Begin, count: Width) -> None:
    """In all blocks, copy ``count`` values from position ``source`` to ``target``; ShapeError: a block has fewer."""
    _check_block(m, max(source, target) + count)
    assign(m[:, target : target + count], m[:, source : source + count])


@op(writes=("m",), dtypes=FLOAT32, creates=True)
def embedding_sgd(
    m: Table, slots: Slots, gradients: Gradients, *, lr: Positive, l1: NonNegative = 0.0, l2: NonNegative = 0.0
) -> None:
    """Take one step of gradient descent at the slots: w <- w - lr g.

    Args:
        m: blocks of w.
        gradients: g, shape (n, k).
        lr: the learning rate.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.

    Raises:
        ShapeError: the number of gradients differs from the number of slots, or blocks are too short for k weights and
            their state.
        OutOfRangeError: a slot is not in the shard.
    """
    slots, gradients = _checked(m, slots, gradients, sgd_block(gradients.shape[1]))
    step_sgd(m, slots, gradients, np.float32(lr), np.float32(lr * l1), np.float32(1 + lr * l2))


@op(writes=("m",), dtypes=FLOAT32, creates=True)
def embedding_adagrad(
    m: Table,
    slots: Slots,
    gradients: Gradients,
    *,
    lr: Positive,
    eps: Positive = 1e-8,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Take one step of Adagrad at the slots (Duchi et al., 2011): s <- s + g^2; w <- w - lr g / (sqrt(s) + eps).

    Args:
        m: blocks of w and s.
        gradients, lr, l1, l2: see ``embedding_sgd``, which raises the same errors.
        eps: a constant that is added to the root.
    """
    slots, gradients = _checked(m, slots, gradients, adagrad_block(gradients.shape[1]))
    step_adagrad(m, slots, gradients, _as_float32(lr, eps, l1, l2))


@op(writes=("m",), dtypes=FLOAT32, creates=True)
def embedding_adam(
    m: Table,
    slots: Slots,
    gradients: Gradients,
    *,
    lr: Positive,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    eps: Positive = 1e-8,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Take one lazy step of Adam at the slots (Kingma & Ba, 2015). t is the number of steps of the key.

    v <- beta1 v + (1 - beta1) g;  s <- beta2 s + (1 - beta2) g^2;  w <- w - lr / (sqrt(s / (1 - beta2^t)) + eps)
    v / (1 - beta1^t).

    Args:
        m: blocks of w, v, s, 1 - beta1^t and 1 - beta2^t.
        gradients, lr, l1, l2: see ``embedding_sgd``, which raises the same errors.
        beta1: decay of the gradients' mean.
        beta2: decay of the squared gradients' mean.
        eps: a constant that is added to the root.
    """
    slots, gradients = _checked(m, slots, gradients, adam_block(gradients.shape[1]))
    step_adam(m, slots, gradients, _as_float32(lr, beta1, 1 - beta1, beta2, 1 - beta2, eps, l1, l2))


@op(writes=("m",), dtypes=FLOAT32, creates=True)
def embedding_ftrl(
    m: Table,
    slots: Slots,
    gradients: Gradients,
    *,
    alpha: Positive,
    beta: NonNegative = 1.0,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    linear: Annotated[int, Range(at_least=0)],
    lr: Positive = 0.05,
    eps: Positive = 1e-8,
    decay: NonNegative = 0.0,
) -> None:
    """Take one step at the slots, by FTRL-Proximal for the first ``linear`` weights and by Adagrad for the others.

    FTRL (McMahan et al., 2013, Algorithm 1): sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z <- z + g - sigma w;
    n <- n + g^2;  w <- 0 if abs(z) <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2).

    If a weight is not 0 before its first step, z is initialized with the value for which the formula above gives this
    weight. So the initial weights may be random.

    Args:
        m: blocks of w, n (Adagrad's s), and z of the first ``linear`` weights.
        gradients: g, computed with the current weights, shape (n, k). Errors are as in ``embedding_sgd``.
        alpha: scale of FTRL's learning rate.
        beta: offset of FTRL's learning rate.
        l1: strength of FTRL's L1 penalty.
        l2: strength of FTRL's L2 penalty.
        linear: the number of weights that FTRL updates; at most k.
        lr: Adagrad's learning rate.
        eps: Adagrad's constant that is added to the root.
        decay: strength of the L2 penalty on the weights that Adagrad updates.
    """
    k = gradients.shape[1]
    linear = min(linear, k)
    slots, gradients = _checked(m, slots, gradients, ftrl_block(k, linear))
    step_ftrl(m, slots, gradients, linear, _as_float32(alpha, beta, l1, l2), _as_float32(lr, eps, 0.0, decay))


def _checked(m: Array, slots: Int64s, gradients: Array, length: int) -> tuple[Int64s, Array]:
    """Check slots, gradients and the length of blocks; return slots and gradients as ``readable`` arrays."""
    if len(gradients) != slots.size:
        raise ShapeError(f"gradients: expected {slots.size}, one for each slot, got {len(gradients)}")
    _check_block(m, length)
    return check_slots(slots, m.shape[0]), readable(gradients)


def _check_block(m: Array, length: int) -> None:
    if m.shape[1] < length:
        raise ShapeError(f"expected blocks of at least {length} values, got {m.shape[1]}")


def _as_float32(*values: float) -> tuple[np.float32, ...]:
    """Return values as float32. A single float64 would make a loop compute in float64."""
    return tuple(np.float32(value) for value in values)


@kernel
def take(m: Array, slots: Int64s, out: Array) -> None:
    """Set ``out[i]`` to the first values of the block at ``slots[i]``, or to zeros where the slot is -1."""
    for i in range(slots.size):
        if i + WEIGHTS_AHEAD < slots.size:
            prefetch_short(m, slots[i + WEIGHTS_AHEAD])
        slot = slots[i]
        if slot >= 0:
            for j in range(out.shape[1]):
                out[i, j] = m[slot, j]
        else:
            for j in range(out.shape[1]):
                out[i, j] = 0


# The inner loops use views of one block. With indices into the whole table, LLVM would not use SIMD instructions, and
# the loops would take two to four times as long. For the same reason, a loop computes all results of a weight before it
# stores any of them.


@kernel
def step_sgd(m: Array, slots: Int64s, gradients: Array, lr: Any, threshold: Any, divisor: Any) -> None:
    zero, k = np.float32(0), gradients.shape[1]
    has_no_penalty = threshold == 0 and divisor == 1
    for i in range(slots.size):
        if i + WEIGHTS_AHEAD < slots.size:
            prefetch_short(m, slots[i + WEIGHTS_AHEAD])
        if slots[i] < 0:
            continue
        w, g = m[slots[i]][:k], gradients[i]
        if has_no_penalty:
            for j in range(k):
                w[j] -= lr * g[j]
        else:
            for j in range(k):
                w[j] = shrink(w[j] - lr * g[j], threshold, divisor, zero)


@kernel
def step_adagrad(m: Array, slots: Int64s, gradients: Array, scalars: Any) -> None:
    lr, eps, l1, l2 = scalars
    zero, one, k = np.float32(0), np.float32(1), gradients.shape[1]
    has_no_penalty = l1 == 0 and l2 == 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        if slots[i] < 0:
            continue
        block, gradient = m[slots[i]], gradients[i]
        w, s = block[:k], block[k : 2 * k]
        for j in range(k):
            g = gradient[j]
            square = s[j] + g * g
            rate = lr / (sqrt(square) + eps)
            new_weight = w[j] - rate * g
            s[j] = square
            w[j] = new_weight if has_no_penalty else shrink(new_weight, rate * l1, one + rate * l2, zero)


@kernel
def step_adam(m: Array, slots: Int64s, gradients: Array, scalars: Any) -> None:
    lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, l1, l2 = scalars
    zero, one, k = np.float32(0), np.float32(1), gradients.shape[1]
    has_no_penalty = l1 == 0 and l2 == 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        if slots[i] < 0:
            continue
        block, gradient = m[slots[i]], gradients[i]
        w, velocity, square = block[:k], block[k : 2 * k], block[2 * k : 3 * k]
        # A recurrence for 1 - beta^t needs neither a power nor a step count.
        correction1 = beta1 * block[3 * k] + one_minus_beta1
        correction2 = beta2 * block[3 * k + 1] + one_minus_beta2
        block[3 * k], block[3 * k + 1] = correction1, correction2
        step_scalars = lr, beta1, one_minus_beta1, beta2, one_minus_beta2, correction1, correction2, eps
        for j in range(k):
            new_weight, v, s, rate = adam_column(w[j], velocity[j], square[j], gradient[j], step_scalars)
            velocity[j] = v
            square[j] = s
            w[j] = new_weight if has_no_penalty else shrink(new_weight, rate * l1, one + rate * l2, zero)


@kernel
def step_ftrl(m: Array, slots: Int64s, gradients: Array, linear: int, ftrl: Any, adagrad: Any) -> None:
    (alpha, beta, l1, l2), (lr, eps, _, decay) = ftrl, adagrad
    zero, one, k = np.float32(0), np.float32(1), gradients.shape[1]
    inverse_alpha = one / alpha
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(m, slots[i + AHEAD])
        if slots[i] < 0:
            continue
        block, gradient = m[slots[i]], gradients[i]
        w, n, z = block[:k], block[k : 2 * k], block[2 * k : 2 * k + linear]
        for j in range(linear):
            g, weight, total, square = gradient[j], w[j], z[j], n[j]
            # Before the first step, initialize z with the value for which the formula of w gives this weight.
            signed_l1 = l1 if weight > zero else (-l1 if weight < zero else zero)
            initial = -weight * (beta * inverse_alpha + l2) - signed_l1
            total = initial if square == zero and total == zero else total
            new_square = square + g * g
            root = sqrt(new_square)
            total = total + (g - (root - sqrt(square)) * inverse_alpha * weight)
            excess = total - l1 if total > zero else total + l1
            new_weight = -excess / ((beta + root) * inverse_alpha + l2)
            n[j] = new_square
            z[j] = total
            w[j] = zero if abs(total) <= l1 else new_weight
        w, s, gradient = block[linear:k], block[k + linear : 2 * k], gradient[linear:]
        for j in range(k - linear):
            g = gradient[j]
            square = s[j] + g * g
            rate = lr / (sqrt(square) + eps)
            new_weight = w[j] - rate * g
            s[j] = square
            w[j] = shrink(new_weight, zero, one + rate * decay, zero)
