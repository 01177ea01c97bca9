"""Builds an ONNX graph, node by node. All values are float64, as in PS2's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ps2.algorithms.trees.tree import LEAF, Tree
from ps2.array_types import Float64s
from ps2.errors import UsageError

# The versions of the operators (of ONNX, and of its machine learning domain), and the matching version of the format.
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
        """Add a node; return its name, which is also that of its result."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def output(self, name: str, source: str, width: int | None) -> None:
        """Add the output ``name``, the value ``source``, of shape (n, width); width None: shape (n,)."""
        self._nodes.append(helper.make_node("Identity", [source], [name], name=f"output_{name}"))
        shape: Sequence[int | None] = [None] if width is None else [None, width]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape))

    def model(self, producer_version: str, doc: str, metadata: dict[str, str]) -> ModelProto:
        """Return the model that consists of all nodes."""
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


# Codes of TreeEnsemble: the mode of a node (feature <= split, or member of a set), and of the aggregation of leaves.
LEQ, MEMBER = 0, 6
SUM, NO_TRANSFORM = 1, 0


@dataclass
class _Ensemble:
    """The attributes of a TreeEnsemble operator, to which trees are added.

    In pairs of lists, the first list is for the true branch of each node, the second for the false branch.

    Attributes:
        roots: the index of each tree's root among the nodes.
        features: the feature of each node; ``modes`` and ``splits`` likewise.
        children: the index of each child, among the leaves or among the nodes (``are_leaves``).
        missing: 1 if a missing value takes the true branch.
        members: the sets of the nodes with the mode MEMBER, each with NaN at its end.
        targets, weights: the output to which each leaf adds, and the value that it adds.
    """

    roots: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    children: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    are_leaves: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    missing: list[int] = field(default_factory=list)
    members: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, tree: Tree, values: Float64s, target: int) -> None:
        """Add a tree. ``values``: for each node of the tree, the value that it adds to the target if it is a leaf."""
        self.roots.append(len(self.features))
        inner = np.flatnonzero(tree.feature != LEAF)
        # ONNX Runtime before 1.30 takes a root for a leaf if the indices of its children are equal.
        if not len(inner):  # the operator needs at least one node
            self._node(0, LEQ, 0.0, False)
            self._link([True, True], [self._leaf(float(values[0]), target) for _ in range(2)])
            return
        offset = len(self.features)
        positions = {int(node): offset + index for index, node in enumerate(inner)}
        for node in inner.tolist():
            children = [int(tree.left[node]), int(tree.right[node])]
            if self._split(tree, node):
                children.reverse()
            are_leaves = [bool(tree.feature[child] == LEAF) for child in children]
            branches = [
                self._leaf(float(values[child]), target) if is_leaf else positions[child]
                for child, is_leaf in zip(children, are_leaves, strict=True)
            ]
            if branches[0] == branches[1]:  # a leaf and a node with equal indices: add the leaf again
                leaf = are_leaves.index(True)
                branches[leaf] = self._leaf(float(values[children[leaf]]), target)
            self._link(are_leaves, branches)

    def _split(self, tree: Tree, node: int) -> bool:
        """Add a node's split; return whether its true branch is the right child."""
        flags, codes = tree.set_of(node), tree.node_codes(node)
        feature, to_left = int(tree.feature[node]), bool(tree.default_left[node])
        if not len(flags):
            self._node(feature, LEQ, float(tree.threshold[node]), to_left)
            return False
        # Unknown categories and missing values take the default branch, which is the false branch.
        members = codes[flags != to_left]
        if len(members):
            self._node(feature, MEMBER, 0.0, False)
            self.members += [*members.astype(float).tolist(), np.nan]
        else:
            self._node(feature, LEQ, -np.inf, False)
        return to_left

    def _node(self, feature: int, mode: int, split: float, missing: bool) -> None:
        self.features.append(feature)
        self.modes.append(mode)
        self.splits.append(split)
        self.missing.append(int(missing))

    def _link(self, are_leaves: Sequence[bool], branches: Sequence[int]) -> None:
        for branch in range(2):
            self.are_leaves[branch].append(int(are_leaves[branch]))
            self.children[branch].append(branches[branch])

    def _leaf(self, value: float, target: int) -> int:
        self.targets.append(target)
        self.weights.append(value)
        return len(self.weights) - 1


def add_trees(graph: Graph, trees: Sequence[Tree], values: Sequence[Sequence[Float64s]], targets: int) -> str:
    """Add trees; return the name of the sums of leaf values, shape (n, targets).

    Args:
        values: for each tree and each of its targets, the values of the nodes, shape (nodes,). Tree i with one target
            adds to target i mod ``targets``.
        targets: the number of targets.
    """
    features, ensemble = _with_integer_categories(graph, trees), _Ensemble()
    for number, (tree, target_values) in enumerate(zip(trees, values, strict=True)):
        for target, node_values in enumerate(target_values):
            ensemble.add(tree, node_values, target if len(target_values) == targets else number % targets)
    attributes = {}
    if ensemble.members:
        attributes["membership_values"] = numpy_helper.from_array(np.array(ensemble.members), "membership_values")
    return graph.node(
        "TreeEnsemble",
        features,
        domain=ML,
        n_targets=targets,
        aggregate_function=SUM,
        post_transform=NO_TRANSFORM,
        tree_roots=ensemble.roots,
        nodes_featureids=ensemble.features,
        nodes_modes=numpy_helper.from_array(np.array(ensemble.modes, np.uint8), "nodes_modes"),
        nodes_splits=numpy_helper.from_array(np.array(ensemble.splits), "nodes_splits"),
        nodes_truenodeids=ensemble.children[0],
        nodes_trueleafs=ensemble.are_leaves[0],
        nodes_falsenodeids=ensemble.children[1],
        nodes_falseleafs=ensemble.are_leaves[1],
        nodes_missing_value_tracks_true=ensemble.missing,
        leaf_targetids=ensemble.targets,
        leaf_weights=numpy_helper.from_array(np.array(ensemble.weights), "leaf_weights"),
        **attributes,
    )


def _with_integer_categories(graph: Graph, trees: Sequence[Tree]) -> str:
    """Return the features with NaN for categories that are no integers, which ONNX Runtime would round down."""
    is_set, is_cut = (np.zeros(graph.dim, np.bool_) for _ in range(2))
    for tree in trees:
        has_set = np.diff(tree.set_begin) > 0
        is_set[tree.feature[has_set]] = True
        is_cut[tree.feature[~has_set & (tree.feature != LEAF)]] = True
    if (is_set & is_cut).any():
        raise UsageError(
            f"export: feature {np.argmax(is_set & is_cut)} is split by thresholds and by sets of categories"
        )
    if not is_set.any():
        return FEATURES
    is_integer = graph.node("Equal", FEATURES, graph.node("Floor", FEATURES))
    is_usable = graph.node("Or", is_integer, graph.constant(~is_set[None], np.bool_))
    return graph.node("Where", is_usable, FEATURES, graph.constant([np.nan]))
