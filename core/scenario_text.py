"""The other way: a scenario as the TOML text that reads back to it, and the list of all keys.

Only what differs from the defaults is written, so a saved scenario stays short and follows later defaults.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.config import CacheConfig, EngineConfig, SchedulerConfig, TenantConfig
from core.devices import device_named
from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import LoadSpec, TenantShare
from core.scenario import CUSTOM_DEVICE_KEYS, MODEL_KEYS, Scenario, TraceSource
from core.toml_lines import write_toml


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """One key of the format: table, key, default as TOML would write it ("" for none)."""

    table: str
    key: str
    default: str


def scenario_toml(scenario: Scenario) -> str:
    """The text of a scenario: only what differs from the defaults, readable by `parse_scenario`."""
    engine = scenario.engine
    content: dict[str, Any] = {}
    for key in ("name", "description"):
        if getattr(scenario, key):
            content[key] = getattr(scenario, key)
    content["model"] = {"model": engine.model} | _changed(engine, EngineConfig(), MODEL_KEYS)
    content["scheduler"] = _changed(engine.scheduler, SchedulerConfig())
    content["cache"] = _changed(engine.cache, CacheConfig())
    if scenario.load is not None:
        content["load"] = _changed(scenario.load, LoadSpec())
    if scenario.trace is not None:
        content["trace"] = {"path": scenario.trace.path} | _changed(scenario.trace, TraceSource(scenario.trace.path))
    if scenario.device is not None:
        content["device"] = _device_table(scenario)
    return write_toml({k: v for k, v in content.items() if v != {} or k == "load"})


def schema() -> tuple[SchemaRow, ...]:
    """Every key that a scenario may hold, with its default."""
    rows = [SchemaRow("", "name", ""), SchemaRow("", "description", "")]
    engine = EngineConfig()
    rows += [SchemaRow("model", k, _default_text(getattr(engine, k))) for k in MODEL_KEYS]
    for table, shown in (("scheduler", SchedulerConfig()), ("cache", CacheConfig()), ("load", LoadSpec())):
        rows += [SchemaRow(table, f.name, _default_text(getattr(shown, f.name))) for f in dataclasses.fields(shown)]
    rows += [SchemaRow("scheduler.tenants", f.name, "") for f in dataclasses.fields(TenantConfig)]
    rows += [SchemaRow("load.tenants", f.name, "") for f in dataclasses.fields(TenantShare)]
    rows += [SchemaRow("trace", f.name, _default_text(getattr(TraceSource(""), f.name))) for f in dataclasses.fields(TraceSource)]
    rows += [SchemaRow("device", k, "") for k in ("name", *CUSTOM_DEVICE_KEYS, "tensor_parallel", "gpu_memory_utilization")]
    return tuple(rows)


def _device_table(scenario: Scenario) -> dict[str, Any]:
    d = scenario.device
    assert d is not None
    table: dict[str, Any] = {"name": d.name}
    try:
        is_preset = device_named(d.name) == d
    except ConfigError:
        is_preset = False
    if not is_preset:
        table |= {
            "peak_tflops": d.peak_flops / 1e12,
            "bandwidth_gb_s": d.memory_bandwidth / 1e9,
            "memory_gb": d.memory_bytes / 1e9,
            "link_gb_s": d.link_bandwidth / 1e9,
            "host_gb_s": d.host_bandwidth / 1e9,
            "step_overhead_s": d.step_overhead_s,
            "price_per_hour": d.price_per_hour,
        }
    return table | {"tensor_parallel": scenario.tensor_parallel, "gpu_memory_utilization": scenario.gpu_memory_utilization}


def _changed(value: Any, default: Any, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    names = keys if keys is not None else tuple(f.name for f in dataclasses.fields(value))
    return {n: _plain(getattr(value, n)) for n in names if getattr(value, n) != getattr(default, n)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, LengthSpec):
        if value.kind.value == "empirical":
            return {"kind": "empirical", "values": list(value.values)}
        shape = {"median": value.median, "sigma": value.sigma} if value.kind.value == "lognormal" else {}
        return {"kind": value.kind.value, "low": value.low, "high": value.high} | shape
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if getattr(value, f.name) is not None}
    return value


def _default_text(value: Any) -> str:
    if value is None or value == ():
        return ""
    return write_toml({"x": _plain(value)}).removeprefix("x = ").strip()
