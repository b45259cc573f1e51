"""With NumPy, SciPy and scikit-learn alone, gorelm is imported and every estimator works."""

from importlib.util import find_spec

import numpy as np
from sklearn.linear_model import Ridge

import gorelm

EXTRAS = ("arff", "click", "cvxpy", "dask", "jinja2", "mapie", "matplotlib", "onnx", "pandas")
EXTRAS += ("polars", "pooch", "pyarrow", "rich", "scikit_posthocs", "skops", "starlette", "torch")
EXTRAS += ("uvicorn",)
if present := [name for name in EXTRAS if find_spec(name)]:
    raise SystemExit(f"not an environment without extras: it has {', '.join(present)}")

data = gorelm.datasets.make_multitarget(120, outlier_ratio=0.1, random_state=0)
for name in gorelm.__all__:
    cls = getattr(gorelm, name)
    if name == "ConformalRegressor":
        continue  # needs MAPIE (extra `intervals`)
    around = {"estimator": Ridge()} if name == "ScreenedRegressor" else {}
    predicted = cls(**around, random_state=0).fit(data.X, data.T).predict(data.X)
    if predicted.shape != data.T.shape or not np.isfinite(predicted).all():
        raise SystemExit(f"{name} predicts {predicted}")
    print(f"{name} fits and predicts")
