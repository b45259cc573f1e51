"""What an experiment is: data sets, outlier ratios, methods and repeats, declared in TOML."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from gorelm.datasets.contamination import CONTAMINATIONS
from gorelm.datasets.fetch import suggest

# What a run leaves behind: text, numbers, and None for what is unknown, by their names.
Value: TypeAlias = str | float | None
RunRecord: TypeAlias = Mapping[str, Value]

MODES = ("published", "search", "none")
QUICK_SETS = ("andro", "edm", "enb", "jura", "slump")
QUICK_REPEATS = 3


@dataclass(frozen=True)
class Method:
    """A named estimator, its fixed parameters, and how others are searched for."""

    name: str
    estimator: str
    params: dict[str, object] = field(default_factory=dict)
    search: dict[str, object] = field(default_factory=dict)  # the CV estimator and its parameters


@dataclass(frozen=True)
class Selection:
    """Where the parameters that a method leaves open come from.

    "published": what the paper chose for the data set; "search": cross-validation on the clean
    training part of the first repeat, once for a data set; "none": nothing is left open, or the
    estimator chooses by itself.
    """

    mode: str = "none"
    folds: int = 5
    scoring: str = "mean_norm"


@dataclass(frozen=True)
class Run:
    """One fit of the experiment: the key of its record."""

    dataset: str
    ratio: float
    method: str
    repeat: int


@dataclass(frozen=True)
class Config:
    """A declared experiment."""

    name: str
    datasets: tuple[str, ...]
    ratios: tuple[float, ...]
    repeats: int
    methods: tuple[Method, ...]
    selection: Selection = Selection()
    common: dict[str, object] = field(default_factory=dict)
    test_size: float = 1 / 3
    kind: str = "rows"
    seed: int = 0

    def runs(self) -> Iterator[Run]:
        """Yield every run, repeats outermost: an early stop leaves whole tables."""
        for repeat in range(self.repeats):
            for dataset in self.datasets:
                for ratio in self.ratios:
                    for method in self.methods:
                        yield Run(dataset, ratio, method.name, repeat)

    def method(self, name: str) -> Method:
        """Return the method of a name."""
        return next(method for method in self.methods if method.name == name)

    def seed_of(self, *what: object) -> int:
        """Return a seed for something, the same in every process and version."""
        return zlib.crc32("|".join(map(str, (self.seed, *what))).encode()) % 2**31

    def restricted(
        self,
        *,
        datasets: tuple[str, ...] = (),
        methods: tuple[str, ...] = (),
        ratios: tuple[float, ...] = (),
        repeats: int | None = None,
        quick: bool = False,
    ) -> Config:
        """Return a part of the experiment; `quick`: three repeats on five small sets."""
        config = self
        if quick:
            small = tuple(name for name in self.datasets if name in QUICK_SETS)
            config = replace(
                config,
                datasets=small or self.datasets,
                repeats=min(QUICK_REPEATS, self.repeats),
            )
        if datasets:
            names = _known(datasets, self.datasets, "data set")
            config = replace(config, datasets=tuple(dict.fromkeys(names)))
        if methods:
            names = _known(methods, tuple(m.name for m in self.methods), "method")
            chosen = tuple(self.method(name) for name in dict.fromkeys(names))
            config = replace(config, methods=chosen)
        if ratios:
            config = replace(config, ratios=tuple(dict.fromkeys(ratios)))
        if repeats is not None:
            config = replace(config, repeats=repeats)
        config.check()
        return config

    def check(self) -> None:
        """Raise ValueError if the experiment cannot be run as declared."""
        for name in ("datasets", "ratios", "methods"):
            if not getattr(self, name):
                raise ValueError(f"{self.name}: {name} is empty")
        if not isinstance(self.repeats, int) or self.repeats < 1:
            raise ValueError(f"{self.name}: repeats must be at least 1, got {self.repeats}")
        if not all(isinstance(ratio, float | int) and 0 <= ratio < 1 for ratio in self.ratios):
            raise ValueError(f"{self.name}: ratios must be in [0, 1), got {list(self.ratios)}")
        if not 0 < self.test_size < 1:
            raise ValueError(f"{self.name}: test_size must be in (0, 1), got {self.test_size}")
        if self.kind not in CONTAMINATIONS:
            raise ValueError(
                f"{self.name}: kind must be one of {', '.join(CONTAMINATIONS)}, got {self.kind!r}"
            )
        for what in ("datasets", "ratios", "methods"):
            names = [getattr(entry, "name", entry) for entry in getattr(self, what)]
            if len(set(names)) < len(names):
                raise ValueError(f"{self.name}: something occurs twice in {what}: {names}")
        self._check_common()
        for method in self.methods:
            _check_estimator(method.estimator, method.name)
            if method.search:
                _check_estimator(str(method.search.get("estimator", "")), f"{method.name}'s search")
            elif self.selection.mode == "search" and not _chooses_itself(method.estimator):
                raise ValueError(f"{method.name} has no search, and selection.mode is 'search'")

    def _check_common(self) -> None:
        from gorelm import estimators

        # Of any estimator: a part of an experiment keeps what is common to the whole.
        classes = [getattr(estimators, name) for name in estimators.__all__]
        known = sorted({name for cls in classes for name in signature(cls).parameters})
        for name in self.common:
            if name not in known:
                raise ValueError(
                    f"{self.name}: no estimator has a parameter {name!r}; {suggest(name, known)}"
                )


def load_config(source: str | Path) -> Config:
    """Read a configuration.

    Parameters
    ----------
    source : str or path
        Name of one that comes with the library ("paper", "robust"), or a TOML file.

    Returns
    -------
    config : Config

    Raises
    ------
    ValueError
        If it is no TOML, has unknown keys, or cannot be run as declared.
    FileNotFoundError
        If there is no such file or name.
    """
    folder = resources.files("gorelm.experiments") / "configs"
    ready = sorted(item.name.removesuffix(".toml") for item in folder.iterdir())
    if str(source) in ready:
        text, where = (folder / f"{source}.toml").read_text(encoding="utf-8"), str(source)
    elif Path(source).is_file():
        text, where = Path(source).read_text(encoding="utf-8"), str(source)
    else:
        raise FileNotFoundError(
            f"there is no configuration {str(source)!r}: give a TOML file or one of "
            f"{', '.join(ready)}"
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not TOML: {error}") from error
    try:
        config = _config_of(table)
        config.check()
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: {_plain(error)}") from error
    return config


def _config_of(table: dict[str, Any]) -> Config:
    entries = table.pop("methods", [])
    if not isinstance(entries, list):
        raise TypeError("methods are declared as [[methods]], one for each")
    methods = [_method_of(entry) for entry in entries]
    selection = Selection(**table.pop("selection", {}))
    if selection.mode not in MODES:
        raise ValueError(
            f"selection.mode must be one of {', '.join(MODES)}, got {selection.mode!r}"
        )
    for name in ("datasets", "ratios"):
        if not isinstance(table.get(name), list):
            raise TypeError(f"{name} must be a list")
        table[name] = tuple(table[name])
    return Config(methods=tuple(methods), selection=selection, **table)


def _method_of(entry: dict[str, Any]) -> Method:
    search = {name: _expanded(value) for name, value in entry.pop("search", {}).items()}
    return Method(**entry, search=search)


def _expanded(value: object) -> object:
    """Turn "2^-20..2^20" into the powers from the one to the other."""
    if isinstance(value, str) and (match := re.fullmatch(r"2\^(-?\d+)\.\.2\^(-?\d+)", value)):
        first, last = map(int, match.groups())
        return [2.0**k for k in range(first, last + 1)]
    return value


def _chooses_itself(estimator: str) -> bool:
    """Whether an estimator has nothing left to choose."""
    return "CV" in estimator or estimator in ("RobustELMRegressor", "ELMRegressor")


def _check_estimator(name: str, whose: str) -> None:
    from gorelm import estimators

    if name not in estimators.__all__:
        hint = suggest(name, estimators.__all__)
        raise ValueError(f"{whose}: gorelm has no estimator {name!r}; {hint}")


def _known(names: tuple[str, ...], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            hint = suggest(name, known)
            raise ValueError(f"the configuration has no {what} {name!r}; {hint}")
    return names


def _plain(error: Exception) -> str:
    """Say what a dataclass's constructor has to complain about, without its name."""
    return re.sub(r"\w+\.__init__\(\) ", "", str(error)).replace("keyword argument", "key")
