"""A trained dictionary, usable without Spark and servers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dictionary.kernels import encode
from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.powers_of_two import exponent_of, scaled_rows, shifted
from ps2.algorithms.frame.row_matrices import finite_row_or_rows, finite_rows
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.ops.kernels import Float64s


class SparseCoder(ArrayModel):
    """A dictionary that encodes rows as sparse codes; picklable.

    The code a of a row x minimises ``1/2 |x - a D|^2 + penalty |a|_1``.

    Attributes:
        dictionary: D, float64, shape (k, features).
        penalty: the weight of the penalty on the codes' absolute values.
        positive: whether codes are not negative.

    Example::

        coder = SparseCoder.load("models/patches")
        codes = coder.transform(X)  # NumPy or scipy CSR; a scipy CSR matrix of codes
    """

    _MODEL_CLASS = "ps2.algorithms.feature.DictionaryLearningModel"
    _FILES = ModelFiles("ps2.dictionary.v1", "a dictionary", {"dictionary": "f"}, {"penalty": float, "positive": bool})
    classes = None

    def __init__(self, dictionary: npt.ArrayLike, penalty: float = 1.0, positive: bool = False) -> None:
        """Raises:
        ShapeError, DTypeError: the dictionary is not a numeric matrix.
        InputError: a value is not finite.
        ConfigError: the penalty is negative or not finite.
        """
        self.dictionary: Float64s = np.ascontiguousarray(finite_rows("dictionary", dictionary))
        self.penalty, self.positive = float(penalty), bool(positive)
        if not self.dictionary.shape[0]:
            raise ShapeError(f"dictionary: expected shape (k, features), got {self.dictionary.shape}")
        if not 0 <= self.penalty < np.inf:
            raise ConfigError(f"penalty: expected a finite number that is not negative, got {penalty!r}")

    def __repr__(self) -> str:
        return f"SparseCoder(k={self.k}, features={self.dim}, penalty={self.penalty:g}, positive={self.positive})"

    def _params(self) -> dict[str, Any]:
        return {"k": self.k, "regParam": self.penalty, "nonnegative": self.positive}

    @property
    def k(self) -> int:
        """Number of atoms."""
        return int(self.dictionary.shape[0])

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.dictionary.shape[1])

    def transform(self, x: Any) -> sp.csr_array:
        """Return the codes of rows: a scipy CSR array of float64, shape (n, k).

        Args:
            x: NumPy array or scipy sparse, shape (n, features).

        Raises:
            ShapeError, DTypeError: x is not a numeric matrix, or has a wrong number of features.
            InputError: a value is not finite, or codes or inner products of atoms overflow float64.
        """
        codes, _, exponent = self._encode(x)
        codes.data = shifted(codes.data, exponent)
        if not np.isfinite(codes.data).all():
            raise InputError("features: the codes of some rows are too large for float64; scale the features")
        return codes

    def objective(self, x: Any) -> float:
        """Return the sum over rows of ``1/2 |x - a D|^2 + penalty |a|_1``; raises like ``transform``.

        The sum is infinite if it overflows float64.
        """
        _, losses, exponent = self._encode(x)
        return float(shifted(losses.sum(), 2 * exponent))

    def margins(self, x: sp.csr_array) -> Float64s:
        """Return the codes of rows as a dense array, shape (n, k), of which predictions are made."""
        return np.asarray(self.transform(x).toarray())

    @cached_property
    def _products(self) -> tuple[Float64s, Float64s]:
        with np.errstate(over="ignore", invalid="ignore"):
            products = self.dictionary @ self.dictionary.T
        if not np.isfinite(products).all():
            raise InputError("dictionary: inner products of its atoms exceed float64; scale the atoms")
        return np.ascontiguousarray(self.dictionary.T), products

    def __getstate__(self) -> dict[str, Any]:
        return {"dictionary": self.dictionary, "penalty": self.penalty, "positive": self.positive}

    def _encode(self, x: Any) -> tuple[sp.csr_array, Float64s, int]:
        """Divide the rows by a power of two; return their codes and losses, and the exponent."""
        rows = sp.csr_array(finite_row_or_rows("x", x, self.dim))
        exponent = exponent_of(rows.data)
        penalty = float(shifted(self.penalty, -exponent))
        return *encode(scaled_rows(rows, exponent), *self._products, penalty, self.positive), exponent
