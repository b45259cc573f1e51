"""What every step of a robust fit reads: the checked table, its folds, and how much to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.inputs import ScaledRows, scaled_rows
from gorelm.estimators._robust.cells import masked_quantile
from gorelm.estimators._robust.layers import Part, sketch_of
from gorelm.selection import Fold, track

LEARNING_ROWS = 50_000  # of more rows, errors of a sample tell how large they usually are
CENTRE_ROWS = 20_000  # of more rows, a sample may be centres of hidden nodes
FEW_ROWS, MOST_FEW = 400, 3.0  # fewer rows: more nodes in the search, at most so many times
WIDE_FEW = 7.5  # times these nodes, of layers that only tables with more inputs than rows have
WIDE_ROWS = 5000  # most rows of a regression on more nodes than rows: of more, it takes longer
WIDE_COLUMNS = 160  # inputs times targets, from which on there is one
LEAST_WIDE, MOST_WIDE = 1.25, 2.0  # nodes for each of them

LARGE, CUT = 0.9, 3.0  # quantile of the errors; what larger ones are cut off at, in these

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    search_rows: int  # up to which all rows are searched; of more, a sample
    few_nodes: int  # of the layers in the search; of tables with few rows more
    rounds: int  # of draws guided by what the nodes of earlier ones explained
    # Of more rows than are searched, this many layers are compared on more rows with more nodes.
    n_middle: int
    middle_rows: int
    middle_nodes: int
    n_members: int
    nodes: int  # of the members, for 2000 rows; twice as many for `search_rows`, more for fewer
    most_nodes: int
    wide_work: float  # products in HH' of more nodes than rows, for 10 inputs and 4 targets

    def few_nodes_for(self, n_rows: int) -> int:
        """Return the nodes of a layer in the search: of few rows more, as they take little time."""
        return int(self.few_nodes * min(max(FEW_ROWS / max(n_rows, 1), 1.0), MOST_FEW))

    def nodes_for(self, n_rows: int, n_inputs: int, n_targets: int) -> int:
        """Return the nodes of a member: they grow with the rows, and of many with the columns.

        The time of a fit grows with the square of the nodes, that of boosted trees with inputs
        times targets: the square root keeps pace. With fewer rows than nodes it grows with the
        nodes alone: then there may be more of them.
        """
        if n_rows <= self.search_rows:
            return int(min(2 * self.nodes * self.search_rows / max(n_rows, 1), self.most_nodes))
        wider = self.columns_factor(n_inputs, n_targets)
        return int(min(self.nodes * max(n_rows / 2000, 1.0) ** 0.2 * wider, self.most_nodes))

    def wide_nodes(self, n_rows: int, n_inputs: int, n_targets: int) -> int:
        """Return the nodes of one regression on more nodes than rows; 0: it would take too long."""
        if n_inputs * n_targets < WIDE_COLUMNS:
            return 0
        work = self.wide_work * self.columns_factor(n_inputs, n_targets) ** 3
        nodes = int(min(MOST_WIDE * n_rows, work / n_rows**2))
        return nodes if nodes > LEAST_WIDE * n_rows else 0

    def layers_together(self, n_hidden: int | None) -> int:
        """Return the most layers of one regression; if each has `n_hidden` nodes, `n_members`."""
        return self.n_members if n_hidden is not None else 3 * self.n_members // 2

    @staticmethod
    def columns_factor(n_inputs: int, n_targets: int) -> float:
        """Return how many times the nodes of a table of 10 inputs and 4 targets one needs."""
        return float(np.sqrt(max(n_inputs * n_targets / 40, 1.0)))


EFFORTS = {
    "fast": Effort(500, 150, 2, 4, 1000, 300, 2, 300, 1000, 1e9),
    "default": Effort(1000, 200, 3, 8, 2500, 600, 4, 1000, 3000, 8e9),
    "high": Effort(2000, 350, 6, 12, 6000, 1500, 6, 2000, 6000, 64e9),
}


@dataclass(frozen=True)
class RobustTask:
    """What every step reads: the checked table, its folds, and the estimator's parameters."""

    X: Array | ScaledRows  # scaled
    T: Array  # as given; NaN: unknown
    w: Array
    usable: Mask  # rows with a weight and a known target
    folds: Sequence[Fold] | None  # None: leave one out
    seed: int
    effort: Effort
    n_hidden: int | None
    n_threads: int
    progress: bool
    trusted: Mask | None = None  # rows that someone has found right
    kinds: Sequence[str] = ()  # of the transforms of T; empty: as given

    @cached_property
    def transformed(self) -> Mask:
        """Which targets are not on the scale on which they were given."""
        return np.array([kind != "none" for kind in self.kinds] or [False] * self.T.shape[1])

    @cached_property
    def doubted(self) -> Mask:
        """Which rows may be set aside, or be moved towards their predictions."""
        every = np.ones(len(self.T), dtype=bool)
        return every if self.trusted is None else ~self.trusted

    @cached_property
    def tested(self) -> Mask:
        """Which rows get predictions by fits without them."""
        if self.folds is None:
            return np.ones(len(self.T), dtype=bool)
        return np.isin(np.arange(len(self.T)), np.concatenate([f.test for f in self.folds]))

    @cached_property
    def rows(self) -> ScaledRows:
        """The scaled inputs, wherever they are."""
        return scaled_rows(self.X)

    @cached_property
    def centres(self) -> tuple[Array, Array]:
        """Inputs and weights of rows that hidden nodes may take as centres."""
        rows = self.sample(CENTRE_ROWS)
        return self.rows.take(rows), self.w[rows]

    @cached_property
    def robust_scaling(self) -> Scaling:
        """Medians and robust spreads of the targets."""
        return Scaling.fit("robust", self.T[self.usable], self.w[self.usable])

    @property
    def middle_rows(self) -> int:
        """Rows on which good layers are compared with more nodes, of more than are searched.

        What three inputs do together shows only with many rows.
        """
        few = self.effort.middle_rows
        return min(max(few, int(self.usable.sum()) // 20), 4 * few)

    @cached_property
    def learning(self) -> Mask:
        """Rows from which is learnt how large errors usually are: of many rows, a sample."""
        if len(self.T) <= LEARNING_ROWS:
            return np.ones(len(self.T), dtype=bool)
        return np.isin(np.arange(len(self.T)), self.sample(LEARNING_ROWS))

    @property
    def few_nodes(self) -> int:
        """The nodes of a layer in the search."""
        few = self.effort.few_nodes_for(int(self.usable.sum()))
        return min(few, self.n_hidden or few)

    @property
    def wide_few_nodes(self) -> int:
        """The same, of a layer without a linear model beside it, of more inputs than rows.

        Nodes that see few inputs see few of the sets of inputs: the more nodes, the more sets.
        """
        few = int(self.effort.few_nodes * WIDE_FEW)
        return min(few, self.n_hidden or few)

    @property
    def more_inputs_than_rows(self) -> bool:
        """Whether a linear model alone can fit every target."""
        return bool(self.rows.shape[1] > self.usable.sum())

    def nodes_for(self, n_rows: int) -> int:
        """Return the nodes of a member fitted to so many rows."""
        if self.many:
            n_rows = max(n_rows, self.effort.search_rows + 1)
        return self.n_hidden or self.effort.nodes_for(n_rows, self.rows.shape[1], self.T.shape[1])

    def wide_nodes(self, n_rows: int) -> int:
        """Return the nodes of one regression on more nodes than rows, leaving rows out; 0: none."""
        too_many = self.usable.sum() > WIDE_ROWS
        if too_many or not self.many or self.n_hidden is not None or self.folds is not None:
            return 0
        return self.effort.wide_nodes(n_rows, self.rows.shape[1], self.T.shape[1])

    @property
    def most_layers(self) -> int:
        """The most layers whose nodes are fitted together."""
        return self.effort.layers_together(self.n_hidden)

    @property
    def many(self) -> bool:
        """Whether only a sample of the rows is searched."""
        return bool(self.usable.sum() > self.effort.search_rows)

    def sample(self, size: int) -> Indices:
        """Return up to `size` usable rows, in order; fewer rows than that: all, usable or not."""
        usable = np.flatnonzero(self.usable)
        if len(usable) <= size:
            return np.arange(len(self.T))
        rng = np.random.default_rng(self.seed)
        chosen = rng.choice(usable, size, replace=False)
        # A value of every target, however rare.
        known = ~np.isnan(self.T) & self.usable[:, None]
        rare = [int(np.argmax(known[:, j])) for j in np.flatnonzero(~known[chosen].any(axis=0))]
        return np.unique(np.concatenate([chosen, np.array(rare, dtype=np.intp)]))

    def folds_of_sample(self, rows: Indices) -> Sequence[Fold] | None:
        """Return the folds of some rows, numbered among them."""
        if self.folds is None or len(rows) == len(self.T):
            return self.folds
        place = np.full(len(self.T), -1)
        place[rows] = np.arange(len(rows))
        thinned = [
            Fold(*(place[part][place[part] >= 0] for part in (fold.train, fold.test)))
            for fold in self.folds
        ]
        return [fold for fold in thinned if len(fold.train) and len(fold.test)] or None

    def part(self, T: Array, expected: Array, kept: Mask, rows: Indices) -> tuple[Part, Scaling]:
        """Return rows to compare layers on, and the scaling of their targets.

        Parameters
        ----------
        T : array (N, m)
            Targets to fit.
        expected : array (N, m)
            Predictions, which stand for unknown targets.
        kept : array of bool (N,)
            Rows to fit.
        rows : array of int
            Rows of the part.
        """
        unknown = np.isnan(T)
        filled = np.where(unknown, expected, T) if unknown.any() else T
        scaling = Scaling.fit("standard", filled[kept], self.w[kept])
        every: Indices | slice = slice(None) if len(rows) == len(self.T) else rows
        known = scaling.dense(T[every])
        filled = known if filled is T else scaling.dense(filled[every])
        folds = self.folds_of_sample(rows)
        if folds is not None and not kept[rows][np.concatenate([f.test for f in folds])].any():
            folds = None  # nothing to compare by
        part = Part(
            self.rows if len(rows) == len(self.T) else self.rows.take(rows),
            known,
            filled,
            self.w[rows],
            kept[rows],
            folds,
            sketch_of(T.shape[1], self.seed),
            self._cut(T, expected, kept, scaling.scale),
            self.many,
        )
        return part, scaling

    def _cut(self, T: Array, expected: Array, kept: Mask, scale: Array) -> Array:
        """Return the size from which on errors of a target count alike when layers are compared.

        Else a row with an input far from all others would choose: of many layers, one predicts its
        target by chance. No error below the deviation of the target is cut off. In units of that.
        """
        (sample,) = np.nonzero(kept & self.learning)
        errors, w = np.abs(T[sample] - expected[sample]) / scale, self.w[sample]
        cut = np.ones(T.shape[1])
        for j, column in enumerate(errors.T):
            by = ~np.isnan(column)
            if by.any():
                cut[j] = max(CUT * masked_quantile(column[by], w[by], LARGE), 1.0)
        return cut

    def each(
        self, work: Callable[[Item], Result], items: Sequence[Item], what: str
    ) -> list[Result]:
        """Return ``work(item)`` of every item, computed by threads, with a progress bar."""
        results = ordered_map(work, items, self.n_threads)
        return list(track(results, len(items), what, show=self.progress))
