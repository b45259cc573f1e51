import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gorelm.diagnostics import outlier_threshold

pytestmark = pytest.mark.filterwarnings("error")

DIMENSIONS = [1, 2, 3, 6, 16, 64]
SCORES = hnp.arrays(float, st.integers(1, 40), elements=st.floats(0, 1e6, allow_subnormal=False))


def clean_scores(n_targets, n_rows=4000, seed=0):
    """Norms of normal residuals."""
    return np.linalg.norm(np.random.RandomState(seed).normal(size=(n_rows, n_targets)), axis=1)


@pytest.mark.parametrize("n_targets", DIMENSIONS)
@pytest.mark.parametrize("seed", range(3))
def test_tukeys_fence_on_clean_scores(n_targets, seed):
    scores = clean_scores(n_targets, seed=seed)
    q1, q3 = np.quantile(scores, [0.25, 0.75], method="inverted_cdf")
    assert outlier_threshold(scores) == pytest.approx(q3 + 1.5 * (q3 - q1), rel=1e-12)
    assert np.mean(scores > outlier_threshold(scores)) < 0.02


@pytest.mark.parametrize("n_targets", DIMENSIONS)
@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 0.4])
def test_survives_many_outliers(n_targets, share):
    """Where Tukey's own fence, from a quarter of outliers on, no longer finds any."""
    scores = clean_scores(n_targets, 1000)
    planted = np.arange(1000) < share * 1000
    distance = np.random.RandomState(1).uniform(8, 12, size=planted.sum())
    scores[planted] = distance * np.sqrt(n_targets)
    found = scores > outlier_threshold(scores)
    assert found[planted].all()
    assert found[~planted].mean() < 0.03
    if share >= 0.3:
        q1, q3 = np.quantile(scores, [0.25, 0.75])
        assert not np.any(scores > q3 + 1.5 * (q3 - q1))


@given(scores=SCORES, seed=st.integers(0, 2**16))
def test_weights_are_repeats(scores, seed):
    w = np.random.RandomState(seed).randint(1, 5, size=len(scores))
    assert outlier_threshold(scores, w.astype(float)) == outlier_threshold(np.repeat(scores, w))


@given(scores=SCORES)
def test_no_weights_are_ones(scores):
    assert outlier_threshold(scores) == outlier_threshold(scores, np.ones(len(scores)))


@given(scores=SCORES)
def test_not_above_tukeys_fence_and_not_below_the_median(scores):
    q1, q2, q3 = np.quantile(scores, [0.25, 0.5, 0.75], method="inverted_cdf")
    threshold = outlier_threshold(scores)
    assert isinstance(threshold, float)
    assert q2 <= threshold <= q3 + 1.5 * (q3 - q1)


@given(scores=SCORES, unit=st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**20]))
def test_has_the_unit_of_the_scores(scores, unit):
    assert outlier_threshold(unit * scores) == pytest.approx(unit * outlier_threshold(scores))


@given(scores=SCORES, seed=st.integers(0, 2**16))
def test_order_does_not_matter(scores, seed):
    shuffled = np.random.RandomState(seed).permutation(scores)
    assert outlier_threshold(shuffled) == outlier_threshold(scores)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-300, 1e300])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 100])
def test_equal_scores_flag_nothing(value, n_rows):
    scores = np.full(n_rows, value)
    w = np.random.RandomState(0).uniform(0.1, 3, size=n_rows)
    assert not np.any(scores > outlier_threshold(scores))
    assert not np.any(scores > outlier_threshold(scores, w))


def test_one_outlier_among_equal_scores():
    scores = np.r_[np.full(20, 0.3), 5.0]
    np.testing.assert_array_equal(scores > outlier_threshold(scores), scores > 1)
