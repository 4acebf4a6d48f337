"""What a change of settings becomes before it reaches the engine: checked against the limits, all or none.

Functions without state; called where the present settings are known, at the step boundary, or before a command is queued.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from core.config import CacheConfig, EngineConfig, SchedulerConfig, check_pair, replace_knobs
from core.control import LiveLimits
from core.engine import Engine
from core.errors import BatchscopeError, ConfigError, ControlRefused
from core.load_spec import ArrivalProcess, LoadSpec


class Keep(Enum):
    """Marks a setting that stays as it is, where None has a meaning of its own."""

    KEEP = "keep"


KEEP = Keep.KEEP


def check_number(name: str, value: Any, most: int) -> None:
    """Refuse what is no whole number from 1 to `most` with ControlRefused."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ControlRefused(f"{name} is {value!r}; this dashboard allows a whole number from 1 to {most}")


def words_of(change: Any, before: Any = None) -> str:
    """A change in a few words, for the audit list: "max_num_seqs 32 to 64".

    Args:
        change: knobs by name, a whole configuration or load, or None for "off".
        before: what it changes, if that is known; only what differs is told of a whole one.
    """
    if change is None:
        return "off"
    if isinstance(change, Mapping):
        named = dict(change)
    elif dataclasses.is_dataclass(change) and type(change) is type(before):
        fields = [f.name for f in dataclasses.fields(change)]
        named = {n: getattr(change, n) for n in fields if getattr(change, n) != getattr(before, n)}
    else:
        return str(getattr(change, "label", type(change).__name__))
    return ", ".join(_turned(name, value, before) for name, value in named.items()) or "as it was"


def _turned(name: str, value: Any, before: Any) -> str:
    new = _short(value)
    old = _short(getattr(before, name, None)) if hasattr(before, name) else None
    return f"{name} {new}" if old is None or old == new else f"{name} {old} to {new}"


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_short(v) for v in value)})"
    if isinstance(value, Enum):
        return str(value.value)
    return str(getattr(value, "label", None) or getattr(value, "name", None) or value)


def resolve_changes(
    config: EngineConfig,
    scheduler: Mapping[str, Any] | SchedulerConfig | None,
    cache: Mapping[str, Any] | CacheConfig | None,
) -> tuple[SchedulerConfig, CacheConfig]:
    """The settings that a change asks for.

    Raises:
        ConfigError: for an unknown knob, a value out of range, or a pair that does not fit.
    """
    new_scheduler: SchedulerConfig = (
        scheduler if isinstance(scheduler, SchedulerConfig) else replace_knobs(config.scheduler, **(scheduler or {}))
    )
    new_cache: CacheConfig = cache if isinstance(cache, CacheConfig) else replace_knobs(config.cache, **(cache or {}))
    check_pair(new_scheduler, new_cache)
    return new_scheduler, new_cache


def check_load(spec: LoadSpec, limits: LiveLimits, max_model_len: int | None = None) -> None:
    """Refuse a load above the limits, or one of which no request can ever run.

    Raises:
        ControlRefused: with the value found and the limit.
    """
    process = spec.process
    if process is ArrivalProcess.CLOSED_LOOP:
        found, name, most = float(spec.users), "users", float(limits.max_users)
    elif process is ArrivalProcess.BURST:
        found, name, most = float(spec.burst_size), "burst_size", float(limits.max_burst)
    else:
        found, name, most = spec.rate_per_s, "rate_per_s", limits.max_rate_per_s
    if found > most:
        raise ControlRefused(f"{name} is {found:g}; this dashboard allows at most {most:g}")
    shortest = spec.prompt_tokens.low
    if max_model_len is not None and shortest >= max_model_len:
        raise ControlRefused(
            f"the shortest prompt of this load has {shortest} tokens, but the model takes {max_model_len} in all;"
            " choose shorter prompts"
        )


def apply_both(engine: Engine, scheduler: SchedulerConfig, cache: CacheConfig) -> None:
    """Have an engine take both settings or neither.

    They fit each other, but for a moment each must also fit the other's old value, so the order depends on them.

    Raises:
        ConfigError, ExecutorError: as the engine's setters; the old settings are then in force again.
    """
    old_scheduler, old_cache = engine.config.scheduler, engine.config.cache
    orders: list[tuple[Callable[[], None], Callable[[], None]]] = []
    if scheduler != old_scheduler:
        orders.append((lambda: engine.set_scheduler(scheduler), lambda: engine.set_scheduler(old_scheduler)))
    if cache != old_cache:
        orders.append((lambda: engine.set_cache(cache), lambda: engine.set_cache(old_cache)))
    if len(orders) == 2 and not _fit(scheduler, old_cache):
        orders.reverse()
    undo: list[Callable[[], None]] = []
    for order, back in orders:
        try:
            order()
        except BatchscopeError:
            for step_back in reversed(undo):
                step_back()
            raise
        undo.append(back)


def _fit(scheduler: SchedulerConfig, cache: CacheConfig) -> bool:
    try:
        check_pair(scheduler, cache)
    except ConfigError:
        return False
    return True
