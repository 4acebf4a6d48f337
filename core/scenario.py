"""A scenario: model, knobs, memory, load and target hardware in one TOML file that a person edits.

    [model] [scheduler] [[scheduler.tenants]] [cache] [load] [[load.tenants]] [trace] [device]     every table is optional

Keys are the field names of `EngineConfig`, `SchedulerConfig`, `TenantConfig`, `CacheConfig`, `LoadSpec` and
`DeviceSpec`, so there is one list of knobs. A value that makes no sense is refused with the line on which it stands, and
nothing of the file is used.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.config import OFF, OFF_KNOBS, CacheConfig, EngineConfig, SchedulerConfig, TenantConfig, check_pair
from core.devices import DeviceSpec, custom_device, device_named
from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import LoadSpec, TenantShare
from core.toml_lines import key_lines

MODEL_KEYS = ("model", "dtype", "weight_dtype", "device", "executor", "seed", "max_model_len", "num_threads")
CUSTOM_DEVICE_KEYS = (
    "peak_tflops", "bandwidth_gb_s", "memory_gb", "link_gb_s", "host_gb_s", "step_overhead_s", "price_per_hour",
)  # fmt: skip
MAX_FILE_BYTES = 1_000_000


class ScenarioError(ConfigError):
    """A scenario that cannot be used.

    Attributes:
        line: where in the file, from 1; 0 if it has no place.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A workload file to replay.

    Attributes:
        path: relative to the scenario file.
        time_unit: "s", "ms", "us", "ns", or "" to infer it.
        rate, prompt, output: factors on arrivals and lengths.
        max_requests: at most so many rows; 0 takes all.
    """

    path: str
    format: str = ""
    time_unit: str = ""
    rate: float = 1.0
    prompt: float = 1.0
    output: float = 1.0
    max_requests: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        engine: model and executor settings with scheduler and cache inside.
        load: a synthetic load; None leaves the running one (or there is a trace).
        device: hardware to predict for; None is this machine.
        tensor_parallel: devices in a group.
    """

    name: str = ""
    description: str = ""
    engine: EngineConfig = field(default_factory=EngineConfig)
    load: LoadSpec | None = None
    trace: TraceSource | None = None
    device: DeviceSpec | None = None
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.92


class _Reader:
    """Turns parsed TOML into objects and remembers which line to blame."""

    def __init__(self, content: dict[str, Any], lines: Mapping[tuple[str, ...], int]) -> None:
        self.content, self._lines = content, lines

    def error(self, message: str, *path: str) -> ScenarioError:
        """An error at the key of `path`, or at the nearest table above it."""
        for depth in range(len(path), 0, -1):
            line = self._lines.get(path[:depth])
            if line:
                return ScenarioError(message, line)
        return ScenarioError(message)

    def table(self, name: str) -> dict[str, Any]:
        found = self.content.get(name, {})
        if not isinstance(found, dict):
            raise self.error(f"{name} must be a table: write [{name}]", name)
        return found

    def build(self, kind: Any, values: Mapping[str, Any], *path: str) -> Any:
        """A dataclass from a table; a bad value is blamed on the first key whose change to its default cures it."""
        known = {f.name for f in dataclasses.fields(kind)}
        values = {key: None if key in OFF_KNOBS and value == OFF else value for key, value in values.items()}
        for key in values:
            if key not in known:
                raise self.error(f"unknown key {key!r} in {'.'.join(path)}; known: {', '.join(sorted(known))}", *path, key)
        try:
            return kind(**values)
        except (ConfigError, TypeError, ValueError) as error:
            raise self.error(str(error), *path, self._guilty(kind, values, str(error))) from None

    def _guilty(self, kind: Any, values: Mapping[str, Any], message: str) -> str:
        named = [key for key in values if message.startswith(key)]
        for key in (*named, *values):
            try:
                kind(**{k: v for k, v in values.items() if k != key})
            except (ConfigError, TypeError, ValueError):
                continue
            return key
        return named[0] if named else next(iter(values), "")


