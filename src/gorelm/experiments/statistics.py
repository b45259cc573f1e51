r"""Comparison of several methods over several data sets.

Every function takes errors as a matrix of shape (n_datasets, n_methods), smaller is better, without
gaps: leave out a data set on which some method has no figure.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gorelm._extras import needs

__all__ = [
    "Outcome",
    "cliques",
    "friedman",
    "holm",
    "mean_ranks",
    "nemenyi",
    "nemenyi_distance",
    "wilcoxon",
]

_EXACT_LIMIT = 200


class Outcome(NamedTuple):
    """Statistic and p-value of a test."""

    statistic: float
    p_value: float


def mean_ranks(errors: ArrayLike) -> NDArray[np.float64]:
    r"""Mean rank of each method, 1 for the smallest error.

    With :math:`r_{ij}` the rank of method :math:`j` on data set :math:`i`, equal errors sharing the
    mean of their ranks,

    .. math:: R_j = \frac1N \sum_{i=1}^N r_{ij}

    Parameters
    ----------
    errors : array-like of shape (n_datasets, n_methods)
        Finite errors, smaller is better.

    Returns
    -------
    ndarray of shape (n_methods,)
        They sum to k (k + 1) / 2.

    Examples
    --------
    >>> from gorelm.experiments.statistics import mean_ranks
    >>> mean_ranks([[0.1, 0.2, 0.3], [0.5, 0.4, 0.5]])
    array([1.75, 1.5 , 2.75])
    """
    ranks: NDArray[np.float64] = stats.rankdata(_check(errors), axis=1).mean(axis=0)
    return ranks


def friedman(errors: ArrayLike) -> Outcome:
    r"""Friedman's test of the hypothesis that all methods are equal.

    .. math::

        \chi^2_F = \frac{12 N}{k (k + 1)}
                   \left[\sum_j R_j^2 - \frac{k (k + 1)^2}{4}\right] / c,
        \qquad
        c = 1 - \frac{\sum_g (t_g^3 - t_g)}{N k (k^2 - 1)}

    with the :func:`mean_ranks` :math:`R_j`, over groups :math:`g` of :math:`t_g` equal errors
    within a data set; compared with the chi-squared distribution of :math:`k - 1` degrees of
    freedom. Texts often leave the correction :math:`c` out; without ties it is 1.

    Parameters
    ----------
    errors : array-like of shape (n_datasets, n_methods)
        Finite errors of at least 3 methods on at least 2 data sets.

    Returns
    -------
    Outcome
        ``statistic`` and ``p_value``; (0, 1) if all methods are equal on every data set.

    Examples
    --------
    >>> from gorelm.experiments.statistics import friedman
    >>> statistic, p_value = friedman([[1, 2, 3], [1, 3, 2], [1, 2, 3], [1, 2, 3]])
    >>> round(statistic, 2), round(p_value, 3)
    (6.5, 0.039)
    """
    matrix = _check(errors, least_methods=3, least_datasets=2)
    if (matrix == matrix[:, :1]).all():
        return Outcome(0.0, 1.0)
    result = stats.friedmanchisquare(*matrix.T)
    return Outcome(float(result.statistic), float(result.pvalue))


def nemenyi_distance(n_methods: int, n_datasets: int, alpha: float = 0.05) -> float:
    r"""Least difference of mean ranks that Nemenyi's test calls significant.

    .. math:: \mathrm{CD} = \frac{q_\alpha(k)}{\sqrt 2} \sqrt{\frac{k (k + 1)}{6 N}}

    with :math:`q_\alpha(k)` the upper quantile of the studentized range of :math:`k` means with
    infinitely many degrees of freedom.

    Parameters
    ----------
    n_methods, n_datasets : int
        At least 2 and 1.
    alpha : float, default=0.05
        Family-wise probability of an error of the first kind, in (0, 1).

    Returns
    -------
    float

    Examples
    --------
    >>> from gorelm.experiments.statistics import nemenyi_distance
    >>> round(nemenyi_distance(4, 14), 2)
    1.25
    """
    if n_methods < 2 or n_datasets < 1:
        raise ValueError(
            f"needs at least 2 methods and 1 data set, got {n_methods} and {n_datasets}."
        )
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}.")
    quantile = float(stats.studentized_range.isf(alpha, n_methods, np.inf))
    return quantile * math.sqrt(n_methods * (n_methods + 1) / (12 * n_datasets))


def nemenyi(errors: ArrayLike) -> NDArray[np.float64]:
    r"""P-values of Nemenyi's test of every pair of methods.

    The difference of two mean ranks, divided by :math:`\sqrt{k (k + 1) / (12 N)}`, is compared
    with the studentized range of :math:`k` means: the p-value is below :math:`\alpha` where the
    difference exceeds :func:`nemenyi_distance`. It already accounts for the number of pairs.

    Parameters
    ----------
    errors : array-like of shape (n_datasets, n_methods)
        Finite errors of at least 2 methods.

    Returns
    -------
    ndarray of shape (n_methods, n_methods)
        Symmetric, with ones on the diagonal.

    Raises
    ------
    ImportError
        If scikit-posthocs, of the extra ``experiments``, is not installed.

    Examples
    --------
    >>> from gorelm.experiments.statistics import nemenyi
    >>> nemenyi([[1, 2, 3], [1, 3, 2], [1, 2, 3], [1, 2, 3]]).round(2)
    array([[1.  , 0.18, 0.04],
           [0.18, 1.  , 0.76],
           [0.04, 0.76, 1.  ]])
    """
    matrix = _check(errors, least_methods=2)
    with needs("Nemenyi's test needs scikit-posthocs", "experiments"):
        import scikit_posthocs
    return np.asarray(scikit_posthocs.posthoc_nemenyi_friedman(matrix), dtype=float)


def wilcoxon(
    a: ArrayLike,
    b: ArrayLike,
    alternative: Literal["two-sided", "less", "greater"] = "two-sided",
) -> Outcome:
    r"""Wilcoxon's signed-rank test of two methods over data sets.

    The differences :math:`d_i = a_i - b_i` other than 0 are ranked by size; the statistic is
    :math:`W^+ = \sum_{d_i > 0} \mathrm{rank}|d_i|`, for the two-sided test the smaller of
    :math:`W^+` and :math:`W^-`.

    Parameters
    ----------
    a, b : array-like of shape (n_datasets,)
        Finite errors of the two methods.
    alternative : {"two-sided", "less", "greater"}
        ``"less"`` asks whether `a` has the smaller errors.

    Returns
    -------
    Outcome
        ``statistic`` and ``p_value``; (0, 1) if no difference is other than 0.

    Notes
    -----
    Up to 200 differences the p-value is exact, ties included: all :math:`2^n` choices of signs of
    the ranks at hand are counted. (Tables for ranks without ties do not hold then, and the normal
    approximation can be off by a factor of 2 at 15 data sets.) Beyond that it is approximated.

    Differences that are equal but for rounding, such as 0.3 - 0.2 and 0.2 - 0.1, count as tied:
    they are compared to 12 digits of the largest error.

    Examples
    --------
    >>> from gorelm.experiments.statistics import wilcoxon
    >>> wilcoxon([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], "less")
    Outcome(statistic=0.0, p_value=0.03125)
    """
    pair = _check(np.column_stack([np.ravel(a), np.ravel(b)]))
    size = np.abs(pair).max()
    if size == 0:
        return Outcome(0.0, 1.0)
    differences = np.round((pair[:, 0] - pair[:, 1]) / size, 12)
    if alternative not in ("two-sided", "less", "greater"):
        raise ValueError(f"unknown alternative {alternative!r}.")
    if not differences.any():
        return Outcome(0.0, 1.0)
    differences = differences[differences != 0]
    if len(differences) > _EXACT_LIMIT:
        result = stats.wilcoxon(differences, alternative=alternative, method="asymptotic")
        return Outcome(float(result.statistic), float(result.pvalue))

    # twice the ranks are integers, also those shared by ties
    doubled = np.rint(2 * stats.rankdata(np.abs(differences))).astype(int)
    plus = int(doubled[differences > 0].sum())
    chances = _sign_distribution(doubled)
    below, above = chances[: plus + 1].sum(), chances[plus:].sum()
    p_value = {"less": below, "greater": above, "two-sided": 2 * min(below, above)}[alternative]
    least = min(plus, int(doubled.sum()) - plus)
    statistic = least if alternative == "two-sided" else plus
    return Outcome(statistic / 2, min(1.0, float(p_value)))


def _sign_distribution(doubled: NDArray[np.int64]) -> NDArray[np.float64]:
    """Chances of every sum of a random half of the ranks: each is in it or not, like a coin."""
    chances = np.zeros(doubled.sum() + 1)
    chances[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[:-rank]
        chances = (chances + shifted) / 2
    return chances


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    r"""P-values adjusted for their number by Holm's step-down method.

    With :math:`p_{(1)} \le \ldots \le p_{(m)}`,

    .. math:: \tilde p_{(i)} = \min\bigl(1, \max_{j \le i} (m - j + 1) p_{(j)}\bigr)

    Rejecting where :math:`\tilde p \le \alpha` keeps the probability of any false rejection
    below :math:`\alpha`, whatever the dependence of the tests.

    Parameters
    ----------
    p_values : array-like of shape (n_tests,)
        In [0, 1].

    Returns
    -------
    ndarray of shape (n_tests,)
        In the order given.

    Examples
    --------
    >>> from gorelm.experiments.statistics import holm
    >>> holm([0.01, 0.04, 0.03, 0.005])
    array([0.03, 0.06, 0.06, 0.02])
    """
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p_values must be a list of numbers between 0 and 1.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return adjusted.clip(max=1.0)


def cliques(ranks: Sequence[float] | ArrayLike, distance: float) -> list[tuple[int, ...]]:
    """Group methods whose mean ranks are not significantly different.

    Parameters
    ----------
    ranks : array-like of shape (n_methods,)
        Mean ranks.
    distance : float
        Ranks closer than this are not told apart; see :func:`nemenyi_distance`.

    Returns
    -------
    list of tuple of int
        Every largest group of at least two methods, best rank first within and between groups.
        Groups may overlap; a method told apart from all others is in none.

    Examples
    --------
    >>> from gorelm.experiments.statistics import cliques
    >>> cliques([3.1, 1.0, 1.5, 2.2], 1.2)
    [(1, 2), (2, 3), (3, 0)]
    """
    values = np.asarray(ranks, dtype=float)
    order = np.argsort(values, kind="stable")
    groups: list[tuple[int, ...]] = []
    end_before = 0
    for start in range(len(order)):
        end = start
        while end < len(order) and values[order[end]] - values[order[start]] < distance:
            end += 1
        # one that ends where its predecessor ended lies within it
        if end - start >= 2 and end > end_before:
            groups.append(tuple(int(j) for j in order[start:end]))
        end_before = max(end_before, end)
    return groups


def _check(
    errors: ArrayLike, *, least_methods: int = 1, least_datasets: int = 1
) -> NDArray[np.float64]:
    matrix = np.asarray(errors, dtype=float)
    if matrix.ndim != 2:
        raise ValueError(
            f"errors must have the shape (n_datasets, n_methods), got an array of {matrix.ndim} "
            "dimensions."
        )
    if matrix.shape[0] < least_datasets or matrix.shape[1] < least_methods:
        raise ValueError(
            f"needs at least {least_methods} methods and {least_datasets} data sets, got "
            f"{matrix.shape[1]} and {matrix.shape[0]}."
        )
    if not np.isfinite(matrix).all():
        raise ValueError("errors must be finite: leave out data sets with a missing figure.")
    return matrix
