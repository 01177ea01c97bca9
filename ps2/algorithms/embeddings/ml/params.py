"""Params of random walks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasSeed, HasWeightCol

from ps2.algorithms.embeddings.ml.edges import EdgeColumns
from ps2.algorithms.embeddings.walks import WalkSettings
from ps2.algorithms.estimators.params import (
    COUNT,
    POSITIVE,
    RANGES,
    ByName,
    Check,
    SaysParams,
    any_case,
    getter,
    one_of,
    own_param,
    setter,
)

PLACES = ("auto", "workers", "servers")


class GraphParams(SaysParams, ByName, HasSeed, HasWeightCol):
    """Columns of a graph's edges."""

    srcCol: Param[str] = own_param(
        "srcCol", "column with the source of each edge: integers or strings", TypeConverters.toString
    )
    dstCol: Param[str] = own_param(
        "dstCol", "column with the target of each edge, of the same type as srcCol", TypeConverters.toString
    )
    directed: Param[bool] = own_param(
        "directed",
        "whether edges lead from srcCol to dstCol only (true), or both ways (false)",
        TypeConverters.toBoolean,
    )
    numWorkers: Param[int] = own_param(
        "numWorkers",
        "number of tasks that compute walks; not set: one per task slot. The walks do not depend on it",
        TypeConverters.toInt,
    )
    numServers: Param[int] = own_param(
        "numServers", "servers of the fleet that is started if no PS2Context is active", TypeConverters.toInt
    )

    getSrcCol, setSrcCol = getter(srcCol), setter(srcCol)
    getDstCol, setDstCol = getter(dstCol), setter(dstCol)
    getDirected, setDirected = getter(directed), setter(directed)
    setWeightCol = setter(HasWeightCol.weightCol)
    setSeed = setter(HasSeed.seed)
    setNumWorkers = setter(numWorkers)
    setNumServers = setter(numServers)

    def _set_defaults(self) -> None:
        self._setDefault(srcCol="src", dstCol="dst", directed=False, seed=0)

    @property
    def _edges(self) -> EdgeColumns:
        weight = self.getWeightCol() or None if self.isSet(self.weightCol) else None
        return EdgeColumns(self.getSrcCol(), self.getDstCol(), weight)


class WalkParams(GraphParams):
    """Which walks to make, and where the graph is placed."""

    graphOn: Param[str] = own_param(
        "graphOn",
        "where the graph lies: 'workers' (each has all of it), 'servers' (each has a part; workers ask "
        "them at each step), or 'auto' (workers up to 256 MiB); the walks do not depend on it",
        any_case(PLACES),
    )
    numWalks: Param[int] = own_param("numWalks", "number of walks from each vertex", TypeConverters.toInt)
    walkLength: Param[int] = own_param("walkLength", "maximum number of vertices of a walk", TypeConverters.toInt)
    _RANGES: Mapping[str, Check] = {
        **RANGES,
        "graphOn": one_of(PLACES),
        "numWalks": COUNT,
        "walkLength": COUNT,
    }

    getGraphOn, setGraphOn = getter(graphOn), setter(graphOn)
    getNumWalks, setNumWalks = getter(numWalks), setter(numWalks)
    getWalkLength, setWalkLength = getter(walkLength), setter(walkLength)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(graphOn="auto", numWalks=10, walkLength=80)

    def _settings(self) -> WalkSettings:
        return WalkSettings(self.getNumWalks(), self.getWalkLength(), self.getSeed())


class BiasedWalkParams(WalkParams):
    """Which walks to make, with node2vec's bias."""

    p: Param[float] = own_param(
        "p",
        "node2vec's return parameter: the larger, the less often a walk returns to its previous vertex at once",
        TypeConverters.toFloat,
    )
    q: Param[float] = own_param(
        "q",
        "node2vec's in-out parameter: the larger, the closer a walk stays to its previous vertex",
        TypeConverters.toFloat,
    )

    _RANGES: Mapping[str, Check] = {**WalkParams._RANGES, "p": POSITIVE, "q": POSITIVE}

    getP, setP = getter(p), setter(p)
    getQ, setQ = getter(q), setter(q)

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(p=1.0, q=1.0)

    def _settings(self) -> WalkSettings:
        return replace(super()._settings(), p=self.getP(), q=self.getQ())
