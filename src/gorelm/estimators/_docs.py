"""Parameters and attributes that several estimators share, described once."""

from __future__ import annotations

from textwrap import indent
from typing import TypeVar

T = TypeVar("T", bound=type)

SIZE = """\
n_hidden : int, default=1000
    Number of hidden nodes L (0 only with `direct_link`)."""

LAYER = """\
activation : str, default="sigmoid"
    Hidden function: "sigmoid", "tanh", "relu", "leaky_relu", "softplus", "sine", "cosine" (random
    Fourier features), "hardlim", or radial nodes centred on training rows, "gaussian",
    "multiquadric" and "laplace".
weights : {"uniform", "normal"}, default="uniform"
    Distribution of the hidden weights and biases: uniform on [-1, 1] as in the paper, or standard
    normal.
weight_scale : float, default=1.0
    Factor on the hidden weights and biases; larger means more strongly curved nodes.
n_inputs : int, default=None
    Number of inputs that each node sees, chosen at random for each; None, or a number above that
    of the inputs: all.
direct_link : bool, default=False
    Give the (scaled) inputs to the output layer too.
input_scaling : {"minmax", "standard", None}, default="minmax"
    Scaling of X before the hidden layer: onto [-1, 1], to mean 0 and deviation 1, or none.
target_scaling : {"robust", "minmax", None}, default="robust"
    Scaling of y during the fit: by median and interquartile range (or, where that range is 0, by
    the spread of more of the values), onto [-1, 1], or none. Predictions are in the units of y.
missing_targets : {"error", "ignore"}, default="error"
    What NaN in y means: a mistake, or a cell to leave out of the loss."""

HIDDEN = SIZE + "\n" + LAYER

GROWING = """\
n_initial : int, default=100
    Number of hidden nodes to begin with.
n_step : int, default=100
    Number of nodes to add at a time.
max_hidden : int, default=1000
    Number of nodes at which to stop (pruned ones included).
target_error : float, default=None
    Stop when the error is at most this: the mean norm of the rows' errors, as a share of what it is
    for predicting every target's median. It is measured on the `validation` rows if there are any.
patience : int, default=None
    Stop when this many sizes in a row have not improved that error...
min_improvement : float, default=1e-3
    ...by at least this share.
max_pruned : float, default=None
    Stop when at least this share of the nodes has no weight left: more are not needed.
validation : float, int, splitter or iterable of splits, default=None
    A share of the rows to hold out, or a number of folds (drawn with `random_state`), or
    scikit-learn's other ways to say it. Models of the remaining rows then grow to find the size of
    smallest error on the rows they do not see, and the model of all rows is fitted at that size.
    None: errors are those of the training rows.
prune_on_grow : bool, default=False
    Drop the nodes that the penalty has emptied before others are added.
guided : bool, default=False
    Let three of four new nodes see inputs that nodes of the model so far see together, chosen in
    proportion to the variance that those explain (in units of the scaled targets, summed over
    them). Needs `n_inputs`.
warm_start : bool, default=False
    Let another call of `fit` start from the fitted network: with the same rows from its last
    solution, with other rows from its nodes and scalings."""

GROWN = """\
growth_ : list of dict
    One record for every size: n_drawn, n_hidden and n_active (nodes drawn, left after pruning, and
    of nonzero weight), error, validation_error, objective, dual_gap, n_iter and seconds; ready for
    ``pandas.DataFrame`` and :class:`gorelm.diagnostics.GrowthDisplay`. With `validation` they are
    means over its models (of n_iter the sum, of dual_gap the largest).
stopped_by_ : {"max_hidden", "target_error", "patience", "max_pruned", "callback"}
    Why the fit stopped growing."""

SOLVER = """\
solver : {"adaptive", "paper"}, default="adaptive"
    "adaptive" stops at a proven distance from the optimum. "paper" repeats the published
    iteration (penalty 1, no relaxation, its stopping rule), for reproduction.
tol : float, default=1e-3
    Relative duality gap at which the adaptive solver stops: the objective is then at most that
    share above the optimum.
max_iter : int, default=None
    Most iterations; None: the solver's own limit.
callback : callable, default=None
    Called with a dict (iteration, objective, dual_gap, primal_residual, dual_residual, rho, sigma)
    at each checked iteration; a true return value ends the fit there."""

LARGE = """\
memory_budget : float or str, default=None
    Memory for a fit, in bytes or as in "4GB"; None: half of the machine's. Hidden outputs H that
    would exceed it are computed in blocks of rows (in float32), again in every iteration except
    for the blocks that fit into it. X may then be a memory map, or
    :class:`gorelm.stream.RowBlocks` (a Parquet file, or blocks from anywhere). For dask
    collections, which are fitted by the workers of a cluster, it is the memory of each worker
    (None: half of its limit), and H keeps the precision of X.
device : str, default=None
    Where to fit, as PyTorch names it: "cuda", "cuda:1", "cpu" (needs ``gorelm[torch]``). None: on
    the host with NumPy, or on the device of X if that is a tensor."""

