"""Estimators beyond memory and on devices: the same model as in memory, and clear refusals."""

import numpy as np
import pytest
from scipy import sparse

from gorelm import GORELMRegressor, GRELMRegressor, ORELMRegressor, RELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.estimators._prepare import in_bytes
from gorelm.path import gorelm_path
from gorelm.stream import BLOCK_ROWS, RowBlocks

SMALL = {"n_hidden": 30, "random_state": 0}
MODELS = {
    "GOR-ELM": GORELMRegressor(lam=0.3, **SMALL),
    "GOR-ELM sparse": GORELMRegressor(
        lam=0.3, l1_ratio=0.5, input_scaling="standard", direct_link=True, **SMALL
    ),
    "OR-ELM": ORELMRegressor(C=3, **SMALL),
    "GR-ELM": GRELMRegressor(C=3, **SMALL),
    "R-ELM": RELMRegressor(C=3, input_scaling=None, **SMALL),
    "GOR-ELM few inputs": GORELMRegressor(lam=0.3, n_inputs=2, direct_link=True, **SMALL),
}
models = pytest.mark.parametrize("name", MODELS)
N_ROWS = 2 * BLOCK_ROWS + 300


@pytest.fixture(scope="module")
def data():
    return make_multitarget(N_ROWS, outlier_ratio=0.2, random_state=0)


@pytest.fixture(scope="module")
def weights():
    """Rows of weight 0 among them."""
    return np.random.default_rng(0).integers(0, 3, N_ROWS).astype(float)


def fresh(name, **params):
    from sklearn.base import clone

    return clone(MODELS[name]).set_params(**params)


def holes(T):
    """Targets with unknown cells, and a row without any."""
    T = T.copy()
    T[np.random.default_rng(1).random(T.shape) < 0.1] = np.nan
    T[5] = np.nan
    return T


def assert_same_model(one, other, X, *, digits):
    expected = other.predict(X)
    size = np.abs(expected).max()
    np.testing.assert_allclose(one.predict(X), expected, rtol=0, atol=digits * size)
    np.testing.assert_allclose(
        one.outlier_scores_,
        other.outlier_scores_,
        rtol=0,
        atol=digits * other.outlier_scores_.max(),
    )
    assert (one.outlier_mask_ != other.outlier_mask_).mean() < 0.01
    assert one.dual_gap_ <= 1e-3


# -- streaming ---------------------------------------------------------------------------------


@models
@pytest.mark.parametrize("budget", [1.0, "300 kB"])
def test_streamed_is_the_model_in_memory(data, weights, name, budget):
    in_memory = fresh(name, tol=1e-4).fit(data.X, data.T, weights)
    streamed = fresh(name, tol=1e-4, memory_budget=budget).fit(data.X, data.T, weights)
    assert_same_model(streamed, in_memory, data.X, digits=2e-3)
    assert streamed.outlier_mask_[data.planted & (weights > 0)].mean() > 0.9


@pytest.mark.parametrize("name", ["GOR-ELM", "GOR-ELM sparse", "GR-ELM", "R-ELM"])
def test_streamed_with_unknown_cells(data, name):
    T = holes(data.T)
    ignore = {"missing_targets": "ignore", "tol": 1e-4}
    in_memory = fresh(name, **ignore).fit(data.X, T)
    streamed = fresh(name, memory_budget=1.0, **ignore).fit(data.X, T)
    assert_same_model(streamed, in_memory, data.X, digits=3e-3)


def test_a_memory_map_and_a_sparse_matrix_are_streamed(data, tmp_path):
    expected = fresh("GOR-ELM", memory_budget=1.0).fit(data.X, data.T).predict(data.X)
    np.save(tmp_path / "X.npy", data.X)
    on_disk = np.load(tmp_path / "X.npy", mmap_mode="r")
    for X in (on_disk, sparse.csr_array(data.X)):
        found = fresh("GOR-ELM", memory_budget=1.0).fit(X, data.T)
        np.testing.assert_allclose(found.predict(X), expected, atol=1e-6)


def blocks_of(X):
    return lambda: iter(np.array_split(X, [1, 2, 700, 700, len(X) - 1]))


