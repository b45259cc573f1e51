"""Model files of earlier versions are loaded and predict what they did."""

import io
import json
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sklearn

import gorelm
from gorelm.cli.inspecting import described
from gorelm.diagnostics import ConvergenceDisplay
from gorelm.diagnostics.fitted import layer_in_words
from gorelm.io.audit import SCHEMA
from support.model_cases import ESTIMATORS, fitted
from support.write_models import table

KEPT = sorted(Path(__file__).with_name("data").glob("models-*.zip"))
ADDED_SINCE = {"RobustOSELMRegressor", "ScreenedRegressor"}
OF_SKLEARN = ("pipeline", "search")  # their files are as old as the version of scikit-learn


def models(archive):
    return [Path(name).stem for name in archive.namelist() if name.endswith(".gorelm")]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_models_of_earlier_versions(path, tmp_path):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
        names = models(archive)
    assert {cls.__name__ for cls in ESTIMATORS} - ADDED_SINCE <= set(names)
    predictions = np.load(tmp_path / "predictions.npz")
    for name in names:
        file = tmp_path / f"{name}.gorelm"
        header = json.loads(file.read_bytes().split(b"\n", 2)[1])
        if name in OF_SKLEARN and header["scikit-learn"] != sklearn.__version__:
            continue
        X, expected = predictions["X"], predictions[name]
        model = gorelm.load(file)
        predicted = model.predict(table(X) if name in (*OF_SKLEARN, "TableRegressor") else X)
        # Other processors round sums and exponentials otherwise.
        np.testing.assert_allclose(
            predicted, expected, rtol=0, atol=1e-10 * np.ptp(expected), err_msg=name
        )
        if name == "RobustELMRegressor":
            for judge in (model.score_rows, model.score_cells, partial(model.findings, new=True)):
                with pytest.raises(ValueError, match="fit it again to judge new rows"):
                    judge(X, expected)
        if name == "OSELMRegressor":
            assert model.partial_fit(X, expected).n_samples_seen_ == 2 * len(X)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_earlier_versions_are_described(path, tmp_path):
    """What has changed since (settings, members, seconds) is missing, not an error."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
        names = [name for name in models(archive) if name not in OF_SKLEARN]
    for name in names:
        file = tmp_path / f"{name}.gorelm"
        model = gorelm.load(file)
        lines = described(model, file)
        assert lines[0].startswith(f"{name}.gorelm: {type(model).__name__}")
        assert set(model.get_params(deep=False)) == set(type(model)().get_params(deep=False))
        if name == "RobustELMRegressor":
            assert any(line.startswith("Model: ") for line in lines)
            assert not hasattr(model, "timings_")
            assert ConvergenceDisplay.of(model).histories.keys() <= {
                f"{k} {layer_in_words(member)}" for k, member in enumerate(model.members_, 1)
            }


def gorelm_names(node):
    if isinstance(node, dict):
        if str(node.get("__module__")).startswith("gorelm"):
            yield node["__module__"], node["__class__"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from gorelm_names(part)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_files_do_not_say_where_modules_lie(cls, tmp_path):
    content = gorelm.save(fitted(cls), tmp_path / "model").read_bytes()
    payload = content.split(b"\n", 2)[2]
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        names = set(gorelm_names(json.loads(archive.read(SCHEMA))))
    assert ("gorelm", cls.__name__) in names
    assert {module for module, _ in names} == {"gorelm"}