def parse_scenario(text: str) -> Scenario:
    """Read a scenario.

    Raises:
        ScenarioError: with the line and what was found there.
    """
    try:
        content = tomllib.loads(text.lstrip("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"this is not TOML: {_without_place(str(error))}", _place(str(error), text)) from None
    reader = _Reader(content, key_lines(text))
    known = ("name", "description", "model", "scheduler", "cache", "load", "trace", "device")
    for key in content:
        if key not in known:
            raise reader.error(f"unknown key {key!r}; known: {', '.join(known)}", key)
    scheduler = _scheduler(reader)
    cache = reader.build(CacheConfig, reader.table("cache"), "cache")
    try:
        check_pair(scheduler, cache)
    except ConfigError as error:
        raise reader.error(str(error), "scheduler") from None
    device, group, utilization = _device(reader)
    if "load" in content and "trace" in content:
        raise reader.error("a scenario has a [load] or a [trace], not both", "trace")
    return Scenario(
        name=_text(reader, "name"),
        description=_text(reader, "description"),
        engine=_engine(reader, scheduler, cache),
        load=_load(reader) if "load" in content else None,
        trace=_trace(reader) if "trace" in content else None,
        device=device,
        tensor_parallel=group,
        gpu_memory_utilization=utilization,
    )


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ScenarioError: also for a file that cannot be read.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ScenarioError(f"{path.name} has more than {MAX_FILE_BYTES} bytes; a scenario is a short text")
        return parse_scenario(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ScenarioError(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path.name} is not UTF-8 text: {error.reason} at byte {error.start}") from None


# -- parts ---------------------------------------------------------------------------------------------------


def _text(reader: _Reader, key: str) -> str:
    value = reader.content.get(key, "")
    if not isinstance(value, str):
        raise reader.error(f"{key} is {value!r}; give a text in quotes", key)
    return value


def _rows(reader: _Reader, kind: Any, values: Any, *path: str) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        raise reader.error(f"{path[-1]} must be a list of tables: write [[{'.'.join(path)}]]", *path)
    return tuple(reader.build(kind, v, *path, str(i)) for i, v in enumerate(values))


def _scheduler(reader: _Reader) -> SchedulerConfig:
    values = dict(reader.table("scheduler"))
    if "tenants" in values:
        values["tenants"] = _rows(reader, TenantConfig, values["tenants"], "scheduler", "tenants")
    config: SchedulerConfig = reader.build(SchedulerConfig, values, "scheduler")
    return config


def _engine(reader: _Reader, scheduler: SchedulerConfig, cache: CacheConfig) -> EngineConfig:
    values = dict(reader.table("model"))
    for key in values:
        if key not in MODEL_KEYS:
            raise reader.error(f"unknown key {key!r} in model; known: {', '.join(MODEL_KEYS)}", "model", key)
    config: EngineConfig = reader.build(EngineConfig, values, "model")
    return dataclasses.replace(config, scheduler=scheduler, cache=cache)


def _load(reader: _Reader) -> LoadSpec:
    values = dict(reader.table("load"))
    for key in ("prompt_tokens", "output_tokens"):
        if key in values:
            values[key] = _lengths(reader, values[key], "load", key)
    if "tenants" in values:
        values["tenants"] = _rows(reader, TenantShare, values["tenants"], "load", "tenants")
    spec: LoadSpec = reader.build(LoadSpec, values, "load")
    return spec


def _lengths(reader: _Reader, value: Any, *path: str) -> LengthSpec:
    """A whole number is a fixed length, a list observed lengths, a table the fields of LengthSpec."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"kind": "fixed", "low": value, "high": value}
    elif isinstance(value, list):
        value = {"kind": "empirical", "values": value}
    if not isinstance(value, dict):
        raise reader.error(f"{path[-1]} is {value!r}; give a number of tokens, a list, or a table with kind", *path)
    spec: LengthSpec = reader.build(LengthSpec, {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}, *path)
    return spec


def _trace(reader: _Reader) -> TraceSource:
    values = reader.table("trace")
    if not isinstance(values.get("path"), str) or not values["path"]:
        raise reader.error("a trace needs the path of a file", "trace")
    source: TraceSource = reader.build(TraceSource, values, "trace")
    for key in ("rate", "prompt", "output"):
        factor = getattr(source, key)
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor < 1e9:
            raise reader.error(f"{key} is {factor!r}; give a factor above 0", "trace", key)
    return source


def _device(reader: _Reader) -> tuple[DeviceSpec | None, int, float]:
    values = dict(reader.table("device"))
    group = values.pop("tensor_parallel", 1)
    share = values.pop("gpu_memory_utilization", 0.92)
    if not isinstance(group, int) or isinstance(group, bool) or not 1 <= group <= 1024:
        raise reader.error(f"tensor_parallel is {group!r}; give a whole number from 1 to 1024", "device", "tensor_parallel")
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share <= 1:
        raise reader.error(
            f"gpu_memory_utilization is {share!r}; give a share above 0 and at most 1", "device", "gpu_memory_utilization"
        )
    if not values:
        return None, group, float(share)
    name = str(values.pop("name", "custom"))
    for key in values:
        if key not in CUSTOM_DEVICE_KEYS:
            raise reader.error(f"unknown key {key!r} in device; known: name, {', '.join(CUSTOM_DEVICE_KEYS)}", "device", key)
    try:
        return (custom_device(name, **values) if values else device_named(name)), group, float(share)
    except (ConfigError, TypeError) as error:
        raise reader.error(str(error), "device", next((k for k in values if k in str(error)), "name")) from None


def _place(message: str, text: str) -> int:
    _, _, tail = message.partition("(at line ")
    return int(tail.split(",")[0]) if tail else max(text.count("\n"), 1)


def _without_place(message: str) -> str:
    return message.partition(" (at ")[0]