def test_blocks_from_anywhere(data):
    expected = fresh("GOR-ELM", memory_budget=1.0).fit(data.X, data.T)
    for source in (blocks_of(data.X), list(blocks_of(data.X)())):
        X = RowBlocks.from_blocks(source)
        found = fresh("GOR-ELM").fit(X, data.T)
        np.testing.assert_array_equal(found.coef_, expected.coef_)
        np.testing.assert_allclose(found.predict(X), expected.predict(data.X), atol=1e-12)


def test_a_parquet_file_in_blocks(data, tmp_path):
    pandas = pytest.importorskip("pandas")
    names = [f"x{j}" for j in range(data.X.shape[1])]
    frame = pandas.DataFrame(data.X, columns=names)
    frame = frame.assign(a=data.T[:, 0], b=data.T[:, 1])
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=777)
    X, y = RowBlocks.from_parquet(tmp_path / "rows.parquet", ["a", "b"])
    np.testing.assert_array_equal(y, data.T[:, :2])
    found = fresh("GOR-ELM").fit(X, y)
    assert list(found.feature_names_in_) == names
    expected = fresh("GOR-ELM", memory_budget=1.0).fit(data.X, y)
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    with pytest.raises(ValueError, match="no column 'c'"):
        RowBlocks.from_parquet(tmp_path / "rows.parquet", ["c"])


def test_passes_over_the_rows_are_counted(data):
    X = RowBlocks.from_blocks(blocks_of(data.X))
    model = fresh("GOR-ELM").fit(X, data.T)
    # Once each: the scaling, H'H, the certificate at the end, the scores; and every iteration.
    assert X.n_passes == model.n_iter_ + 4


def test_streaming_refuses_what_it_cannot_do(data):
    rows = RowBlocks.from_array(data.X)
    with pytest.raises(ValueError, match="fit_intercept"):
        fresh("R-ELM", fit_intercept=True).fit(rows, data.T)
    with pytest.raises(TypeError, match="only once"):
        RowBlocks.from_blocks(iter([data.X]))
    with pytest.raises(ValueError, match="no block"):
        RowBlocks.from_blocks([])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        fresh("GOR-ELM").fit(rows, data.T[:-1])
    bad = data.X.copy()
    bad[1500, 1] = np.inf
    with pytest.raises(ValueError, match="row 1500"):
        fresh("GOR-ELM").fit(RowBlocks.from_array(bad), data.T)
    model = fresh("GOR-ELM").fit(rows, data.T)
    with pytest.raises(ValueError, match="fitted with"):
        model.predict(RowBlocks.from_array(data.X[:, 1:]))


def test_rows_that_change_between_passes_are_noticed(data):
    lengths = iter([N_ROWS, N_ROWS - 1])
    X = RowBlocks.from_blocks(lambda: [data.X[: next(lengths)]])
    model = fresh("GOR-ELM")
    with pytest.raises(ValueError, match="the same in every pass"):
        model.fit(X, data.T)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(12, 12.0), ("12", 12.0), ("4GB", 4e9), ("1.5 GiB", 1.5 * 2**30), ("10k", 1e4), ("2 Mb", 2e6)],
)
def test_budgets_in_words(budget, expected):
    assert in_bytes(budget) == expected


def test_the_default_budget_is_half_of_the_memory():
    assert 1e8 < in_bytes(None) < 1e14


