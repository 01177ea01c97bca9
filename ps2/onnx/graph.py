"""Builds a graph of ONNX, node by node; all numbers are float64, as in PS2's own predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

# The versions of the operators, and the form of the file that runtimes of the same time read.
OPSET, ML_OPSET, IR_VERSION = 18, 5, 10
ML = "ai.onnx.ml"
FEATURES = "features"


class Graph:
    """A graph with one input, ``features``, shape (n, dim)."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._nodes: list[Any] = []
        self._constants: list[TensorProto] = []
        self._outputs: list[Any] = []

    def constant(self, values: npt.ArrayLike, dtype: type[np.generic] = np.float64) -> str:
        """Add a constant; return its name."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(values, dtype, order="C"), name))
        return name

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def output(self, name: str, source: str, width: int | None) -> None:
        """Make a value an output, shape (n, width); None: shape (n,)."""
        self._nodes.append(helper.make_node("Identity", [source], [name], name=f"output_{name}"))
        shape: Sequence[int | None] = [None] if width is None else [None, width]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape))

    def model(self, producer_version: str, doc: str, metadata: dict[str, str]) -> ModelProto:
        """Return the model of all nodes."""
        features = helper.make_tensor_value_info(FEATURES, TensorProto.DOUBLE, [None, self.dim])
        graph = helper.make_graph(self._nodes, "ps2", [features], self._outputs, self._constants)
        model = helper.make_model(
            graph,
            producer_name="ps2",
            producer_version=producer_version,
            doc_string=doc,
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)],
        )
        helper.set_model_props(model, metadata)
        return model
