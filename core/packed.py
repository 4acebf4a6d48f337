"""Frozen records that are kept for long and seldom read, as compressed bytes: about a thirtieth of what the objects take.

    packed     values -> pickle (each kind of `KINDS` as its fields) -> zlib, level 1
    unpacked   the same values again, equal in value and in type, equal objects of one pack as one object

Columns of many records pack better than the records: like stands beside like. The bytes never leave the process.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from typing import Any

from core.engine_commands import Submit
from core.outputs import NewRequestData, PassedOver, Preemption, TopLogprobs
from core.request import SLO, SamplingParams

LEVEL = 1
"""More effort finds 20 % more and takes ten times as long."""

KINDS: tuple[type[Any], ...] = (Submit, SamplingParams, SLO, NewRequestData, PassedOver, Preemption, TopLogprobs)
"""Flat frozen records that are written by their fields, without the Python call an object that pickle makes for them."""


def fields_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the values of all fields of a record, in order; `kind` has two fields or more."""
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*[f.name for f in fields(kind)])
    return get


def columns_of(kind: type[Any]) -> Callable[[Sequence[Any]], list[tuple[Any, ...]]]:
    """A function that turns records into columns, one a field; no column for no record."""
    values = fields_of(kind)
    return lambda records: list(zip(*map(values, records), strict=True))


def _by_fields(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    values = fields_of(kind)
    return lambda record: (kind, values(record))


_TABLE = {kind: _by_fields(kind) for kind in KINDS}


def packed(values: object) -> bytes:
    """The values as bytes; about 0.1 us a number or reference."""
    file = BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(values)
    return zlib.compress(file.getbuffer(), LEVEL)


def unpacked(content: bytes) -> Any:
    """What `packed` was given; only for bytes that this process made."""
    return pickle.loads(zlib.decompress(content))
