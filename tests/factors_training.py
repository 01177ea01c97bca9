"""A small planted problem to factorize, the same factorization in one process, and what is known of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ps2.algorithms.factors.chunks import Chunk
from ps2.algorithms.factors.dealing import Assignment, PackedRatings, pack_chunk, partition_keys
from ps2.algorithms.factors.estimator import train
from ps2.algorithms.factors.grid import read_grid
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.program import LOSS, WEIGHT
from ps2.algorithms.factors.ratings import RatingColumns, RatingsSurvey, _checked, surveyor_for
from ps2.algorithms.factors.rows import InitialRows, Scaling, SgdPlan, default_step
from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.factors.sgd import BlockDescent
from ps2.algorithms.factors.survey_rows import merge_parts
from ps2.run.rotation import schedule
from tests.in_process import training_context
from tests.plans import changed

USERS, ITEMS, RANK = 100, 80, 3
COLUMNS = RatingColumns()


def plan_of(**values: Any) -> FactorizationPlan:
    """The plan of a training with these settings."""
    return FactorizationPlan(settings=FactorizationSettings(**values))


PLAN = plan_of(rank=5, maxIter=6, regParam=0.02, solver="sgd", seed=3, checkpointInterval=2, stepSize=0.1, patience=0)
LONG = changed(PLAN, maxIter=40, stepSize=0.2)


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings; ids are numbers.

    Attributes:
        held: which are held out.
    """

    users: Any
    items: Any
    values: Any
    weights: Any
    held: Any

    def table(self, columns: RatingColumns = COLUMNS) -> pa.Table:
        """The columns of those names, by role."""
        result = {
            "user": pa.array(self.users * 7 - 5),
            "item": pa.array([f"item {i:02}" for i in self.items]),
            "rating": pa.array(self.values),
            "weight": pa.array(self.weights),
            "held": pa.array(self.held),
        }
        return pa.table({role: result[role] for role in columns.by_role})


def ratings(seed: int = 0, share: float = 0.5) -> Ratings:
    """Ratings of planted vectors, with noise of .1; some users have many, and one has one."""
    rng = np.random.default_rng(seed)
    p, q = rng.normal(size=(USERS, RANK)), rng.normal(size=(ITEMS, RANK))
    expected = share * 2 * rng.random(USERS)
    there = rng.random((USERS, ITEMS)) < expected[:, None]
    there[7] = False
    there[7, 3] = True
    users, items = np.nonzero(there)
    values = 3.0 + (p @ q.T)[users, items] + 0.1 * rng.normal(size=len(users))
    return Ratings(users, items, values, rng.integers(1, 4, len(users)).astype(float), rng.random(len(users)) < 0.1)


def frame_of(spark: Any, given: Ratings, columns: RatingColumns = COLUMNS, parts: int = 3) -> Any:
    """A DataFrame with so many rdd_partitions."""
    return spark.createDataFrame(given.table(columns).to_pandas()).repartition(parts).cache()


def fitted(
    plan: FactorizationPlan = PLAN,
    columns: RatingColumns = COLUMNS,
    workers: int = 2,
    groups: int = 1,
    start: FittedFactors | None = None,
    on_step: Callable[[Any], None] = lambda step: None,
    given: Ratings | None = None,
    surveyed_ratings: Ratings | None = None,
    ps: Any = None,
) -> FittedFactors:
    """Train on the planted problem within this process.

    Args:
        surveyed_ratings: what the survey reads; None: the ratings that workers get.
        ps: the context; None: a new one.
    """
    given = given or ratings()
    survey = surveyed(surveyed_ratings or given, plan, columns).with_ids_of(start)
    deal = Assignment.from_counts(survey.user_counts, survey.item_counts, workers, groups, 4 * (plan.settings.rank + 4))
    with training_context() if ps is None else nullcontext(ps) as ps:
        return train(ps, _dealt(given.table(columns), survey, deal, plan), survey, plan, start, on_step)


