"""What a report says, before it is drawn: sections of paragraphs, tables and figures, the same for HTML and PDF."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.bundle import RunBundle
from core.charts import formats
from core.charts.latency_curves import latency_values
from core.config import CacheConfig, SchedulerConfig
from core.detectors import judge
from core.errors import BatchscopeError
from core.prediction import Pair
from core.report.alternatives import prediction_of
from core.report.caption import machine_of
from core.report.figure import Figure
from core.report.figures import FigureSet
from core.run_summary import summarise
from core.sim_metrics import percentiles_of
from core.version import VERSION


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is the heading of its row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, in order."""

    title: str
    parts: tuple[str | Table | Figure, ...]


Facts = Sequence[tuple[str, str]]


def _facts(rows: Facts) -> Table:
    return Table(("", ""), tuple((a, b) for a, b in rows))


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return formats.figures(value)
    if isinstance(value, tuple):
        return ", ".join(str(getattr(v, "name", v)) for v in value) or "none"
    return "none" if value is None else str(value)


def _knobs(value: Any, default: Any) -> Table:
    rows = []
    for f in dataclasses.fields(value):
        now, usual = getattr(value, f.name), getattr(default, f.name)
        rows.append((f.name, _value(now), "" if now == usual else f"default {_value(usual)}"))
    return Table(("knob", "value", ""), tuple(rows))


def summary_section(bundle: RunBundle) -> Section:
    """The run in a paragraph and a dozen numbers."""
    about, s = bundle.manifest, summarise(bundle.steps, bundle.requests)
    info = bundle.record.header.info
    device = machine_of(info, str(bundle.environment.get("processor", "")))
    text = (
        f"{info.model_label} in {info.dtype} on {device} served {formats.count(s.requests)} requests in"
        f" {formats.count(s.steps)} steps and {formats.seconds(s.duration_s)}. All numbers of this section are {about.kind}."
    )
    rows: Facts = (
        ("load", about.load),
        ("output tokens/s", formats.figures(s.output_tokens_per_s)),
        ("output tokens", formats.count(s.output_tokens)),
        ("mean batch", formats.figures(s.mean_batch)),
        ("mean step", formats.seconds(s.mean_step_s)),
        ("full-batch share", formats.percent(s.full_batch_share)),
        ("useful arithmetic", formats.percent(s.useful_share)),
        ("host share of a step", formats.percent(s.host_share)),
        ("preemptions", formats.count(s.preemptions)),
        ("prompt tokens from the prefix cache", formats.percent(s.prefix_hit_share)),
        ("TTFT p50, p99", f"{formats.seconds(s.ttft_p50_s)}, {formats.seconds(s.ttft_p99_s)}"),
        ("ITL p50, p99", f"{formats.seconds(s.itl_p50_s)}, {formats.seconds(s.itl_p99_s)}"),
    )
    partial = [] if about.complete else [f"This run is partial: {about.note}."]
    noted = [f"The run {about.note}."] if about.complete and about.note else []
    return Section("Summary", (*partial, text, *noted, _facts(rows)))


def configuration_section(bundle: RunBundle) -> Section:
    """Model, knobs and cache; what differs from a default says so."""
    config = bundle.record.header.config
    engine: Facts = (
        ("model", config.model),
        ("dtype", config.dtype),
        ("weight dtype", config.weight_dtype),
        ("executor", config.executor),
        ("seed", str(config.seed)),
        ("max_model_len", formats.count(bundle.record.header.max_model_len)),
    )
    changes = sum(type(getattr(e, "command", None)).__name__ in ("SetScheduler", "SetCache") for e in bundle.record.entries)
    later = [f"These are the settings at the start; they were changed {changes} times during the run."] if changes else []
    return Section(
        "Configuration",
        (*later, _facts(engine), _knobs(config.scheduler, SchedulerConfig()), _knobs(config.cache, CacheConfig())),
    )


def machine_section(bundle: RunBundle) -> Section:
    """Machine, software and measured ceilings."""
    e, info, c = bundle.environment, bundle.record.header.info, bundle.ceilings
    packages = ", ".join(f"{k} {v}" for k, v in dict(e.get("packages", {})).items())
    rows = [
        ("processor", str(e.get("processor", ""))),
        ("cores, memory", f"{e.get('cores', '')}, {formats.binary_bytes(float(e.get('memory_bytes', 0)))}"),
        ("system", str(e.get("system", ""))),
        ("device of the run", info.device),
        ("kernels", info.kernels or formats.NONE),
        *((("graphs", info.graphs),) if info.graphs else ()),
        ("weights read in a step", formats.weights_read(info.weight_bytes_read, info.coded_bytes_read, info.coded_tokens)),
        ("KV bytes of a token", formats.decimal_bytes(info.kv_bytes_per_token)),
        ("Python", str(e.get("python", ""))),
        ("packages", packages),
    ]
    if c is not None:
        cache = [("cache bandwidth, measured", formats.rate(c.cache_bytes_per_s, "B"))] if c.cache_bytes_per_s else []
        rows += [
            ("compute, measured", formats.rate(c.peak_flops, "FLOP")),
            ("DRAM bandwidth, measured", formats.rate(c.dram_bytes_per_s, "B")),
            *cache,
        ]
    return Section("Machine", (_facts(rows),))


