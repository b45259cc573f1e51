"""The same rows in every place that estimators take them from."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from gorelm.stream import RowBlocks

__all__ = [
    "OWNERS",
    "around_passes",
    "in_dask_frame",
    "in_parquet",
    "mapped",
    "on_dask",
    "on_device",
    "uneven",
    "weights_and_holes",
]


def uneven(X):
    """Blocks of 1, 2, 4, ... rows."""
    starts = np.cumsum([0, *2 ** np.arange(12)])
    parts = [X[a:b] for a, b in pairwise(starts) if a < len(X)]
    return RowBlocks.from_blocks(parts)


def mapped(folder, X):
    np.save(folder / "X.npy", X)
    return RowBlocks.from_array(np.load(folder / "X.npy", mmap_mode="r"))


def in_parquet(folder, X):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pandas.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=0.0)
    frame.to_parquet(folder / "table.parquet", row_group_size=101)
    return RowBlocks.from_parquet(folder / "table.parquet", ["y"])[0]


def on_dask(folder, X):
    pytest.importorskip("distributed", reason="dask is not installed")
    import dask.array as da

    # Under a name of its own: a task that was lost with too many workers fails for all its users.
    return da.from_array(X, chunks=(101, 2), name=False)


def in_dask_frame(folder, X):
    pandas = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    frame = pandas.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    return dd.from_pandas(frame, npartitions=3)


def weights_and_holes(T):
    """Return targets with unknown cells, and weights of 0, 1 and 2."""
    rng = np.random.default_rng(1)
    T, w = T.copy(), rng.integers(0, 3, len(T)).astype(float)
    T[rng.random(T.shape) < 0.05] = np.nan
    T[5] = np.nan
    return T, w


def on_device(folder, X, device="cpu"):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.tensor(X, device=device)


OWNERS = {
    "uneven blocks": lambda folder, X: uneven(X),
    "memory map": mapped,
    "parquet": in_parquet,
    "dask": on_dask,
    "dask frame": in_dask_frame,
    "torch cpu": on_device,
    "torch cuda": partial(on_device, device="cuda"),
}


def around_passes(monkeypatch, around):
    """Make every pass over the inputs on a cluster by ``around``, of a function that makes it."""
    from gorelm.backends.dask import inputs as dask_inputs

    for name in ("results", "answers"):
        plain = getattr(dask_inputs, name)
        monkeypatch.setattr(
            dask_inputs, name, lambda *args, plain=plain: around(lambda: plain(*args))
        )
