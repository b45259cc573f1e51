"""Write models of every estimator, with what they predict, for tests of later versions.

``python tests/support/write_models.py models-VERSION.zip`` with that version installed.
"""

import inspect
import io
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import gorelm
from gorelm.datasets import make_multitarget
from gorelm.metrics import arrmse_scorer

SMALL = {
    "n_hidden": 3,
    "n_initial": 3,
    "n_step": 3,
    "max_hidden": 6,
    "n_lams": 2,
    "eps": 0.1,
    "random_state": 0,
}


def small(cls, **options):
    known = inspect.signature(cls).parameters
    if known.get("estimator", inspect.Parameter).default is inspect.Parameter.empty:
        options = {"estimator": small(gorelm.RELMRegressor), **options}
    return cls(**{name: value for name, value in SMALL.items() if name in known}, **options)


def table(X):
    """Return rows with a column of text and missing values."""
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    frame["colour"] = np.where(np.arange(len(X)) % 3, "red", "blue")
    frame.loc[::7, "x0"] = np.nan
    return frame


def models():
    """Return unfitted models by name, and whether each takes the table."""
    public = [getattr(gorelm, name) for name in gorelm.__all__]
    plain = {cls.__name__: small(cls) for cls in public if isinstance(cls, type)}
    for name in ("ConformalRegressor", "TableRegressor"):
        plain[name].set_params(estimator=small(gorelm.RELMRegressor))
    plain["RandomState"] = small(gorelm.RELMRegressor).set_params(
        random_state=np.random.RandomState(3)
    )
    plain["scorer and splitter"] = small(
        gorelm.GORELMRegressorCV, scoring=arrmse_scorer, cv=KFold(3)
    )
    columns = make_column_transformer(
        (SimpleImputer(), ["x0", "x1"]), (OneHotEncoder(), ["colour"]), remainder="passthrough"
    )
    tables = {
        "TableRegressor": plain["TableRegressor"],
        "pipeline": make_pipeline(columns, small(gorelm.GORELMRegressor)),
        "search": GridSearchCV(
            make_pipeline(columns, small(gorelm.RELMRegressor)), {"relmregressor__C": [1, 2]}, cv=2
        ),
    }
    return {name: (model, name in tables) for name, model in {**plain, **tables}.items()}


def main(path):
    data = make_multitarget(40, n_features=4, n_targets=2, outlier_ratio=0.2, random_state=0)
    rows = {"X": data.X}
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as kept,
    ):
        for name, (model, takes_table) in models().items():
            given = table(data.X) if takes_table else data.X
            model.fit(given, data.T)
            rows[name] = model.predict(given)
            kept.write(gorelm.save(model, Path(folder) / name), f"{name}.gorelm")
        held = io.BytesIO()
        np.savez(held, **rows)
        kept.writestr("predictions.npz", held.getvalue())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