SEED = """\
random_state : int, RandomState instance or None, default=None
    Seed of the hidden layer; pass an int for reproducible results."""

WEIGHTS = """\
hidden_ : HiddenLayer
    The drawn layer; it takes scaled inputs (`hidden_outputs` scales them first).
coef_ : ndarray of shape (n_outputs, n_targets)
    Output weights, in units of the scaled targets.
intercept_ : ndarray of shape (n_targets,)
    Intercepts, in the same units (0 unless the method has one).
n_iter_ : int
    Iterations done (1 for closed forms).
converged_ : bool
    Whether the fit met its rule: a gap of `tol` at most, or the paper's own rule with
    ``solver="paper"`` (OR-ELM's has a fixed number of steps: then whether the gap is met).
dual_gap_ : float
    Proven relative distance of the objective from its optimum; in the objective it is relative to,
    no row counts for more than ten typical ones. Closed forms have 0, to rounding.
history_ : list of dict
    One record for each checked iteration, with the keys a callback sees.
n_active_ : int
    Hidden outputs with a nonzero weight; `prune` removes the others."""

SCORES = """\
outlier_scores_ : ndarray of shape (n_samples,)
    Norm of each training row's residual, in units of the scaled targets; of a row with unknown
    targets, what it would be if they were off as much as the known ones.
outlier_threshold_ : float
    Tukey's fence for the scores, see :func:`gorelm.diagnostics.outlier_threshold`.
outlier_mask_ : ndarray of bool, shape (n_samples,)
    Training rows whose score is above the fence."""

INPUTS = """\
n_features_in_ : int
    Number of inputs.
feature_names_in_ : ndarray of str
    Names of the inputs, when X was a frame with string column names."""

FITTED = "\n".join([WEIGHTS, SCORES, INPUTS])

SEARCH = """\
n_lams : int, default=41
    Number of penalties in the default grid.
eps : float, default=1e-6
    Smallest penalty of the default grid as a share of its largest.
cv : int, splitter or iterable of splits, default=5
    Number of folds (shuffled, from `random_state`), or scikit-learn's other ways to say it.
search_rows : int, default=20000
    Penalties and layers are compared on a random sample of so many rows when there are more (None:
    on all), whose weights make it stand for all rows. The chosen ones are then fitted to all rows,
    and to those of each fold, for `cv_outlier_scores_`.
scoring : str or callable, default="mean_norm"
    "mean_norm", "median_norm" or "trimmed_norm" of the validation rows' errors, in units of the
    scaled targets (see `gorelm.selection`); or any scikit-learn scorer.
one_standard_error : bool, default=False
    Take the largest penalty whose mean score is within one standard error of the best.
tol, max_iter
    Relative duality gap at which every fit stops, and its most iterations.
memory_budget : float or str, default=None
    Memory for the fits to all rows, in bytes or as in "4GB"; see :class:`~gorelm.GORELMRegressor`.
    Hidden outputs that are made in blocks have the precision of X.
device : str, default=None
    Where to fit all rows, as PyTorch names it ("cuda"); None: on the host, or on the device of X
    if that is a tensor. The rows that are searched come to the host.
n_jobs : int, default=None
    Processes to share the folds and layers among, -1 for all cores. Where H has at most a million
    entries (rows times hidden outputs), the result is the same to the last digit for every number;
    beyond, to rounding, as BLAS rounds differently with another number of threads.
progress : bool, default=False
    Show a progress bar (needs ``gorelm[progress]``)."""

SEARCHED = """\
cv_results_ : dict of arrays
    Parameters and scores of every candidate (larger is better) on the rows that were searched, and
    the mean number of its nodes with a nonzero weight, ready for ``pandas.DataFrame`` and
    :class:`gorelm.diagnostics.PathDisplay`.
best_index_, best_score_
    Which row of it was chosen, and its mean score.
cv_outlier_scores_ : ndarray of shape (n_samples,)
    Norm of each row's error under models that did not see it (NaN where `cv` never tests a row).
cv_outlier_threshold_ : float
    Tukey's fence for these scores.
cv_outlier_mask_ : ndarray of bool, shape (n_samples,)
    Rows whose out-of-fold score is above it."""

_PARTS = {
    "hidden": HIDDEN,
    "layer": LAYER,
    "growing": GROWING,
    "grown": GROWN,
    "solver": SOLVER,
    "large": LARGE,
    "seed": SEED,
    "fitted": FITTED,
    "weights_fitted": WEIGHTS + "\n" + INPUTS,
    "search": SEARCH,
    "searched": SEARCHED,
}


def document(cls: T) -> T:
    """Fill the shared parts, ``{hidden}`` and so on, in a class's docstring."""
    doc = cls.__doc__ or ""  # absent under python -OO
    for name, text in _PARTS.items():
        doc = doc.replace("    {" + name + "}", indent(text, "    "))
    cls.__doc__ = doc
    return cls
