"""Parts of a picture that their first reader puts together: most pictures are looked at only in part, many not at all.

    engine's thread   copies what the part follows from (columns, values)
    first reader      makes the part; the copies go

Any thread may read. Two that read at the same time both make the part, and it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, SupportsIndex, overload

from core.snapshot import Percentiles, RequestView

Rows = tuple[RequestView, ...]


class RowsOnDemand(Sequence[RequestView]):
    """Rows of a picture; equal to, and joined with others like, the tuple that `make` returns.

    Args:
        count: how many rows there are.
        make: called at most once by each thread that looks before another has finished.
    """

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[], Rows]) -> None:
        self._count = count
        self._make: Callable[[], Rows] | None = make
        self._made: Rows | None = None

    def whole(self) -> Rows:
        """The rows as a tuple."""
        make = self._make  # read before _made: they are changed in the other order
        made = self._made
        if made is None:
            assert make is not None
            made = self._made = make()
            self._make = None
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RequestView]:
        return iter(self.whole())

    @overload
    def __getitem__(self, at: SupportsIndex) -> RequestView: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: Any) -> Any:
        return self.whole()[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowsOnDemand | tuple):
            return self.whole() == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.whole(),)


def _value(name: str, self: PercentilesOnDemand) -> float | None:
    value: float | None = getattr(self.whole(), name)
    return value


class PercentilesOnDemand(Percentiles):
    """Percentiles of `count` values, computed by the first reader; equal to those computed at once."""

    __slots__ = ("_made", "_make")
    _made: Percentiles | None
    _make: Callable[[], Percentiles] | None

    def __init__(self, count: int, make: Callable[[], Percentiles]) -> None:
        put = partial(object.__setattr__, self)
        put("count", count)
        put("_make", make)
        put("_made", None)

    def whole(self) -> Percentiles:
        """The percentiles as a plain value."""
        make = self._make  # read before _made: they are changed in the other order
        made = self._made
        if made is None:
            assert make is not None
            made = make()
            object.__setattr__(self, "_made", made)
            object.__setattr__(self, "_make", None)
        return made

    p50, p95, p99 = (property(partial(_value, name)) for name in ("p50", "p95", "p99"))

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, PercentilesOnDemand) else other)

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.whole()
        return Percentiles, (whole.count, whole.p50, whole.p95, whole.p99)
