"""A progress bar for downloads, with the interface that pooch expects."""

from typing import Self

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


class DownloadBar:
    """Bar on the terminal for as long as the context lasts, failures included."""

    def __init__(self, what: str):
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    @property
    def total(self) -> float | None:
        """Bytes to come, None where the server does not say."""
        total: float | None = self._bar.tasks[0].total
        return total

    @total.setter
    def total(self, total: float) -> None:
        # pooch sets it at the start of each attempt
        self._bar.reset(self._task, total=total or None)

    def update(self, n_bytes: float) -> None:
        """Count bytes that have come."""
        self._bar.advance(self._task, n_bytes)

    def reset(self) -> None:
        """Count from 0 again."""
        self._bar.reset(self._task)

    def close(self) -> None:
        """Do nothing: the context closes the bar, also when pooch does not get here."""
