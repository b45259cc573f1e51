"""Transforms of targets and their way back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gorelm._features.target_transforms import TRANSFORMS, TargetTransforms

POSITIVE = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 9), st.just(3)), elements=st.floats(1e-9, 1e9)
)


@given(POSITIVE)
def test_there_and_back(T):
    transforms = TargetTransforms.fit(TRANSFORMS, T)
    np.testing.assert_allclose(transforms.undo(transforms.apply(T)), T, rtol=1e-12)
    ranks = np.argsort(np.argsort(T[:, 2], kind="stable"), kind="stable")
    Z = transforms.apply(T)[:, 2]
    assert (np.diff(Z[np.argsort(ranks)]) >= 0).all()  # monotone
    np.testing.assert_array_equal(transforms.apply(T)[:, 0], T[:, 0])


def test_values_out_of_range():
    T = np.array([[0.0, 0.0, 5.0], [4.0, 1.0, np.nan], [9.0, np.e**2, -5.0]])
    transforms = TargetTransforms.fit(["sqrt", "log", "none"], T)
    Z = transforms.apply(T)
    np.testing.assert_allclose(Z[:, 0], [0, 2, 3])
    np.testing.assert_allclose(Z[:, 1], [np.log(0.1), 0, 2])  # a tenth of the smallest
    assert np.isnan(Z[1, 2])
    new = transforms.apply(np.array([[-1.0, -1.0, -1.0]]))
    np.testing.assert_allclose(new, [[0, np.log(0.1), -1]])
    # Predictions beyond the range of the training values by more than that range are held there.
    far = transforms.undo(np.array([[-50.0, 900.0, 1e9], [-1.0, -900.0, np.nan]]))
    span = 2 - np.log(0.1)
    np.testing.assert_allclose(far[0], [0, np.exp(2 + span), 1e9])
    np.testing.assert_allclose(far[1, :2], [0, np.exp(np.log(0.1) - span)])
    assert np.isnan(far[1, 2])


@pytest.mark.parametrize("kind", ["sqrt", "log"])
def test_targets_without_a_scale(kind):
    for column in ([-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match=f"target_transform='{kind}' needs values .* column 0"):
            TargetTransforms.fit([kind], np.array(column)[:, None])
