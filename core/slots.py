"""Building frozen records fast: a frozen dataclass sets each field by name, four times as slowly as its slots do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import repeat
from operator import call
from typing import Any, TypeVar

from core.eviction import exhaust

T = TypeVar("T")


def by_slots(kind: type[T]) -> Callable[..., T]:
    """A constructor of a frozen dataclass with slots that takes every field by place and runs no __post_init__.

    Raises:
        TypeError: from the constructor, for another number of values than there are fields.
    """
    setters = tuple(kind.__dict__[f.name].__set__ for f in fields(kind))  # type: ignore[arg-type]
    new = object.__new__

    def build(*values: Any) -> T:
        if len(values) != len(setters):
            raise TypeError(f"{kind.__name__} has {len(setters)} fields, {len(values)} were given")
        made = new(kind)
        exhaust(map(call, setters, repeat(made), values))
        return made

    return build
