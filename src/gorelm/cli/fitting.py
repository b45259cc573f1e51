"""The model that the commands on a table fit, in memory or in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

if TYPE_CHECKING:
    from gorelm.estimators.table import TableRegressor


class How(TypedDict):
    """How to fit, as all commands on a table take it."""

    seed: int
    jobs: int | None
    effort: str
    nodes: int | None
    check_inputs: bool
    target_transform: str
    device: str | None


def unfitted(*, progress: bool = False, **how: Unpack[How]) -> TableRegressor:
    """Return the model that the options ask for."""
    from gorelm.estimators import RobustELMRegressor, TableRegressor

    scale = how["target_transform"]
    robust = RobustELMRegressor(
        target_transform=None if scale == "none" else scale,
        effort=how["effort"],
        n_hidden=how["nodes"] or "auto",
        n_jobs=how["jobs"],
        missing_targets="ignore",
        check_inputs=how["check_inputs"],
        device=how["device"],
        progress=progress,
    )
    return TableRegressor(robust, random_state=how["seed"])
