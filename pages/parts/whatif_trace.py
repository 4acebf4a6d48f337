"""Loads of a what-if that come as rows: a file's trace, ServeGen clients, or tenants written down in a table.

Each gives the trace as it is (for the base run) and as the factors change it (for the what-if), and what it is in words.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from core.charts import formats
from core.errors import ConfigError
from core.traces.formats import ColumnMap
from core.traces.reader import column_names, read_trace
from core.traces.servegen import ServeGenClient
from core.traces.tenant_mix import EXAMPLE, TenantLaw, clients_trace, pair_clients, tenant_mix
from core.traces.trace import Trace
from core.whatif import WhatIf
from pages.parts import frame
from pages.parts.whatif_keys import field

UPLOAD_MB = 10
MAX_TRACE_ROWS = 200_000
UNITS = ("as inferred", "s", "ms", "us", "ns")
Rows = tuple[Trace, Trace, str]


def _factors(live: WhatIf, trace: Trace, words: str) -> Rows:
    """The trace cut to what the model takes, and the same with its lengths scaled."""
    one, two = st.columns(2)
    with one:
        prompt = field("w_trace_prompt", "Prompts, times", 1.0, min_value=0.001, step=0.25)
    with two:
        output = field("w_trace_output", "Outputs, times", 1.0, min_value=0.001, step=0.25)
    room = (live.max_model_len or live.model.max_model_len) // 2
    clipped = int((trace.prompt_tokens > room).sum() + (trace.output_tokens > room).sum())
    if clipped:
        st.caption(f"{clipped} lengths were cut to {room} tokens, half of max_model_len.")
    return trace.clipped(room, room), trace.scaled(prompt=prompt, output=output).clipped(room, room), words


# -- tenants written down -----------------------------------------------------------------------------------------

_COLUMNS = {
    "name": st.column_config.TextColumn("tenant", required=True, width=60),
    "rate_per_s": st.column_config.NumberColumn("req/s", min_value=0.0, help="Mean rate."),
    "cv": st.column_config.NumberColumn("cv", min_value=0.0, help="Burstiness: 1 is Poisson, above it bursts."),
    "prompt_tokens": st.column_config.NumberColumn("prompt", min_value=1, help="Median prompt tokens."),
    "output_tokens": st.column_config.NumberColumn("output", min_value=1, help="Median output tokens."),
}


def mix(live: WhatIf, count: int) -> Rows:
    """A table of tenants, each with a rate, a burstiness and lengths of its own.

    Raises:
        TraceError: for a tenant that makes no sense.
    """
    start = pd.DataFrame([{n: getattr(law, n) for n in _COLUMNS} for law in EXAMPLE])
    rows = st.data_editor(start, column_config=_COLUMNS, num_rows="dynamic", hide_index=True, key="w_tenants")
    laws = [
        TenantLaw(str(r["name"]), float(r["rate_per_s"]), float(r["cv"]), int(r["prompt_tokens"]), int(r["output_tokens"]))
        for r in rows.dropna().to_dict("records")
    ]
    st.caption(
        "In the manner of ServeGen: gaps of each tenant follow a Gamma law, lengths a lognormal one. The figures are invented."
    )
    trace = tenant_mix(laws, count)
    return _factors(live, trace, f"{len(laws)} tenants, {len(trace)} requests")


# -- ServeGen -----------------------------------------------------------------------------------------------------


@st.cache_data(max_entries=4, show_spinner=False)
def _clients(files: tuple[tuple[str, bytes], ...]) -> list[ServeGenClient]:
    return pair_clients(files)


def clients(live: WhatIf, count: int) -> Rows:
    """Clients that ServeGen fitted to a production service, at a rate that this server can take.

    Raises:
        ConfigError, TraceError: while files are missing or cannot be used.
    """
    uploads = st.file_uploader(
        "ServeGen files, two a client",
        type=["csv", "json"],
        accept_multiple_files=True,
        key="w_servegen",
        max_upload_size=UPLOAD_MB,
        help="NAME_rates.csv (start, rate, CV, family, shape, scale) and NAME_lengths.json of each client.",
    )
    if not uploads:
        raise ConfigError("no client yet; choose a file of rates and a file of lengths for each")
    found = _clients(tuple((u.name, u.getvalue()) for u in uploads))
    theirs = sum(c.mean_rate_per_s for c in found)
    rate = field(
        "w_servegen_rate", "Requests per second, all clients", 1.0, min_value=0.001, help=f"As fitted: {formats.figures(theirs)}."
    )
    trace = clients_trace(found, count, rate)
    st.caption(frame.plain(f"{trace.report.notes[0] if trace.report.notes else ''}; shares and bursts are those of the clients."))
    return _factors(live, trace, f"{len(found)} ServeGen clients, {len(trace)} requests")


# -- files --------------------------------------------------------------------------------------------------------


_NEEDED = {"prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


def _columns(data: bytes, name: str) -> ColumnMap | None:
    """The person's own map of columns, where they want one.

    Raises:
        ConfigError: while a length has no column.
    """
    if not st.toggle("Name the columns", key="w_trace_map"):
        return None
    names = ["", *column_names(data, name)]
    parts = {}
    for part, label in (
        ("time", "Arrival time"),
        ("prompt_tokens", "Prompt tokens"),
        ("output_tokens", "Output tokens"),
        ("tenant", "Tenant"),
    ):
        parts[part] = st.selectbox(label, names, key=f"w_col_{part}") or None
    missing = [label for part, label in _NEEDED.items() if parts[part] is None]
    if missing:
        raise ConfigError(f"no column yet for: {', '.join(missing)}")
    return ColumnMap(**parts)


@st.cache_data(max_entries=4, show_spinner=False)
def _read(data: bytes, name: str, unit: str | None, columns: ColumnMap | None) -> Trace:
    return read_trace(data, name=name, time_unit=unit, columns=columns, max_rows=MAX_TRACE_ROWS)


def from_file(live: WhatIf, count: int) -> Rows:
    """A file's rows.

    Raises:
        ConfigError, TraceError: while there is no file, or none that can be used.
    """
    upload = st.file_uploader(
        "Trace file",
        type=["csv", "json", "jsonl"],
        key="w_trace_file",
        max_upload_size=UPLOAD_MB,
        help="Azure, BurstGPT, Mooncake, GuideLLM, AIPerf, vLLM, ShareGPT, or any CSV or JSONL with named columns.",
    )
    if upload is None:
        raise ConfigError("no trace yet; choose a CSV, JSON or JSONL file")
    data = upload.getvalue()
    columns = _columns(data, upload.name)
    unit = st.selectbox("Unit of the time column", UNITS, key="w_trace_unit", help="What was inferred is said below.")
    trace = _read(data, upload.name, None if unit == UNITS[0] else unit, columns)
    with st.container(key="w_trace_report"):
        for line in trace.report.lines():
            st.caption(frame.plain(line))
    whole = len(trace)
    trace = trace.head(count)
    words = f"the first {len(trace)} of {whole} rows of {upload.name}"
    if trace.arrival_s is None:
        rate = field(
            "w_trace_poisson", "No arrival times: requests per second", 1.0, min_value=0.001,
            help="The file has lengths only; arrivals are drawn by a Poisson process of this mean rate.",
        )  # fmt: skip
        trace = trace.with_poisson_arrivals(rate)
        words += f", Poisson arrivals of {formats.figures(rate)} requests/s"
    return _factors(live, trace, words)
