"""Tables under review, judged at once by a model that knows medians only."""

import contextlib
import threading

import numpy as np
import pandas as pd

from gorelm.review.session import Session, Table
from gorelm.review.store import Decisions

__all__ = ["EVIL", "Medians", "people", "served", "session_of"]

EVIL = '</td><script>window.evil = 1</script><img src=x onerror="window.evil = 2">'


class Medians:
    """Expects the median of every target; takes what the review asks a model for."""

    outlier_threshold_ = 5.0
    notes_ = ()

    def __init__(self):
        self.asked = None

    def fit(self, X, y, sample_weight=None, trusted=None):
        self.asked = {"y": y, "sample_weight": sample_weight, "trusted": trusted}
        T = y.to_numpy(dtype=float)
        kept = np.ones(len(T), bool) if sample_weight is None else np.asarray(sample_weight) > 0
        centre = np.nanmedian(T[kept], axis=0)
        self.target_spreads_ = np.nanmedian(np.abs(T[kept] - centre), axis=0) + 1e-9
        self.out_of_fold_ = np.broadcast_to(centre, T.shape).copy()
        off = np.abs(T - centre) / self.target_spreads_
        self.cell_thresholds_ = np.full(T.shape[1], 5.0)
        self.cell_scores_ = off
        self.cell_mask_ = off > 5.0
        self.outlier_scores_ = np.nan_to_num(off).mean(axis=1)
        self.outlier_mask_ = self.outlier_scores_ > self.outlier_threshold_
        if trusted is not None:
            self.outlier_mask_ &= ~trusted
            self.cell_mask_ &= ~trusted[:, None]
        return self

    def predict(self, X):
        return self.out_of_fold_[: len(X)]


def people(n_rows=60, n_wrong=8, seed=0):
    """Return a table with ids, categories, missing values, and weights that are wrong first."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n_rows),
            "sex": rng.choice(["F", "M"], n_rows),
            "height": rng.normal(170, 9, n_rows).round(),
            "remark": "",
            "weight": rng.uniform(60, 80, n_rows).round(1),
            "waist": rng.uniform(75, 95, n_rows).round(1),
        },
        index=[f"P{k:03d}" for k in range(n_rows)],
    )
    wrong = rng.permutation(n_rows)[:n_wrong]
    frame.iloc[wrong, 4] = 700.0 + 100.0 * np.arange(n_wrong)[::-1]
    frame.loc[frame.index[wrong[0]], "remark"] = EVIL
    frame.loc[frame.index[wrong[1:3]], "height"] = np.nan
    return frame, wrong


def session_of(path, frame=None, targets=("weight", "waist"), new_model=Medians):
    """Return a session on a table, with the first fit done, and its decisions in `path`."""
    frame = people()[0] if frame is None else frame
    file = path.with_name("people.csv")
    frame.to_csv(file)
    table = Table(
        path=file,
        frame=frame,
        X=frame.drop(columns=list(targets)),
        y=frame[list(targets)],
        lines=np.arange(2, len(frame) + 2),
        ids=frame.index,
    )
    session = Session(table, Decisions(path), new_model)
    session.refit()
    session.wait()
    return session


@contextlib.contextmanager
def served(session):
    """Serve a session from a thread; yields the address of its page."""
    import uvicorn

    from gorelm.review.server import listening_socket, make_app, new_token

    with listening_socket(0) as opened:
        token, port = new_token(), opened.getsockname()[1]
        app = make_app(session, token=token, port=port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/{token}/"
        finally:
            server.should_exit = True
            thread.join()
