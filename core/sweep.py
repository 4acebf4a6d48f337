"""Many what-ifs: a grid, a random sample or a guided search over knobs, hardware and load; in parallel, and what is best.

    axes x values -> points -> workers (joblib; a Dask or Ray cluster by its address) -> rows -> Pareto front, best under limits

A row holds figures, never a whole run, so a sweep of a thousand points stays small.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import joblib
import numpy as np

from core.errors import BatchscopeError, ConfigError
from core.sim_result import SimulationResult
from core.whatif import WhatIf

FIGURES = (
    "output_tokens_per_s", "requests_per_s", "goodput_per_s", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "tpot_p50",
    "tpot_p95", "e2e_p50", "e2e_p95", "mean_batch", "full_batch_share", "preemptions", "peak_kv_usage", "intensity", "mfu", "mbu",
)  # fmt: skip
MAX_POINTS = 20_000
NICE = 10
KNOCK_S = 5.0


class SearchMethod(StrEnum):
    """How points are chosen."""

    GRID = "grid"
    RANDOM = "random"
    GUIDED = "guided"  # Optuna's TPE sampler, towards the goals


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob and the values it may take; `labels` name values that are objects (devices, models)."""

    knob: str
    values: tuple[Any, ...]
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError(f"axis {self.knob} has no value")
        if self.labels and len(self.labels) != len(self.values):
            raise ConfigError(f"axis {self.knob} has {len(self.values)} values and {len(self.labels)} labels")

    def label(self, index: int) -> str:
        """A value in words."""
        if self.labels:
            return self.labels[index]
        value = self.values[index]
        return str(getattr(value, "name", value))


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that should be high (`maximise`) or low."""

    figure: str
    maximise: bool = True


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What to search.

    Attributes:
        points: how many points RANDOM and GUIDED try; GRID tries all.
        goals: directions of the guided search.
    """

    base: WhatIf
    axes: tuple[Axis, ...]
    method: SearchMethod = SearchMethod.GRID
    points: int = 64
    goals: tuple[Goal, ...] = (Goal("output_tokens_per_s"), Goal("ttft_p95", maximise=False))
    seed: int = 0

    def __post_init__(self) -> None:
        knobs = [a.knob for a in self.axes]
        if not knobs or len(set(knobs)) != len(knobs):
            raise ConfigError(f"a sweep needs at least one axis, each knob once; found {knobs}")
        if not 1 <= self.points <= MAX_POINTS:
            raise ConfigError(f"points is {self.points}; give a whole number from 1 to {MAX_POINTS}")
        if self.method is SearchMethod.GRID and self.size > MAX_POINTS:
            raise ConfigError(f"this grid has {self.size} points, more than {MAX_POINTS}; drop an axis or search at random")

    @property
    def size(self) -> int:
        """Points of the full grid."""
        return math.prod(len(a.values) for a in self.axes)

    @property
    def total(self) -> int:
        """Points that will be tried."""
        return self.size if self.method is SearchMethod.GRID else min(self.points, self.size)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One point: values as indices and words, its figures, or why it could not run."""

    indices: tuple[int, ...]
    settings: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, float | None], ...] = ()
    problem: str = ""

    def figure(self, name: str) -> float | None:
        """A figure by name, None where it has no value."""
        return dict(self.figures).get(name)


def cost_figures(whatif: WhatIf, result: SimulationResult) -> dict[str, float | None]:
    """What a point costs: device hours and (with a price) money for a million output tokens, and money an hour."""
    devices, rate = whatif.tensor_parallel, result.output_tokens_per_s
    hours = devices * 1e6 / (3600.0 * rate) if rate > 0 else None
    price = whatif.device.price_per_hour
    return {
        "device_hours_per_million_tokens": hours,
        "cost_per_million_tokens": hours * price if hours is not None and price else None,
        "cost_per_hour": price * devices if price else None,
    }


def evaluate(base: WhatIf, axes: tuple[Axis, ...], indices: tuple[int, ...]) -> SweepRow:
    """Run one point; a configuration that makes no sense is a row with its problem, not an error."""
    settings = tuple((a.knob, a.label(i)) for a, i in zip(axes, indices, strict=True))
    try:
        point = base
        for axis, index in zip(axes, indices, strict=True):
            point = point.with_knob(axis.knob, axis.values[index])
        result = point.run()
    except BatchscopeError as error:
        return SweepRow(indices, settings, problem=str(error))
    figures = {name: result.figure(name) for name in FIGURES} | cost_figures(point, result)
    return SweepRow(indices, settings, tuple(figures.items()))


def grid(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """All points, the last axis fastest."""
    return itertools.product(*(range(len(a.values)) for a in axes))


def sample(axes: Sequence[Axis], points: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Different random points, repeatable by seed."""
    shape = [len(a.values) for a in axes]
    rng = np.random.default_rng(seed)
    for flat in rng.choice(math.prod(shape), size=min(points, math.prod(shape)), replace=False):
        yield tuple(int(i) for i in np.unravel_index(int(flat), shape))


