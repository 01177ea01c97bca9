"""Random programs of vector operations on a real fleet, side by side with a plain NumPy model of it.

A model vector holds its values at a few known columns (all columns of a dense vector, some keys of a sparse one). The
vectors of one matrix share which of these are active; a value that is not active is 0. After each step the model takes
over what the servers hold, so that a step is judged by its own rounding only.
"""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ps2 import DCV, NotColocatedWarning
from ps2.errors import DTypeError
from tests.conftest import wait_until

EXAMPLES = 6
STEPS = 30
MAX_VECTORS = 8
FLOATS = (0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 7.0, 1e-3, np.nan, np.inf)
INTS = (0, 1, -1, 2, -3, 7, 100, 2**62, -(2**63))
FAR_KEYS = (0, 1, 2, 77, 2**31, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1)
RTOL = {"float32": 1e-5, "float64": 1e-12, "int64": 1e-12}
VERBS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}

pick = st.integers(0, 1000)
verbs = st.sampled_from(sorted(VERBS))
picks = st.lists(pick, max_size=12)
batched = st.sampled_from(("add", "sub", "fill", "axpy", "scatter", "read"))


@dataclass(eq=False)
class Matrix:
    dim: int
    dtype: str
    sparse: bool
    columns: np.ndarray
    active: np.ndarray


@dataclass(eq=False)
class Vector:
    handle: DCV
    matrix: Matrix
    values: np.ndarray = field(init=False)

    def __post_init__(self):
        self.values = np.zeros(self.matrix.columns.size, self.matrix.dtype)


def number(choice, dtype):
    return INTS[choice % len(INTS)] if dtype == "int64" else FLOATS[choice % len(FLOATS)]


def magnitude(*arrays):
    """The largest finite number: what rounding is relative to."""
    numbers = np.abs(np.concatenate([np.ravel(a).astype(np.float64) for a in arrays]))
    return numbers[np.isfinite(numbers)].max(initial=0)


def check_close(actual, expected, dtype, scale):
    actual, expected = np.asarray(actual), np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


