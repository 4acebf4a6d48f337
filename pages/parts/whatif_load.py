"""The load of a what-if: the live one as it was observed, the latest requests again, a mix of tenants, or a recorded trace.

The base run and the what-if get the same load; factors and changed numbers of this group hold for the what-if only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec
from core.prediction import live_arrivals
from core.request import SLO
from core.snapshot import EngineSnapshot
from core.traces.trace import Trace
from core.whatif import WhatIf
from core.whatif_base import ended_well, observed_load
from pages.parts import frame, whatif_trace
from pages.parts.whatif_keys import field, fresh

LIVE, AGAIN, MIX = "the live load", "the latest requests again", "a mix of tenants"
CLIENTS, TRACE = "ServeGen clients", "a trace"
SOURCES = (LIVE, AGAIN, MIX, CLIENTS, TRACE)
DEFAULT_REQUESTS = 200
MAX_REQUESTS = 5000


@dataclass(frozen=True, slots=True, eq=False)
class ChosenLoad:
    """A load as it is, and as the what-if changes it.

    Attributes:
        given: fields of `WhatIf` that name the load; `changed` those of the what-if.
        spec: the changed synthetic load, for applying it to the live engine; None for recorded ones.
    """

    given: dict[str, Any]
    changed: dict[str, Any]
    slo: SLO
    words: str
    spec: LoadSpec | None = None
    trace: Trace | None = None

    def on(self, what: WhatIf, *, scaled: bool) -> WhatIf:
        """The what-if with this load."""
        none: dict[str, Any] = {"load": None, "trace": None, "arrivals": (), "rate": 1.0, "slo": self.slo}
        return replace(what, **(none | (self.changed if scaled else self.given)))


def choose(live: WhatIf, snapshot: EngineSnapshot, load: LoadSpec | None) -> ChosenLoad:
    """Draw the group.

    Raises:
        ConfigError, TraceError: while what was given cannot be simulated; the words say what is missing.
    """
    source = st.selectbox(
        "Requests",
        SOURCES,
        index=SOURCES.index(fresh("w_source", LIVE)),
        key="w_source",
        bind="query-params",
        help="Both runs get the same requests.",
    )
    left, right = st.columns(2)
    with left:
        count = field(
            "w_requests",
            "Number",
            DEFAULT_REQUESTS,
            min_value=10,
            max_value=MAX_REQUESTS,
            step=50,
            help="Requests simulated; a few hundred answer within a second.",
        )
    slo = _slo(load, right)
    if source in _RECORDED:
        cut, changed, words = _RECORDED[source](live, count)
        return ChosenLoad({"trace": cut}, {"trace": changed, "rate": _rate_factor()}, slo, words, trace=changed)
    if source == AGAIN:
        return _again(live, snapshot, slo, count)
    return _synthetic(snapshot, load, slo, count)


def _slo(load: LoadSpec | None, right: Any) -> SLO:
    ttft = float(load.slo_ttft_s if load is not None and load.slo_ttft_s else 1.0)
    itl = float(load.slo_itl_s if load is not None and load.slo_itl_s else 0.2)
    with right:
        ttft = field("w_slo_ttft", "SLO: TTFT, s", ttft, min_value=0.001, step=0.1)
    with st.container(key="w_slo_row"):
        itl = field(
            "w_slo_itl",
            "SLO: every ITL, s",
            itl,
            min_value=0.001,
            step=0.05,
            help="Goodput counts requests whose first token and every gap came in time.",
        )
    return SLO(ttft, itl)


def _rate_factor() -> float:
    return field(
        "w_rate",
        "Arrivals, times",
        1.0,
        min_value=0.01,
        max_value=1000.0,
        step=0.25,
        help="2 is twice as many requests a second.",
    )


def _again(live: WhatIf, snapshot: EngineSnapshot, slo: SLO, count: int) -> ChosenLoad:
    ended = ended_well(snapshot.recent_requests)[-count:]
    if not ended:
        raise ConfigError("no request has ended yet; let the engine run for a moment")
    arrivals = tuple(replace(a, slo_ttft_s=None, slo_itl_s=None) for a in live_arrivals(ended, live.model.vocab_size))
    given = {"arrivals": arrivals}
    return ChosenLoad(given, given | {"rate": _rate_factor()}, slo, f"the latest {len(ended)} requests, at their own times")


def _synthetic(snapshot: EngineSnapshot, load: LoadSpec | None, slo: SLO, count: int) -> ChosenLoad:
    spec = observed_load(load or LoadSpec(), snapshot.recent_requests, count)
    spec = replace(spec, slo_ttft_s=slo.ttft_s, slo_itl_s=slo.itl_s)
    changed = spec
    if spec.process is ArrivalProcess.CLOSED_LOOP:
        users = field("w_users", "Users", spec.users, min_value=1, help="Closed loop.")
        changed = replace(changed, users=users)
    elif spec.process is ArrivalProcess.BURST:
        size = field("w_burst", "Burst size", spec.burst_size, min_value=1)
        changed = replace(changed, burst_size=size)
    else:
        rate = field("w_rate_per_s", "Requests per second", float(spec.rate_per_s), min_value=0.001)
        changed = replace(changed, rate_per_s=rate)
    one, two = st.columns(2)
    with one:
        changed = _length(changed, "prompt_tokens", "Prompt tokens")
    with two:
        changed = _length(changed, "output_tokens", "Output tokens")
    st.caption(frame.plain(f"Live: {(load or LoadSpec()).label}."))
    return ChosenLoad({"load": spec}, {"load": changed}, slo, changed.label, spec=changed)


def _length(spec: LoadSpec, name: str, label: str) -> LoadSpec:
    """The median of a length; its shape scales with it."""
    lengths: LengthSpec = getattr(spec, name)
    values = sorted(lengths.values)
    middle = values[len(values) // 2] if values else round(lengths.median or (lengths.low + lengths.high) / 2)
    value = field(f"w_{name}", f"{label}, median", middle, min_value=1, step=16)
    if value == middle:
        return spec
    factor = value / middle
    if values:
        scaled = LengthSpec.empirical([max(round(v * factor), 1) for v in values])
    else:
        scaled = LengthSpec.lognormal(
            value, lengths.sigma or 0.6, max(round(lengths.low * factor), 1), round(lengths.high * factor)
        )
    return replace(spec, **{name: scaled})


_RECORDED = {MIX: whatif_trace.mix, CLIENTS: whatif_trace.clients, TRACE: whatif_trace.from_file}
"""Sources that end in a trace: (live what-if, most requests) -> the trace as given, as changed, and in words."""