def run_sweep(
    spec: SweepSpec,
    *,
    n_jobs: int = 1,
    cluster: str = "",
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[SweepRow]:
    """Run a sweep; rows come as they are done, a batch of workers at a time, and the caller may stop in between.

    Args:
        n_jobs: worker processes on this machine (1 stays in this process); on a cluster, points in flight.
        cluster: "dask:ADDRESS" or "ray:ADDRESS" of a running cluster (e.g. "dask:tcp://10.0.0.5:8786"); "" stays here.

    Raises:
        ConfigError: for a cluster that cannot be used.
    """
    source = _Guided(spec) if spec.method is SearchMethod.GUIDED else _Fixed(spec)
    options = {"initializer": give_way} if n_jobs != 1 and not cluster else {}
    with _cluster(cluster):
        n_jobs = min(n_jobs, _most_jobs(cluster))
        yield from _batches(spec, source, joblib.Parallel(n_jobs=n_jobs, **options), n_jobs, should_stop)


def _batches(
    spec: SweepSpec, source: _Fixed | _Guided, pool: joblib.Parallel, n_jobs: int, should_stop: Callable[[], bool] | None
) -> Iterator[SweepRow]:
    with pool as parallel:
        done = 0
        while done < spec.total and not (should_stop is not None and should_stop()):
            batch = source.ask(min(max(n_jobs, 1) * 2 if n_jobs != 1 else 1, spec.total - done))
            if not batch:
                return
            rows = parallel(joblib.delayed(evaluate)(spec.base, spec.axes, indices) for indices in batch)
            for row in rows:
                source.tell(row)
                done += 1
                yield row


def give_way() -> None:
    """In a worker process of this machine: let a live engine go first, a sweep takes minutes."""
    if hasattr(os, "nice"):
        os.nice(NICE)


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Joblib's backend on a cluster; the connection to it ends with the sweep, unless it was there before."""
    kind, _, rest = address.partition(":")
    if not address:
        yield
        return
    if kind not in ("dask", "ray") or not rest:
        raise ConfigError(f"cluster {address!r} is not understood; give dask:ADDRESS or ray:ADDRESS")
    try:
        _knock(rest)
        leave = _join_dask(rest) if kind == "dask" else _join_ray(rest)
    except ImportError:
        package = "dask[distributed]" if kind == "dask" else "ray"
        raise ConfigError(f"a {kind} cluster needs the package {package}; install it beside this one") from None
    except (OSError, ValueError, RuntimeError) as error:  # nothing there, no such address, or another version of the library
        raise ConfigError(f"the {kind} cluster at {rest} cannot be reached: {error}") from None
    try:
        with joblib.parallel_config(backend=kind):
            yield
    finally:
        leave()


def _knock(address: str) -> None:
    """See that something listens at HOST:PORT or SCHEME://HOST:PORT; Ray alone would try for minutes.

    Raises:
        OSError: if nothing does. Addresses of another form (Ray's "auto") are left to the cluster's own library.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise OSError(str(error)) from None
    if host and port:
        socket.create_connection((host, port), timeout=KNOCK_S).close()


def _join_dask(address: str) -> Callable[[], None]:
    client = importlib.import_module("distributed").Client(address, set_as_default=True)
    leave: Callable[[], None] = client.close
    return leave


def _join_ray(address: str) -> Callable[[], None]:
    ray = importlib.import_module("ray")
    mine = not ray.is_initialized()
    ray.init(address=address, ignore_reinit_error=True)
    importlib.import_module("ray.util.joblib").register_ray()
    leave: Callable[[], None] = ray.shutdown if mine else _nothing
    return leave


def _nothing() -> None:
    """Leave a connection as it was found."""


def _most_jobs(address: str) -> int:
    """Points that may be in flight: Ray's pool refuses more than the cluster has processors."""
    if not address.startswith("ray:"):
        return MAX_POINTS
    return max(int(importlib.import_module("ray").cluster_resources().get("CPU", 1)), 1)


class _Fixed:
    """Points known beforehand."""

    def __init__(self, spec: SweepSpec) -> None:
        points = grid(spec.axes) if spec.method is SearchMethod.GRID else sample(spec.axes, spec.points, spec.seed)
        self._points = points

    def ask(self, count: int) -> list[tuple[int, ...]]:
        return list(itertools.islice(self._points, count))

    def tell(self, row: SweepRow) -> None:
        """Nothing is learnt."""


class _Guided:
    """Optuna's TPE sampler over the indices of the axes; each point is tried once."""

    def __init__(self, spec: SweepSpec) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._spec = optuna, spec
        self._study = optuna.create_study(
            directions=["maximize" if g.maximise else "minimize" for g in spec.goals],
            sampler=optuna.samplers.TPESampler(seed=spec.seed, constant_liar=True),
        )
        self._open: dict[tuple[int, ...], Any] = {}
        self._seen: set[tuple[int, ...]] = set()

    def ask(self, count: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for _ in range(50 * count):
            if len(found) == count:
                break
            trial = self._study.ask()
            point = tuple(trial.suggest_categorical(a.knob, list(range(len(a.values)))) for a in self._spec.axes)
            if point in self._seen:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                continue
            self._seen.add(point)
            self._open[point] = trial
            found.append(point)
        missing = (p for p in grid(self._spec.axes) if p not in self._seen)
        for point in itertools.islice(missing, count - len(found)):  # the sampler repeats itself: fill up
            self._seen.add(point)
            found.append(point)
        return found

    def tell(self, row: SweepRow) -> None:
        trial = self._open.pop(row.indices, None)
        if trial is None:
            return
        values = [v for v in (row.figure(g.figure) for g in self._spec.goals) if v is not None]
        if len(values) < len(self._spec.goals):
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, values)


# -- what is best ------------------------------------------------------------------------------------------


def pareto_front(rows: Sequence[SweepRow], goals: Sequence[Goal]) -> list[SweepRow]:
    """Rows that no other row beats in every goal, in order of the first goal; rows without a value are left out."""
    scored = []
    for row in rows:
        values = [(row.figure(g.figure), g.maximise) for g in goals]
        score = tuple(-v if maximise else v for v, maximise in values if v is not None)
        if len(score) == len(goals):
            scored.append((score, row))
    front = [
        (score, row)
        for score, row in scored
        if not any(other != score and all(o <= s for o, s in zip(other, score, strict=True)) for other, _ in scored)
    ]
    return [row for _, row in sorted(front, key=lambda pair: pair[0])]


def best_under(rows: Sequence[SweepRow], goal: Goal, limits: dict[str, float]) -> SweepRow | None:
    """The best row whose figures are all at or below their limits (e.g. {"ttft_p95": 0.5}); None if there is none."""

    def within(row: SweepRow) -> bool:
        found = [(row.figure(name), most) for name, most in limits.items()]
        return all(value is not None and value <= most for value, most in found)

    fitting = [(row.figure(goal.figure), row) for row in rows if within(row)]
    ranked = [(value, row) for value, row in fitting if value is not None]
    if not ranked:
        return None
    return (max if goal.maximise else min)(ranked, key=lambda pair: pair[0])[1]