def _dealt(table: pa.Table, survey: RatingsSurvey, deal: Assignment, plan: FactorizationPlan) -> PackedRatings:
    """Deal ratings to workers of this process, from three parts."""
    deal, keys = replace(deal, by_item=plan.solver == "ccd"), partition_keys(deal.layout.rotation.workers)
    parts = [table.slice(begin, len(table) // 3 + 1) for begin in range(0, len(table), len(table) // 3 + 1)]
    rows = [
        pack_chunk(chunk_of(part), survey.users, survey.items, deal, keys, (number, 0))
        for number, part in enumerate(parts)
    ]
    return PackedRatings([[some.filter(pc.equal(some["key"], key)) for some in rows] for key in keys], deal)


def surveyed(given: Ratings, plan: FactorizationPlan, columns: RatingColumns = COLUMNS) -> RatingsSurvey:
    """Survey ratings in this process."""
    surveyor = surveyor_for(columns, plan.settings)
    surveyor.add(given.table(columns))
    return _checked(merge_parts([surveyor.to_row(0)]), columns, plan.settings)


def chunk_of(table: pa.Table) -> Chunk:
    """A table's ratings in compact form."""
    return Chunk.from_columns({name: table.column(name).combine_chunks() for name in table.column_names})


def replayed(
    plan: FactorizationPlan = PLAN,
    columns: RatingColumns = COLUMNS,
    workers: int = 2,
    groups: int = 1,
    start: FittedFactors | None = None,
    given: Ratings | None = None,
) -> tuple[Any, Any, list[float]]:
    """Rotate in one process, turn by turn and rank by rank, with arrays for servers.

    Returns:
        Vectors of users and of items, by id, and the RMSE of each iteration.
    """
    given = given or ratings()
    survey = surveyed(given, plan, columns).with_ids_of(start)
    deal = Assignment.from_counts(survey.user_counts, survey.item_counts, workers, groups, 4 * (plan.settings.rank + 4))
    scaling = Scaling.from_survey(survey, plan)
    step = plan.settings.stepSize or default_step(survey.rows)
    layout, sgd_plan = deal.layout, SgdPlan(settings=plan.settings, scale=scaling.scale, step_size=step)
    users, items = np.empty((layout.users, sgd_plan.width), np.float32), np.empty((layout.items, sgd_plan.width), "f4")
    beginning = InitialRows(sgd_plan, scaling, start)
    users[deal.user_positions] = beginning.rows("user", survey.users, survey.user_penalties, slice(0, layout.users))
    items[deal.item_positions] = beginning.rows("item", survey.items, survey.item_penalties, slice(0, layout.items))
    rows = pack_chunk(chunk_of(given.table(columns)), survey.users, survey.items, deal, partition_keys(workers), (0, 0))
    descents = []
    for rank in range(workers):
        grid = read_grid([rows.slice(rank, 1)], layout, rank, scaling)
        begin, end = layout.user_bounds(rank)[[0, -1]]
        descents.append(BlockDescent(grid, sgd_plan, rank, users[begin:end]))
    losses = []
    for iteration in range(1, plan.settings.maxIter + 1):
        loss = weight = 0.0
        for turn in schedule(plan.seed, iteration - 1, workers, layout.rotation.blocks, layout.rotation.slices):
            for rank, block in enumerate(turn.tolist()):
                bounds = layout.item_bounds(block)
                for piece in descents[rank].shuffled_strata(block, iteration):
                    result = descents[rank].train_stratum(block, piece, iteration, items[bounds[0] : bounds[-1]], None)
                    loss, weight = loss + result[LOSS], weight + result[WEIGHT]
        losses.append(scaling.scale * (loss / weight) ** 0.5)
    of_users, of_items = (
        scaling.restored(users[deal.user_positions], plan),
        scaling.restored(items[deal.item_positions], plan),
    )
    return of_users, of_items, losses


def rmse_of(found: FittedFactors, given: Ratings, chosen: Any) -> float:
    """RMSE of some ratings by the vectors found."""
    table = given.table()
    u = found.users.find(table.column("user").combine_chunks())
    i = found.items.find(table.column("item").combine_chunks())
    chosen = chosen & (u >= 0) & (i >= 0)
    u, i = u[chosen], i[chosen]
    predicted = found.mean + np.einsum("nk,nk->n", found.user_factors[u], found.item_factors[i])
    if found.user_bias is not None and found.item_bias is not None:
        predicted = predicted + found.user_bias[u] + found.item_bias[i]
    return float(np.sqrt(np.mean((predicted - given.values[chosen]) ** 2)))