class Programs(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.vectors: list[Vector] = []

    def teardown(self):
        """All handles dropped: the next call frees every row, and with them every matrix that was made here."""
        self.vectors.clear()
        gc.collect()
        probe = DCV.dense(1)
        # What a server could not be told in time is freed a moment later.
        wait_until(lambda: self.matrices() - self.others == {probe._matrix}, "all else is freed")

    # -- vectors come and go ---------------------------------------------------------------------------------------

    @rule(
        dim=st.sampled_from((1, 2, 3, 13, 97)),
        dtype=st.sampled_from(sorted(RTOL)),
        rows=st.integers(1, 4),
        spread=st.integers(1, 3),
        align=st.sampled_from((1, 5)),
    )
    def dense(self, dim, dtype, rows, spread, align):
        handle = DCV.dense(dim, rows, dtype, partitionsPerServer=spread, align=align)
        self.keep(Vector(handle, Matrix(dim, dtype, False, np.arange(dim), np.ones(dim, bool))))

    @rule(
        dim=st.sampled_from((1, 2, 13, 2**63)),
        dtype=st.sampled_from(sorted(RTOL)),
        rows=st.integers(1, 4),
        spread=st.integers(1, 2),
    )
    def sparse(self, dim, dtype, rows, spread):
        columns = np.array(FAR_KEYS) if dim > 100 else np.arange(dim)
        handle = DCV.sparse(dim, rows, dtype, partitionsPerServer=spread)
        self.keep(Vector(handle, Matrix(dim, dtype, True, columns, np.zeros(columns.size, bool))))

    @precondition(lambda self: self.vectors)
    @rule(at=pick)
    def derive(self, at):
        u = self.at(at)
        self.keep(Vector(u.handle.derive(), u.matrix))

    @precondition(lambda self: self.vectors)
    @rule(at=pick, by_hand=st.booleans())
    def free_or_drop(self, at, by_hand):
        u = self.vectors.pop(at % len(self.vectors))
        if by_hand:
            u.handle.free()

    # -- operations ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.vectors)
    @rule(at=pick, to=picks, choices=picks, verb=st.sampled_from(("push", *sorted(VERBS))))
    def write(self, at, to, choices, verb):
        u = self.at(at)
        if self.refused(u, verb):
            return
        before, slots, values = u.values.copy(), *self.some_values(u, to, choices)
        getattr(u.handle, verb)(values, u.matrix.columns[slots])
        self.model_write(u, verb, slots, values)
        self.compare(u, before, values)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, choices=st.lists(pick, min_size=1, max_size=5), verb=st.sampled_from(("push", *sorted(VERBS))))
    def write_all(self, at, choices, verb):
        u = self.at(at)
        if u.matrix.sparse or self.refused(u, verb):
            return
        before, slots = u.values.copy(), np.arange(u.matrix.dim)
        values = np.array([number(choices[i % len(choices)] + i, u.matrix.dtype) for i in slots], u.matrix.dtype)
        getattr(u.handle, verb)(values)
        self.model_write(u, verb, slots, values)
        self.compare(u, before, values)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, choice=pick, verb=st.sampled_from(("fill", *sorted(VERBS))), new=st.booleans())
    def with_number(self, at, choice, verb, new):
        u, before = self.at(at), self.at(at).values.copy()
        if self.refused(u, verb):
            return
        x = number(choice, u.matrix.dtype)
        result = u
        if verb == "fill":
            u.handle.fill(x)
        elif new:
            result = Vector(self.operator(verb, u.handle, x), u.matrix)
        else:
            getattr(u.handle, verb)(x)
        result.values[:] = u.values
        on = u.matrix.active
        with np.errstate(all="ignore"):
            scalar = u.values.dtype.type(x)
            result.values[on] = scalar if verb == "fill" else VERBS[verb](u.values[on], scalar)
        self.compare(result, before)
        if result is not u:
            self.keep(result)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, other=pick, verb=st.sampled_from(("copy", "axpy", *sorted(VERBS))), new=st.booleans())
    def with_vector(self, at, other, verb, new):
        u, v = self.at(at), self.like(at, other)
        if self.refused(u, verb):
            return
        alpha, result, before = 2, u, u.values.copy()
        if not np.can_cast(v.values.dtype, u.values.dtype, "same_kind"):
            with pytest.raises(DTypeError):
                u.handle.add(v.handle)
            return
        with self.warned_unless_beside(u, v):
            if verb == "axpy":
                u.handle.axpy(v.handle, alpha)
            elif new and verb in VERBS:
                result = Vector(self.operator(verb, u.handle, v.handle), u.matrix)
            else:
                getattr(u.handle, verb)(v.handle)
        self.model_beside(u, v)
        result.values[:] = u.values
        on = u.matrix.active
        with np.errstate(all="ignore"):
            theirs = v.values.astype(u.values.dtype)[on]
            if verb == "copy":
                result.values[on] = theirs
            elif verb == "axpy":
                result.values[on] += u.values.dtype.type(alpha) * theirs
            else:
                result.values[on] = VERBS[verb](u.values[on], theirs)
        self.compare(result, before, 2 * theirs.astype(np.float64))
        if result is not u:
            self.keep(result)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, other=pick)
    def momentum(self, at, other):
        w = self.at(at)
        v, g = self.like(at, other), self.like(at, other + 1)
        if w.matrix.dtype == "int64" or "int64" in (v.matrix.dtype, g.matrix.dtype) or len({w, v, g}) < 3:
            return
        befores = (w.values.copy(), v.values.copy(), g.values.copy())
        with self.warned_unless_beside(w, v, g):
            w.handle.zip(v.handle, g.handle).apply("momentum", lr=0.5, momentum=0.25)
        self.model_beside(w, v)
        self.model_beside(w, g)
        on, kind = w.matrix.active, w.values.dtype
        with np.errstate(all="ignore"):
            velocity = kind.type(0.25) * v.values.astype(kind) + g.values.astype(kind)
            w.values[on] -= kind.type(0.5) * velocity[on]
            v.values[:] = np.where(on, velocity, v.values)
        if v.matrix is not w.matrix:
            v.matrix.active |= on if w.matrix.sparse or not v.matrix.sparse else v.values != 0
        rough = max(w.matrix.dtype, v.matrix.dtype, g.matrix.dtype, key=RTOL.__getitem__)
        self.compare(w, *befores, tolerance=rough)
        self.compare(v, *befores, tolerance=rough)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, factor=st.sampled_from((2, -1)))
    def map_partitions(self, at, factor):
        u = self.at(at)

        def scale(a):
            a *= factor
            return a.size

        sizes = u.handle.zip().mapPartitions(scale)
        assert sizes.sum() == u.matrix.active.sum()
        with np.errstate(all="ignore"):
            u.values *= u.values.dtype.type(factor)
        self.compare(u)

    @precondition(lambda self: self.vectors)
    @rule(at=pick, other=pick, asked=picks)
    def read(self, at, other, asked):
        u, v = self.at(at), self.like(at, other)
        for check, answer in self.reads(u, asked):
            check(answer())
        if np.can_cast(v.values.dtype, u.values.dtype, "same_kind"):
            with self.warned_unless_beside(u, v):
                product = u.handle.dot(v.handle)
            self.model_beside(u, v)
            self.check_dot(product, u, v)
            self.compare(u)

    @precondition(lambda self: self.vectors)
    @rule(calls=st.lists(st.tuples(batched, pick, pick, picks), min_size=1, max_size=8))
    def batch(self, calls):
        pending = []
        befores = {u: u.values.copy() for u in self.vectors}
        with self.ps.batch(), np.errstate(all="ignore"):
            for call, at, choice, chosen in calls:
                u, on = self.at(at), self.at(at).matrix.active
                x = u.values.dtype.type((1, 2, -3)[choice % 3])
                v = next(v for v in self.vectors[at % len(self.vectors) :] if v.matrix is u.matrix)
                if call == "read":
                    pending += [(check, answer()) for check, answer in self.reads(u, chosen)]
                elif call == "scatter":
                    slots, values = self.some_values(u, chosen, chosen)
                    u.handle.add(values, u.matrix.columns[slots])
                    self.model_write(u, "add", slots, values)
                elif call == "fill":
                    u.handle.fill(x)
                    u.values[on] = x
                elif call == "axpy":
                    u.handle.axpy(v.handle, x)
                    u.values[on] += x * v.values[on]
                else:
                    getattr(u.handle, call)(v.handle)
                    u.values[on] = VERBS[call](u.values[on], v.values[on])
        for check, deferred in pending:
            check(deferred.result())
        for u in self.vectors:
            self.compare(u, *befores.values())

    # -- the model -------------------------------------------------------------------------------------------------

    def keep(self, vector):
        self.vectors.append(vector)
        if len(self.vectors) > MAX_VECTORS:
            self.vectors.pop(0)

    def at(self, choice):
        return self.vectors[choice % len(self.vectors)]

    def like(self, at, choice):
        """Choose a vector as long as another one, co-located or not."""
        fitting = [v for v in self.vectors if v.matrix.dim == self.at(at).matrix.dim]
        return fitting[choice % len(fitting)]

    def refused(self, u, verb):
        """int64 vectors refuse to be divided."""
        if verb != "div" or u.matrix.dtype != "int64":
            return False
        with pytest.raises(DTypeError):
            u.handle.div(3)
        return True

    @staticmethod
    def operator(verb, a, b):
        return {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b}[verb]()

    @staticmethod
    def some_values(u, to, choices):
        slots = np.array([choice % u.values.size for choice in to], int)
        values = [number(choices[i % len(choices)], u.matrix.dtype) if choices else 1 for i in range(slots.size)]
        return slots, np.array(values, u.matrix.dtype)

    @staticmethod
    def model_write(u, verb, slots, values):
        if verb in ("mul", "div"):
            kept = u.matrix.active[slots]
            slots, values = slots[kept], values[kept]
        u.matrix.active[slots] = True
        with np.errstate(all="ignore"):
            for slot, value in zip(slots, values, strict=True):
                u.values[slot] = value if verb == "push" else VERBS[verb](u.values[slot], value)

    @staticmethod
    def model_beside(u, v):
        """What bringing ``v`` beside ``u`` does to the keys of ``u``."""
        if u.matrix is not v.matrix and u.matrix.sparse:
            u.matrix.active |= v.matrix.active if v.matrix.sparse else v.values != 0

    @staticmethod
    def warned_unless_beside(u, *others):
        if all(u.handle.isColocated(v.handle) and v.matrix.dtype == u.matrix.dtype for v in others):
            return warnings.catch_warnings(action="error", category=NotColocatedWarning)
        return pytest.warns(NotColocatedWarning)

    def reads(self, u, asked):
        """Pairs (check of an answer, call); the checks compare with the values of now."""
        values, handle, dtype = u.values.copy(), u.handle, u.matrix.dtype
        wide = values.astype(np.float64)
        extremes = wide[u.matrix.active]
        if u.matrix.sparse and extremes.size < u.matrix.dim:
            extremes = np.append(extremes, 0)
        slots = np.array([choice % values.size for choice in asked], int)
        with np.errstate(all="ignore"):
            expected_sum, expected_norm = wide.sum(), np.sqrt((wide * wide).sum())
        size = np.nansum(np.abs(np.where(np.isfinite(wide), wide, 0)))
        if np.isfinite(size):
            yield lambda x: check_close(x, expected_sum, dtype, size), handle.sum
        yield lambda x: check_close(x, expected_norm, dtype, magnitude(wide)), handle.norm2
        yield lambda x: check_close(x, np.count_nonzero(values), dtype, 0), handle.nnz
        yield lambda x: check_close(x, extremes.max(), dtype, magnitude(wide)), handle.max
        yield lambda x: check_close(x, extremes.min(), dtype, magnitude(wide)), handle.min
        columns = u.matrix.columns[slots]
        yield lambda x: check_close(x, values[slots], dtype, magnitude(wide)), lambda: handle.pull(columns)

    @staticmethod
    def check_dot(product, u, v):
        with np.errstate(all="ignore"):
            terms = u.values.astype(np.float64) * v.values.astype(u.values.dtype).astype(np.float64)
            size = np.abs(np.where(np.isfinite(terms), terms, 0)).sum()
            if np.isfinite(size):
                check_close(product, terms.sum(), u.matrix.dtype, size)

    def compare(self, u, *operands, tolerance=None):
        """Compare with what the servers hold, and go on from there."""
        if u.matrix.sparse:
            keys, values = u.handle.pull()
            assert keys.tolist() == u.matrix.columns[u.matrix.active].tolist()
            actual = np.zeros_like(u.values)
            actual[u.matrix.active] = values
        else:
            actual = u.handle.pull()
        assert actual.dtype == u.values.dtype
        check_close(actual, u.values, tolerance or u.matrix.dtype, magnitude(actual, *operands))
        u.values[:] = actual


# Sums of large integers are rounded; the checks allow for it.
@pytest.mark.filterwarnings("ignore::ps2.errors.PrecisionWarning")
@pytest.mark.parametrize("ps", [1, 3], indirect=True)
def test_program_when_random_then_as_numpy(ps, matrices):
    others = matrices()

    class OnFleet(Programs):
        def __init__(self):
            super().__init__()
            self.ps, self.matrices, self.others = ps, matrices, others

    run_state_machine_as_test(
        OnFleet,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            # Shrinking on a real fleet outlasts the test's timeout; a failing program is printed as it was found.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
