"""Tiles and facts of watched servers: six figures with the line that led to them, and what stands beside them.

The value is over the last `WINDOW_S` seconds and in sum over the servers shown; the line has one point a scrape of the
server that is shown, or one point a bin of all of them.
"""

from __future__ import annotations

import pandas as pd

from core.attach.fleet import WINDOW_S, Summary
from core.charts import formats
from core.charts.tiles import POINTS, Tile
from core.devices import DeviceSpec

_OVER = f"over the last {WINDOW_S:.0f} s"


def _line(frame: pd.DataFrame, column: str) -> tuple[float | None, ...]:
    return tuple(None if pd.isna(v) else float(v) for v in frame[column].tolist()[-POINTS:])


def _ranked(latency: pd.DataFrame, figure: str) -> tuple[float | None, ...]:
    rows = latency[(latency["figure"] == figure) & (latency["rank"] == "p50")]
    return tuple(float(v) for v in rows["seconds"].tolist()[-POINTS:])


def tiles(seen: Summary, scheduler: pd.DataFrame, tokens: pd.DataFrame, latency: pd.DataFrame) -> tuple[Tile, ...]:
    """The six tiles.

    Args:
        scheduler, tokens, latency: the frames of `core.charts.attach`.
    """
    made = pd.DataFrame({"tokens_per_s": tokens.groupby("ago_s")["tokens_per_s"].sum()}) if len(tokens) else tokens
    kv = formats.percent(seen.kv_usage)
    return (
        Tile(
            "tokens",
            "Output tokens/s",
            formats.figures(seen.output_tokens_per_s),
            f"{formats.rate(seen.prompt_tokens_per_s, 'tok')} of prompts",
            f"Growth of the token counters {_OVER}.",
            _line(made, "tokens_per_s"),
        ),
        Tile(
            "ttft",
            "TTFT p50",
            formats.seconds(seen.ttft.p50),
            f"p95 {formats.seconds(seen.ttft.p95)}, p99 {formats.seconds(seen.ttft.p99)}",
            f"From the growth of the server's histogram {_OVER}, linear inside a bucket as histogram_quantile does.",
            _ranked(latency, "TTFT"),
        ),
        Tile(
            "itl",
            "ITL p50",
            formats.seconds(seen.itl.p50),
            f"p95 {formats.seconds(seen.itl.p95)}, p99 {formats.seconds(seen.itl.p99)}",
            f"Gap between two tokens of a request, from the growth of the server's histogram {_OVER}.",
            _ranked(latency, "ITL"),
        ),
        Tile(
            "kv",
            "KV usage",
            kv,
            "of the pool, now",
            "Live share of the KV blocks. Several servers: their mean, weighted by the pools' sizes.",
            _line(scheduler, "kv_usage"),
            0.0,
            1.0,
        ),
        Tile(
            "full",
            "Full-batch share",
            formats.percent(seen.full_batch_share),
            "of the scrapes with a queue" if seen.full_batch_share is not None else "nothing waited",
            "Of the scrapes at which requests waited: how many found every seat taken or the KV pool full.",
            _line(scheduler, "full"),
            0.0,
            1.0,
        ),
        Tile(
            "step",
            "Tokens a step",
            formats.figures(seen.tokens_per_step),
            f"{formats.figures(seen.steps_per_s)} steps/s",
            f"Mean of the server's iteration_tokens histogram {_OVER}.",
            _line(scheduler, "tokens_a_step"),
        ),
    )


def facts(seen: Summary, device: DeviceSpec | None, seats_inferred: bool) -> tuple[tuple[str, str, str], ...]:
    """(label, value, note) of what stands under the tiles."""
    shares = ", ".join(f"{name} {formats.percent(share)}" for name, share in seen.bound_shares[:3])
    seats = f"of {seen.seats} seats{', inferred' if seats_inferred else ''}" if seen.seats else "seats not known"
    origin = "derived from tokens and geometry" if seen.derived else "the server's own counters"
    used = _share(seen, device)
    return (
        ("Bound by", seen.bound_by or formats.NONE, shares),
        ("Running", formats.quantity(seen.running), seats),
        ("Waiting", formats.quantity(seen.waiting), f"{formats.figures(seen.requests_per_s)} requests/s begin"),
        ("Prefix hit rate", formats.percent(seen.prefix_hit_rate), "of prompt tokens"),
        ("Intensity", f"{formats.figures(seen.intensity)} FLOP/B", origin if seen.intensity else "no counters, no geometry"),
        ("Roofline", used[0], used[1]),
    )


def _share(seen: Summary, device: DeviceSpec | None) -> tuple[str, str]:
    """How much of the nearer ceiling is used."""
    if device is None or seen.flops_per_s is None or seen.bytes_per_s is None:
        return formats.NONE, "needs a device and counters"
    compute, memory = seen.flops_per_s / device.peak_flops, seen.bytes_per_s / device.memory_bandwidth
    name = "compute" if compute > memory else "bandwidth"
    return formats.percent(max(compute, memory)), f"of {device.name}'s {name}, whole time"
