"""Latencies of ended requests: histograms on a logarithmic axis, and percentiles over time by tenant.

    TTFT            ITL             TPOT            E2E              rules: p50  p95  p99
    _.:|||:._  |    .|||:.   |      ..||..          __.:||:.         colours: tenants, stacked

Bins are eighths of a decade, so they never move: a value stays in its bin while others come and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from core.charts import formats, style
from core.charts.kv import Spec, base
from core.latency import percentiles
from core.records import RequestRecord
from core.slo import counts
from core.snapshot import Percentiles

METRICS: dict[str, tuple[str, str]] = {
    "ttft": ("TTFT", "time to first token, from arrival"),
    "itl": ("ITL", "gap between two output tokens"),
    "tpot": ("TPOT", "mean time per output token after the first"),
    "e2e": ("E2E", "arrival to last token"),
}
"""Key -> (name, meaning)."""

BINS_A_DECADE = 8
BUCKETS = 24
MAX_TENANTS = 8
OTHERS = "others"
CATEGORIES = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#0072B2", "#8A939E")


def value_of(record: RequestRecord, metric: str) -> float | None:
    """The one value of a request, s (not for "itl", of which it has many).

    Raises:
        KeyError: for an unknown metric.
    """
    return {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}[metric]


def shown_tenants(records: Sequence[RequestRecord]) -> dict[str, str]:
    """Tenant -> name in the figures: the busiest by name, the rest as "others"."""
    requests = Counter(r.tenant for r in records)
    busiest = sorted(requests, key=lambda name: (-requests[name], name))
    kept = busiest if len(busiest) <= MAX_TENANTS else busiest[: MAX_TENANTS - 1]
    return {name: name if name in kept else OTHERS for name in busiest}


Values = npt.NDArray[np.float64]


class Digest:
    """The values of a set of ended requests as columns, and the figures made of them, each made once.

    Attributes:
        records: newest first.
        names: tenant -> name in the figures.
    """

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self.records = tuple(records)
        self.names = shown_tenants(records)
        self._counted = [r for r in records if counts(r)]
        self._made: dict[tuple[str, str], Any] = {}

    def _once(self, what: str, metric: str, make: Callable[[], Any]) -> Any:
        if (what, metric) not in self._made:
            self._made[what, metric] = make()
        return self._made[what, metric]

    def by_tenant(self) -> list[tuple[str, list[RequestRecord]]]:
        """(name, its records that count) by name."""
        groups: dict[str, list[RequestRecord]] = {}
        for record in self._counted:
            groups.setdefault(self.names[record.tenant], []).append(record)
        return sorted(groups.items())

    def values(self, metric: str) -> dict[str, Values]:
        """Values by shown tenant, s."""
        return cast("dict[str, Values]", self._once("values", metric, lambda: self._values(metric)))

    def _values(self, metric: str) -> dict[str, Values]:
        return {name: _column(members, metric) for name, members in self.by_tenant()}

    def overall(self, metric: str) -> Percentiles:
        """p50, p95, p99 over the values of all tenants."""
        found = self.values(metric)
        make = lambda: percentiles(np.concatenate([*found.values(), np.empty(0)]))  # noqa: E731
        return cast("Percentiles", self._once("overall", metric, make))

    def of_tenant(self, name: str, metric: str) -> Percentiles:
        """p50, p95, p99 of one shown tenant."""
        return cast("Percentiles", self._once(f"of {name}", metric, lambda: percentiles(self.values(metric)[name])))

    def histogram(self, metric: str) -> pd.DataFrame:
        """Columns tenant, low, high (s), count, below, above (stacked over the tenants); one row a bin and tenant with any."""
        return cast("pd.DataFrame", self._once("histogram", metric, lambda: histogram_frame(self.values(metric))))

    def over_time(self, metric: str) -> pd.DataFrame:
        """See `over_time_frame`."""
        return cast("pd.DataFrame", self._once("over time", metric, lambda: over_time_frame(self.by_tenant(), metric)))


def _column(records: Sequence[RequestRecord], metric: str) -> Values:
    if metric == "itl":
        return np.fromiter(chain.from_iterable([r.itl_s for r in records]), np.float64)
    found = [value_of(r, metric) for r in records]
    return np.array([v for v in found if v is not None], dtype=np.float64)


_latest: list[tuple[tuple[str, float, int], Digest]] = []


def digest_of(records: Sequence[RequestRecord]) -> Digest:
    """The digest of these records (newest first); the same one until another request ends. Any thread."""
    key = (records[0].request_id, records[0].finished_s, len(records)) if records else ("", 0.0, 0)
    held = _latest[:]
    if held and held[0][0] == key:
        return held[0][1]
    digest = Digest(records)
    _latest[:] = [(key, digest)]
    return digest


def histogram_frame(values: Mapping[str, Values]) -> pd.DataFrame:
    """Columns as `Digest.histogram`; the bins are the same for all tenants."""
    rows: list[tuple[str, float, float, int, int, int]] = []
    tops: dict[int, int] = {}
    for tenant, column in values.items():
        places, numbers = np.unique(np.floor(np.log10(column[column > 0]) * BINS_A_DECADE).astype(int), return_counts=True)
        for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
            below = tops.get(place, 0)
            tops[place] = below + number
            edges = 10 ** (place / BINS_A_DECADE), 10 ** ((place + 1) / BINS_A_DECADE)
            rows.append((tenant, *edges, number, below, below + number))
    return pd.DataFrame(rows, columns=["tenant", "low", "high", "count", "below", "above"])


def rule_frame(found: Percentiles) -> pd.DataFrame:
    """Columns value (s), label ("p95 340 ms")."""
    named = zip((found.p50, found.p95, found.p99), ("p50", "p95", "p99"), strict=True)
    rows = [(value, f"{name} {formats.seconds(value)}") for value, name in named if value]
    return pd.DataFrame(rows, columns=["value", "label"])


_TICKS = [round(k * 10.0**power, 9) for power in range(-5, 5) for k in (1, 3)]
_COUNT_LABEL = "datum.value < 1000 ? datum.value : format(datum.value, '~s')"
_TIME_LABEL = "datum.value >= 1 ? format(datum.value, '~g') + ' s' : format(datum.value * 1000, '~g') + ' ms'"


def _tenant(legend: bool) -> Spec:
    found: Spec = {"field": "tenant", "type": "nominal", "title": None, "scale": {"range": list(CATEGORIES)}}
    return found if legend else {**found, "legend": None}


@lru_cache(maxsize=16)
def histogram_spec(theme: style.Theme, height: int = 150) -> Spec:
    """One histogram; data sets "bins" and "rules"."""
    x: Spec = {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 14},
        "axis": {
            "title": None,
            "values": _TICKS,
            "labelExpr": _TIME_LABEL,
            "grid": False,
            "labelOverlap": "greedy",
            "labelSeparation": 10,
        },
    }
    bars: Spec = {
        "data": {"name": "bins"},
        "mark": {"type": "rect", "clip": True, "stroke": theme.ground, "strokeWidth": 0.6},
        "encoding": {
            "x": {**x, "field": "low"},
            "x2": {"field": "high"},
            "y": {
                "field": "above",
                "type": "quantitative",
                "scale": {"zero": True, "nice": False},
                "axis": {"title": None, "tickCount": 3, "labelExpr": _COUNT_LABEL, "grid": True, "tickMinStep": 1},
            },
            "y2": {"field": "below"},
            "color": _tenant(legend=False),
            "tooltip": [
                {"field": "tenant", "type": "nominal"},
                {"field": "low", "type": "quantitative", "format": ".3~s", "title": "from (s)"},
                {"field": "high", "type": "quantitative", "format": ".3~s", "title": "to (s)"},
                {"field": "count", "type": "quantitative", "format": ",d"},
            ],
        },
    }
    rules: Spec = {
        "data": {"name": "rules"},
        "mark": {"type": "rule", "color": theme.text, "strokeWidth": 1, "opacity": 0.75},
        "encoding": {"x": {**x, "field": "value"}, "tooltip": [{"field": "label", "type": "nominal"}]},
    }
    return {**base(theme, height), "layer": [bars, rules]}


def over_time_frame(by_tenant: Sequence[tuple[str, Sequence[RequestRecord]]], metric: str) -> pd.DataFrame:
    """Columns tenant, end_s, p50, p95 (s), requests: by equal spans of the time at which requests ended."""
    columns = ["tenant", "end_s", "p50", "p95", "requests"]
    ends = [r.finished_s for _, members in by_tenant for r in members]
    if not ends:
        return pd.DataFrame(columns=columns).astype({"tenant": "object"} | dict.fromkeys(columns[1:], "float64"))
    first = min(ends)
    width = (max(ends) - first) / BUCKETS or 1.0
    rows = []
    for tenant, members in by_tenant:
        buckets: dict[int, list[RequestRecord]] = {}
        for record in members:
            buckets.setdefault(min(int((record.finished_s - first) / width), BUCKETS - 1), []).append(record)
        for bucket, inside in sorted(buckets.items()):
            found = percentiles(_column(inside, metric))
            if found.count:
                rows.append((tenant, first + (bucket + 1) * width, found.p50, found.p95, float(len(inside))))
    return pd.DataFrame(rows, columns=columns)


@lru_cache(maxsize=4)
def over_time_spec(theme: style.Theme, height: int = 200) -> Spec:
    """p95 as a bold line with dots, p50 as a thin one, a colour for each tenant."""
    x: Spec = {
        "field": "end_s",
        "type": "quantitative",
        "scale": {"zero": False, "nice": False, "padding": 6},
        "axis": {"title": "end of the request, engine time (s)", "labelExpr": style.THIN_GROUPS, "tickCount": 8},
    }
    tip = [
        {"field": "tenant", "type": "nominal"},
        {"field": "p50", "type": "quantitative", "format": ".3~s", "title": "p50 (s)"},
        {"field": "p95", "type": "quantitative", "format": ".3~s", "title": "p95 (s)"},
        {"field": "requests", "type": "quantitative", "format": ",d"},
    ]

    def layer(field: str, mark: Spec) -> Spec:
        y: Spec = {"field": field, "type": "quantitative", "axis": {"title": "seconds", "tickCount": 5, "format": "~s"}}
        return {"mark": mark, "encoding": {"x": x, "y": y, "color": _tenant(legend=True), "tooltip": tip}}

    bold = {"type": "line", "strokeWidth": 2, "point": {"filled": True, "size": 26}}
    lines = [layer("p95", bold), layer("p50", {"type": "line", "strokeWidth": 0.9})]
    lines[0]["params"] = [style.ZOOM]
    return {**base(theme, height), "layer": lines}
