"""Frozen dataclasses as plain data and back, and one canonical text for them.

    dataclass -> dict of fields     enum -> its value     tuple -> list     float -> shortest text that reads back equal

Two equal objects always give the same bytes, so a run can be compared with another byte for byte.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from functools import lru_cache
from typing import Any

from core.errors import TraceError


def to_plain(value: Any) -> Any:
    """Turn a dataclass, enum, tuple or mapping into dicts, lists and scalars.

    Raises:
        TypeError: for anything else; it would not read back.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no plain form")


def canonical_json(value: Any) -> str:
    """One line of JSON: keys sorted, no spaces, ASCII, no NaN."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@lru_cache(maxsize=128)
def _field_types(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def from_plain(kind: Any, value: Any) -> Any:
    """Build a value of the annotated type from plain data. Fields that are absent take their defaults; a type may
    have a `from_older` that puts what an earlier version wrote into today's words.

    Raises:
        TraceError: for data that do not fit the type, naming what was found.
    """
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _from_union(typing.get_args(kind), value)
    if origin is tuple:
        return _from_tuple(typing.get_args(kind), value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _from_fields(kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise TraceError(f"{value!r} is not one of {', '.join(str(m.value) for m in kind)}") from None
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise TraceError(f"found {value!r} where {getattr(kind, '__name__', kind)} is expected")


def _from_union(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    if len(rest) == 1:
        return from_plain(rest[0], value)
    raise TraceError(f"a value of {len(rest)} possible kinds has no plain form")


def _from_tuple(options: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TraceError(f"found {value!r} where a list is expected")
    if len(options) == 2 and options[1] is Ellipsis:
        return tuple(from_plain(options[0], item) for item in value)
    if len(options) != len(value):
        raise TraceError(f"found {len(value)} items where {len(options)} are expected")
    return tuple(from_plain(option, item) for option, item in zip(options, value, strict=True))


def _from_fields(kind: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TraceError(f"found {value!r} where {kind.__name__} is expected")
    if from_older := getattr(kind, "from_older", None):
        value = from_older(value)
    known = _field_types(kind)
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise TraceError(f"{kind.__name__} has no field {', '.join(unknown)}; the file may be of a newer version")
    try:
        return kind(**{name: from_plain(known[name], item) for name, item in value.items()})
    except TypeError as error:
        raise TraceError(f"{kind.__name__} cannot be read: {error}") from error
