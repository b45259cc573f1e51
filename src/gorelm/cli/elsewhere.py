"""Work that other machines do for a command: a PyTorch device, the workers of a dask cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gorelm._extras import needs

if TYPE_CHECKING:
    from distributed import Client
    from sklearn.base import BaseEstimator

    from gorelm._typing import Array

CONNECTING = 5  # seconds, after which nobody is there


def require_device(name: str | None) -> None:
    """Raise, before anything is read, if there is no such device."""
    if name is not None:
        with needs("--device needs PyTorch", "torch"):
            from gorelm.backends.torch.fit import available
        available(name)


def predict_on(device: str | None, model: BaseEstimator, X: object) -> Array:
    """Return the predictions of a model, computed on a device if there is one to use."""
    import numpy as np

    if device is None:
        return np.asarray(model.predict(X))
    import torch

    from gorelm.estimators.table import TableRegressor

    inputs = X
    if isinstance(model, TableRegressor):
        inputs, model = model._encoded_new(X), model.regressor_
    rows = torch.as_tensor(np.array(inputs, dtype=np.float64), device=device)
    predicted = model.predict(rows)
    if not isinstance(predicted, torch.Tensor):
        raise ValueError(f"--device: {type(model).__name__} predicts on the CPU alone.")
    return np.asarray(predicted.cpu().numpy())


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """Use the dask scheduler at an address, for the time of the block.

    Raises
    ------
    ConnectionError
        If nobody answers there, no worker is connected to it, or it is lost before the end.
    """
    with needs("--scheduler needs dask and distributed", "dask"):
        from distributed import Client
    with _quiet_loggers():
        try:
            client = Client(address, timeout=CONNECTING, name="gorelm")
        except (OSError, ValueError, RuntimeError) as error:
            raise ConnectionError(
                f"No dask scheduler answers at {address} within {CONNECTING} seconds; start one "
                "(dask scheduler), or leave out --scheduler to read the table on this machine."
            ) from error
        with _naming_loss(client, address):
            yield client


@contextmanager
def _naming_loss(client: Client, address: str) -> Iterator[None]:
    from distributed import CancelledError

    try:
        if not client.nthreads():
            raise ConnectionError(
                f"The dask scheduler at {address} has no worker: start some (dask worker {address})"
            )
        yield
    except (CancelledError, OSError, RuntimeError) as error:
        if client.status == "running" and _answers(client):
            raise
        raise ConnectionError(
            f"The dask scheduler at {address} was lost; nothing was written."
        ) from error
    finally:
        client.close(timeout=CONNECTING)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keep distributed from logging in ten lines what is said in one."""
    names = "distributed", "distributed.client", "distributed.core", "tornado"  # each has a level
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _answers(client: Client) -> bool:
    try:
        client.scheduler_info(n_workers=0)
        client.nthreads()
    except Exception:  # whatever keeps it from answering
        return False
    return True


def in_order(
    client: Client, work: Callable[..., Any], items: list[Any], *args: object
) -> Iterator[Any]:
    """Yield ``work(item, *args)`` of every item in order, a few at a time done by the workers."""
    waiting: list[Any] = []
    most = 2 * sum(client.nthreads().values())
    for item in items:
        waiting.append(client.submit(work, item, *args, pure=False))
        if len(waiting) > most:
            yield waiting.pop(0).result()
    while waiting:
        yield waiting.pop(0).result()
