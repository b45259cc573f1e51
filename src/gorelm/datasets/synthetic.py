"""Synthetic multi-target problems with a known truth and known outliers."""

from numbers import Integral

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch, check_random_state, check_scalar

from gorelm.datasets.contamination import contaminate

_DESCR = """\
Synthetic multi-target regression: {n_samples} rows, {n_features} features, {n_targets} targets.
Three shared nonlinear factors of the inputs, mixed, plus a term of each target's own.
Gaussian noise of {noise:g} target standard deviations; {n_planted} contaminated rows ({kind}).
"""


def make_multitarget(
    n_samples: int = 600,
    n_features: int = 8,
    n_targets: int = 3,
    *,
    outlier_ratio: float = 0.3,
    outlier_kind: str = "rows",
    noise: float = 0.05,
    random_state: int | np.random.RandomState | None = None,
) -> Bunch:
    r"""Draw a smooth nonlinear problem with correlated targets, noise and planted outliers.

    Inputs are uniform in :math:`[-1, 1]`. With random unit directions :math:`a_k` and
    :math:`c_l`, projections :math:`p_k = 1.5\,a_k'x` and a mixing matrix :math:`M` with entries
    uniform in :math:`[0.5, 1.5]`, the clean value of target :math:`l` is

    .. math::

        f_l(x) = 1.5\,M_{1l} \cos p_1 + M_{2l}\,p_2 p_3 + 2\,M_{3l} \tanh p_4
                 + 0.8 \sin(1.5\,c_l'x).

    The three factors are shared, so the targets are correlated; the last term is the target's
    own. Gaussian noise is added to the clean values, and then outliers are planted by
    :func:`~gorelm.datasets.contaminate`.

    Parameters
    ----------
    n_samples, n_features, n_targets : int, default=600, 8, 3
        Sizes, all at least 1.
    outlier_ratio : float, default=0.3
        Share of the rows to contaminate, in [0, 1).
    outlier_kind : str, default="rows"
        A kind of :func:`~gorelm.datasets.contaminate`.
    noise : float, default=0.05
        Standard deviation of the noise, in units of each clean target's standard deviation.
    random_state : int, RandomState instance or None, default=None
        Seed. The function drawn depends on the seed, `n_features` and `n_targets` only, and the
        inputs of a smaller problem are the first inputs of a larger one.

    Returns
    -------
    Bunch
        With the attributes

        - ``X``: ndarray of shape (n_samples, n_features), the inputs;
        - ``T``: ndarray of shape (n_samples, n_targets), noisy targets with outliers;
        - ``T_clean``: ndarray of shape (n_samples, n_targets), the truth, without noise;
        - ``planted``: bool ndarray of shape (n_samples,), the contaminated rows;
        - ``feature_names``, ``target_names``: lists of str;
        - ``DESCR``: str.

    Examples
    --------
    >>> from gorelm.datasets import make_multitarget
    >>> problem = make_multitarget(n_samples=100, outlier_ratio=0.2, random_state=0)
    >>> problem.X.shape, problem.T.shape, int(problem.planted.sum())
    ((100, 8), (100, 3), 20)
    """
    sizes = {"n_samples": n_samples, "n_features": n_features, "n_targets": n_targets}
    for name, size in sizes.items():
        check_scalar(size, name, Integral, min_val=1)
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise must be finite and at least 0, got {noise!r}.")
    rng = check_random_state(random_state)

    # The function first, then the rows: one seed gives one function, whatever n_samples is.
    directions = _unit_columns(rng.standard_normal((n_features, 4)))
    own_directions = _unit_columns(rng.standard_normal((n_features, n_targets)))
    mixing = rng.uniform(0.5, 1.5, size=(3, n_targets))
    X = rng.uniform(-1.0, 1.0, size=(n_samples, n_features))

    p1, p2, p3, p4 = 1.5 * (X @ directions).T
    factors = np.column_stack([1.5 * np.cos(p1), p2 * p3, 2.0 * np.tanh(p4)])
    T_clean = factors @ mixing + 0.8 * np.sin(1.5 * (X @ own_directions))

    errors = rng.standard_normal(T_clean.shape)
    T_noisy = T_clean + noise * T_clean.std(axis=0) * errors
    T, planted = contaminate(T_noisy, outlier_ratio, kind=outlier_kind, random_state=rng)

    return Bunch(
        X=X,
        T=T,
        T_clean=T_clean,
        planted=planted,
        feature_names=[f"x{j}" for j in range(n_features)],
        target_names=[f"t{j}" for j in range(n_targets)],
        DESCR=_DESCR.format(**sizes, noise=noise, n_planted=planted.sum(), kind=outlier_kind),
    )


def _unit_columns(A: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(A / np.linalg.norm(A, axis=0))