def latency_table(bundle: RunBundle) -> Table:
    """p50, p95, p99 of every latency, for all requests and for each tenant."""
    tenants = sorted({r.tenant for r in bundle.requests})
    groups = [("all", list(bundle.requests))]
    if len(tenants) > 1:
        groups += [(t, [r for r in bundle.requests if r.tenant == t]) for t in tenants]
    rows = []
    for name, requests in groups:
        for latency, values in latency_values(requests).items():
            p = percentiles_of(array("d", values))
            cells = (formats.seconds(p.p50), formats.seconds(p.p95), formats.seconds(p.p99))
            rows.append((name, latency, formats.count(p.count), *cells))
    return Table(("requests", "latency", "values", "p50", "p95", "p99"), tuple(rows))


def findings_section(bundle: RunBundle) -> Section:
    """Every detector's verdict."""
    rows = [
        (
            v.name,
            "found" if v.found else "not found",
            "" if v.began_at is None else f"step {formats.count(v.began_at)}",
            v.sentence,
        )
        for v in judge(bundle.steps)
    ]
    found = sum(row[1] == "found" for row in rows)
    text = f"{found} of {len(rows)} detectors found their failure mode in this run, {bundle.manifest.kind}."
    return Section("What the detectors found", (text, Table(("failure mode", "", "from", "in numbers"), tuple(rows))))


def _pair_cell(value: float | None, unit: str) -> str:
    if unit == "s":
        return formats.seconds(value)
    return formats.percent(value) if unit == "share" else formats.figures(value)


_PAIRS = {
    "output_tokens_per_s": "output tokens/s", "ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99", "itl_p50": "ITL p50",
    "itl_p99": "ITL p99", "tpot_p50": "TPOT p50", "e2e_p50": "E2E p50", "e2e_p99": "E2E p99", "mean_step_s": "mean step",
    "mean_batch": "mean batch", "full_batch_share": "full-batch share",
}  # fmt: skip


def _pair_row(pair: Pair) -> tuple[str, ...]:
    error = formats.NONE if pair.error is None else f"{100 * pair.error:+.1f} %"
    return (_PAIRS.get(pair.name, pair.name), _pair_cell(pair.predicted, pair.unit), _pair_cell(pair.measured, pair.unit), error)


def prediction_section(bundle: RunBundle) -> Section:
    """What the cost model predicted for the very same requests, and how far off it was."""
    title = "What was predicted, and how far off it was"
    try:
        found = prediction_of(bundle)
    except BatchscopeError as error:
        return Section(title, (f"There is no prediction beside this run: {error}.",))
    fit = found.calibration.error
    text = (
        f"A law of step times was {found.calibration.source}, and the same scheduler ran the same requests on a virtual clock."
        f" On {formats.count(fit.steps)} steps that the law had not seen, the median error of a step is"
        f" {formats.percent(fit.median)}, the 90th percentile {formats.percent(fit.p90)}."
    )
    rows = tuple(_pair_row(pair) for pair in found.pairs)
    return Section(title, (text, Table(("figure", "predicted", "measured", "error"), rows)))


def comparison_parts(figures: FigureSet) -> tuple[str | Table | Figure, ...]:
    """Fixed batch against continuous batching, both predicted under one law."""
    try:
        found = figures.alternative()
    except BatchscopeError as error:
        return (f"There is no comparison for this run: {error}.",)
    a, b = found.fixed.summary, found.continuous.summary
    ratio = (b.output_tokens_per_s or 0.0) / a.output_tokens_per_s if a.output_tokens_per_s else None
    text = (
        f"The requests of this run again, with the output lengths that they had, under a fixed batch and under continuous"
        f" batching; both are predicted ({found.law}). Continuous batching makes {formats.figures(ratio)} times as many output"
        " tokens a second."
    )
    names = (
        ("output tokens/s", "output_tokens_per_s", formats.figures),
        ("mean batch", "mean_batch", formats.figures),
        ("useful arithmetic", "useful_share", formats.percent),
        ("TTFT p50", "ttft_p50_s", formats.seconds),
        ("TTFT p99", "ttft_p99_s", formats.seconds),
        ("ITL p50", "itl_p50_s", formats.seconds),
        ("E2E p99", "e2e_p99_s", formats.seconds),
    )
    rows = tuple((label, write(getattr(a, n)), write(getattr(b, n))) for label, n, write in names)
    drawn = [f for f in (figures.get("fixed"), figures.get("continuous")) if f is not None]
    return (text, Table(("predicted", "fixed batch", "continuous"), rows), *drawn)


def report_sections(figures: FigureSet) -> tuple[Section, ...]:
    """The whole report of a bundle, in order."""
    bundle = figures.bundle

    def some(*names: str) -> tuple[str | Table | Figure, ...]:
        found: list[str | Table | Figure] = []
        for name in names:
            figure = figures.get(name)
            found.append(figure if figure is not None else f'No figure "{name}": {figures.missing[name]}.')
        return tuple(found)

    maps = tuple(f for k in range(3) if (f := figures.get(f"blocks_{k + 1}")) is not None)
    about = bundle.manifest
    repeat = (
        f'Run "{about.name}", {about.created}, bundle format {about.format_version}, made by batchscope {about.program_version};'
        f" this report by {VERSION}. To hear whether the schedule comes out identical: python -m core.run --bundle FILE."
    )
    return (
        summary_section(bundle),
        configuration_section(bundle),
        machine_section(bundle),
        Section("Sets over time", some("sets", "composition", "seats")),
        Section("Memory", (*some("pool", "fragmentation"), *maps)),
        Section("Roofline and step times", some("roofline", "marginal", "intensity", "bytes", "step_times", "host")),
        Section("Latency", (f"All values are {about.kind}.", latency_table(bundle), *some("latency", "story"))),
        Section("Fixed against continuous", comparison_parts(figures)),
        findings_section(bundle),
        prediction_section(bundle),
        Section("Repeat it", (repeat,)),
    )
