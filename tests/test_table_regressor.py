from sklearn.utils.estimator_checks import parametrize_with_checks
from gorelm import GORELMRegressor, RobustELMRegressor, TableRegressor

SMALL = RobustELMRegressor(n_hidden=10, n_members=1, cv=2, missing_targets="ignore")


@parametrize_with_checks([TableRegressor(SMALL), TableRegressor(GORELMRegressor(n_hidden=30))])
def test_scikit_learn(estimator, check):
    check(estimator)