# -- devices -----------------------------------------------------------------------------------


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """The name of a device of PyTorch that is there."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.fixture
def there(device):
    """Return a function that copies an array to the device."""
    import torch

    return lambda values: torch.tensor(values, device=device)


def assert_same_weights(found, expected, digits=1e-10):
    """Up to rounding: products on a GPU need not repeat to the bit."""
    atol = digits * np.abs(expected.coef_).max()
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=atol)


@models
@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_give_the_model_of_arrays(there, data, weights, name, weighted):
    w = weights if weighted else None
    # A device is checked more rarely at first, and may go a few iterations further.
    expected = fresh(name, tol=1e-6).fit(data.X, data.T, w)
    X, T = there(data.X), there(data.T)
    found = fresh(name, tol=1e-6).fit(X, T, None if w is None else there(w))
    assert_same_model(found, expected, data.X, digits=1e-4)
    predicted = found.predict(X)
    assert predicted.device == X.device
    np.testing.assert_allclose(predicted.cpu().numpy(), found.predict(data.X), atol=1e-10)


def test_arrays_on_a_named_device(device, data):
    expected = fresh("GOR-ELM", tol=1e-6).fit(data.X, data.T)
    found = fresh("GOR-ELM", tol=1e-6, device=device).fit(data.X, data.T)
    assert_same_model(found, expected, data.X, digits=1e-4)
    assert isinstance(found.predict(data.X), np.ndarray)


def test_a_device_with_unknown_cells_one_target_and_float32(there, data):
    T = holes(data.T)
    ignore = {"missing_targets": "ignore", "tol": 1e-6}
    expected = fresh("GOR-ELM", **ignore).fit(data.X, T)
    found = fresh("GOR-ELM", **ignore).fit(there(data.X), there(T))
    assert_same_model(found, expected, data.X, digits=1e-4)
    single = fresh("GOR-ELM").fit(there(data.X).float(), there(data.T[:, 0]))
    assert single.predict(there(data.X).float()).shape == (N_ROWS,)
    expected = fresh("GOR-ELM").fit(data.X, data.T[:, 0])
    assert_same_model(single, expected, data.X, digits=2e-2)


@pytest.mark.parametrize(
    "activation",
    [
        *("sigmoid", "tanh", "relu", "leaky_relu", "softplus", "hardlim", "sine", "cosine"),
        *("gaussian", "multiquadric", "laplace"),
    ],
)
def test_layers_on_a_device(there, activation):
    from gorelm._features.layer import HiddenLayer
    from gorelm.backends.torch.layer import DeviceLayer

    X = np.random.default_rng(0).uniform(-30, 30, (50, 4))
    for n_inputs in (None, 2):
        options = {"direct_link": True, "random_state": 0, "n_inputs": n_inputs}
        layer = HiddenLayer.draw(20, 4, activation=activation, X=X, **options)
        found = DeviceLayer(layer, there(X))(there(X)).cpu().numpy()
        np.testing.assert_allclose(found, layer.transform(X), atol=1e-12)


def test_every_activation_has_a_device_version():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from gorelm._features.activations import ACTIVATIONS
    from gorelm.backends.torch import layer as module

    radial = {name for name, activation in ACTIVATIONS.items() if activation.radial}
    assert set(module.ACTIVATIONS) == set(ACTIVATIONS) - radial
    assert set(module.RADIAL) == radial


def test_devices_refuse_what_they_cannot_do(there, device, data):
    X, T = there(data.X), there(data.T)
    model = fresh("GOR-ELM").fit(X, T)
    before = model.coef_
    with pytest.raises(ValueError, match="rows"):
        model.fit(X, T[:-1])
    broken = T.clone()
    broken[3, 1] = float("nan")
    with pytest.raises(ValueError, match="y has NaN"):
        model.fit(X, broken)
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, T, there(-np.ones(N_ROWS)))
    with pytest.raises(ValueError, match="fitted with"):
        model.predict(X[:, 1:])
    with pytest.raises(ValueError, match="not available"):
        model.set_params(device="cuda:99").fit(X, T)
    with pytest.raises(TypeError, match="sparse"):
        model.set_params(device=device).fit(sparse.csr_array(data.X), data.T)
    assert model.coef_ is before


@pytest.mark.parametrize("loss", ["l21", "l1", "squared"])
def test_a_path_on_a_device(there, loss):
    rng = np.random.default_rng(0)
    H, T, w = rng.random((90, 12)), rng.standard_normal((90, 2)), rng.uniform(0.5, 2, 90)
    options = {"l1_ratios": [0.0, 0.5], "n_lams": 5, "eps": 1e-2, "loss": loss, "sample_weight": w}
    expected = gorelm_path(H, T, tol=1e-5, **options)
    found = gorelm_path(there(H), there(T), tol=1e-5, **options)
    np.testing.assert_allclose(found.lams, expected.lams, rtol=1e-12)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=2e-5)
    assert found.converged.all()
    with pytest.raises(ValueError, match="finite"):
        gorelm_path(there(H) / 0, there(T))


# -- what float32 and other owners of rows must not change ---------------------------------------


@pytest.mark.parametrize("value", [1e7, 1e25, 1e45])
@pytest.mark.parametrize("kind", ["streamed", "float32", "float32 on cpu", "float32 on cuda"])
def test_far_rows_do_not_bend_a_fit_in_float32(data, kind, value):
    device = kind.removeprefix("float32 on ")
    if device != kind:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    X, T = data.X[:400], data.T[:400].copy()
    T[:20] = value
    expected = fresh("GOR-ELM").fit(X, T)
    params = {"streamed": {"memory_budget": 1.0}, "float32": {}}.get(kind, {"device": device})
    found = fresh("GOR-ELM", **params).fit(X if params.get("memory_budget") else X.astype("f4"), T)
    assert found.converged_
    size = np.abs(expected.predict(X)).max()
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=0, atol=0.1 * size)


def test_inputs_beyond_float32_are_refused_when_streamed(data):
    model = fresh("GOR-ELM", input_scaling=None, direct_link=True, memory_budget=1.0)
    with pytest.raises(ValueError, match="input_scaling"):
        model.fit(data.X * 1e40, data.T)


def test_rows_beyond_those_counted_are_noticed(data):
    lengths = iter([N_ROWS - 5, N_ROWS])
    X = RowBlocks.from_blocks(lambda: [data.X[: next(lengths)]])
    with pytest.raises(ValueError, match="the same in every pass"):
        fresh("GOR-ELM").fit(X, data.T[:-5])


def test_a_reader_may_use_its_buffer_again(data):
    def read():
        buffer = np.empty((100, data.X.shape[1]))
        for start in range(0, 2000, 100):
            buffer[:] = data.X[start : start + 100]
            yield buffer

    expected = fresh("GOR-ELM", memory_budget=1.0).fit(data.X[:2000], data.T[:2000])
    found = fresh("GOR-ELM").fit(RowBlocks.from_blocks(read), data.T[:2000])
    np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_targets_beside_tensors_keep_their_digits(there, data):
    X, y = there(data.X).float(), 1e8 + data.T[:, 0]
    expected = fresh("GOR-ELM").fit(X, there(y))
    assert_same_weights(fresh("GOR-ELM").fit(X, y), expected, digits=1e-5)


def test_devices_say_what_is_wrong(there, device, data):
    X, T = there(data.X), there(data.T)
    with pytest.raises(ValueError, match="leave out device"):
        fresh("R-ELM", fit_intercept=True, device=device).fit(data.X, data.T)
    with pytest.raises(TypeError, match="rows in blocks"):
        fresh("GOR-ELM", device=device).fit(RowBlocks.from_array(data.X), data.T)
    with pytest.raises(ValueError, match="y is None"):
        fresh("GOR-ELM").fit(X, None)
    for y in (T[:, :, None], T[0, 0]):
        with pytest.raises(ValueError, match="dimensions"):
            fresh("GOR-ELM").fit(X, y)


@pytest.mark.filterwarnings("error")
def test_devices_take_read_only_arrays_and_tensors_with_gradients(there, device, data):
    expected = fresh("GOR-ELM", device=device).fit(data.X, data.T)
    X, T = data.X.copy(), data.T.copy()
    X.flags.writeable = T.flags.writeable = False
    assert_same_weights(fresh("GOR-ELM", device=device).fit(X, T), expected)
    X, T = there(data.X).requires_grad_(), there(data.T).requires_grad_()
    found = fresh("GOR-ELM").fit(X, T)
    assert_same_weights(found, expected)
    assert not found.predict(X).requires_grad
    assert gorelm_path(X[:90], T[:90], lams=[1.0]).converged.all()


def test_a_path_on_a_device_with_a_far_row(there):
    rng = np.random.default_rng(0)
    H, T = rng.random((90, 12)), rng.standard_normal((90, 2))
    T[3] = 1e12
    options = {"l1_ratios": [0.5], "n_lams": 4, "eps": 1e-2}
    expected = gorelm_path(H, T, **options)
    found = gorelm_path(there(H), T.tolist(), **options)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-5)
