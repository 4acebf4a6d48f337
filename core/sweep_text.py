"""Axes of a sweep as a person writes them: one knob a line, its values after an equals sign.

max_num_seqs = 16, 64, 256
batch_policy = chunked, whole_prompts
rate_per_s = 2 to 32 in 5          five values, evenly spaced in the logarithm
device = H100 SXM, L40S            by name; "this machine" is the base
"""

from __future__ import annotations

from typing import Any

import numpy as np

from core.config import OFF, OFF_KNOBS
from core.devices import DeviceSpec, device_named
from core.errors import ConfigError
from core.models_catalog import model_named
from core.sweep import Axis
from core.whatif import WhatIf

HERE = "this machine"
_WORDS = {"true": True, "on": True, "false": False, "off": False}
MAX_VALUES = 200


def parse_axes(text: str, base: WhatIf, devices: dict[str, DeviceSpec] | None = None) -> tuple[Axis, ...]:
    """Read the axes.

    Args:
        devices: devices of the caller's own by name (e.g. presets with a price); others are looked up among the presets.

    Raises:
        ConfigError: with the line and what is wrong there.
    """
    axes: list[Axis] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        knob, equals, rest = (part.strip() for part in words.partition("="))
        if not equals or not rest:
            raise ConfigError(f"line {number}: {words!r} is no axis; write a knob, an equals sign and its values")
        try:
            axis = _axis(knob, rest, base, devices or {})
            base.with_knob(knob, axis.values[0])
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
        except (TypeError, AttributeError) as error:
            raise ConfigError(f"line {number}: {knob} does not take {rest!r}: {error}") from None
        axes.append(axis)
    if not axes:
        raise ConfigError("there is no axis; write e.g. max_num_seqs = 16, 64, 256")
    return tuple(axes)


def parse_prices(text: str) -> dict[str, float]:
    """Prices an hour by device: "H100 SXM = 2.5" a line.

    Raises:
        ConfigError: with the line and what is wrong there.
    """
    prices: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, _, value = (part.strip() for part in line.partition("="))
        device_named(name)
        try:
            prices[name] = float(value)
        except ValueError:
            raise ConfigError(f"line {number}: the price of {name} is {value!r}; give a number") from None
    return prices


def _axis(knob: str, rest: str, base: WhatIf, devices: dict[str, DeviceSpec]) -> Axis:
    pieces = [p.strip() for p in rest.split(",") if p.strip()]
    if knob == "device":
        values = tuple(base.device if p == HERE else devices.get(p) or device_named(p) for p in pieces)
        return Axis(knob, values, tuple(pieces))
    if knob == "model":
        return Axis(knob, tuple(base.model if p == base.model.name else model_named(p) for p in pieces), tuple(pieces))
    values_of: list[Any] = []
    for piece in pieces:
        is_off = knob in OFF_KNOBS and piece.lower() == OFF
        values_of += _span(piece) if " to " in piece else [None if is_off else _value(piece)]
    if len(values_of) > MAX_VALUES:
        raise ConfigError(f"{knob} has {len(values_of)} values; give at most {MAX_VALUES}")
    return Axis(knob, tuple(dict.fromkeys(values_of)))


def _span(text: str) -> list[int | float]:
    """ "2 to 32 in 5": evenly spaced in the logarithm, whole numbers where both ends are."""
    low_text, _, rest = text.partition(" to ")
    high_text, _, count_text = rest.partition(" in ")
    low, high, count = _value(low_text.strip()), _value(high_text.strip()), _value(count_text.strip() or "5")
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (low, high, count)) or not 0 < low < high:
        raise ConfigError(f"{text!r} is no span; write e.g. 2 to 32 in 5, both above 0")
    if not 2 <= count <= MAX_VALUES:
        raise ConfigError(f"{text!r} asks for {count} values; give 2 to {MAX_VALUES}")
    found = np.geomspace(float(low), float(high), int(count))
    whole = isinstance(low, int) and isinstance(high, int)
    return [round(float(v)) if whole else float(f"{v:.4g}") for v in found]


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
