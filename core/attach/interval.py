"""Two pages of one server, a few seconds apart, as one dot on a roofline.

    FLOP/s = delta FLOPs / delta t        FLOP/B = delta FLOPs / delta bytes

The counters come from the server where it estimates them; else they are derived from its token counters, the
running requests and the model's geometry, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.attach.page import Histogram, ServerPage
from core.cost_model import CostModel
from core.outputs import BoundBy
from core.step_composition import StepSums


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Latency quantiles of an interval, s; None without an observation."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two scrapes.

    Attributes:
        restarted: a counter fell: the server was restarted, and the deltas count from its start.
        flops_per_s, intensity: None where neither counters nor geometry allow them.
        flops_per_s, bytes_per_s: of one device (a page of several engines is divided by their number).
        derived: True where FLOPs and bytes were derived rather than exported.
        mean_tokens_per_step: tokens an engine iteration.
        full_batch: whether the batch was as large as seats and memory allow; None while nothing waited.
        finished, first_tokens: requests that ended, and that got their first token; None where not exported.
        histograms: observations of the interval by our words, for sums over several servers.
    """

    start_s: float
    end_s: float
    restarted: bool
    running: float | None
    waiting: float | None
    kv_usage: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    preemptions: float | None
    prefix_hit_rate: float | None
    steps_per_s: float | None
    mean_tokens_per_step: float | None
    ttft: Quantiles
    itl: Quantiles
    e2e: Quantiles
    flops_per_s: float | None
    bytes_per_s: float | None
    intensity: float | None
    derived: bool
    bound_by: str
    full_batch: bool | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    finished: float | None = None
    first_tokens: float | None = None
    steps: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    engines: int = 1
    histograms: Mapping[str, Histogram] = field(default_factory=dict, repr=False)

    @property
    def span_s(self) -> float:
        """Length of the interval, s."""
        return self.end_s - self.start_s


def _delta(word: str, earlier: ServerPage, later: ServerPage) -> float | None:
    """Growth of a counter; after a restart the counter itself."""
    now = later.counters.get(word)
    if now is None:
        return None
    before = earlier.counters.get(word, 0.0)
    return now - before if now >= before else now


def was_restarted(earlier: ServerPage, later: ServerPage) -> bool:
    """True if the process is another one, or any counter fell (an engine that was reset inside its process)."""
    starts = (earlier.process_start_s, later.process_start_s)
    if starts[0] is not None and starts[1] is not None and starts[1] > starts[0] + 1.0:
        return True
    return any(later.counters.get(word, value) < value for word, value in earlier.counters.items())


def _histograms(earlier: ServerPage, later: ServerPage) -> dict[str, Histogram]:
    """Observations since `earlier`. vLLM shows a histogram from its start; one that appears later counts whole."""
    return {word: now.minus(earlier.histograms.get(word)) for word, now in later.histograms.items()}


def quantiles(histogram: Histogram | None) -> Quantiles:
    """p50, p95 and p99 of a histogram."""
    if histogram is None or histogram.count <= 0:
        return Quantiles(0, None, None, None)
    return Quantiles(int(histogram.count), histogram.quantile(0.5), histogram.quantile(0.95), histogram.quantile(0.99))


def derive_cost(
    model: CostModel, prompt_tokens: float, output_tokens: float, running: float, steps: float, mean_context: float
) -> tuple[float, float]:
    """FLOPs and bytes of an interval from token counters and geometry.

    Every step reads the weights once; each output token reads `mean_context` KV slots; each prompt token attends
    to half of its own prompt on average (causal).
    """
    rows = max(running, 1.0)
    tokens = prompt_tokens + output_tokens
    sums = StepSums(
        rows=round(rows * max(steps, 1.0)),
        query_tokens=round(tokens),
        sampled=round(output_tokens),
        context_tokens=round(output_tokens * mean_context + prompt_tokens),
        attended_tokens=round(output_tokens * mean_context + prompt_tokens * mean_context / 2),
    )
    whole = model.cost_of_sums(sums)
    steps = max(steps, 1.0)
    one_step = StepSums(round(rows), round(tokens / steps), round(output_tokens / steps), 0, 0)
    return whole.flops, model.weight_bytes(one_step) * steps + whole.kv_read_bytes + whole.kv_write_bytes


FULL_KV_USAGE = 0.9
"""Live share of the pool from which on memory is taken to be what a waiting request waits for."""


def _bound_by(page: ServerPage, seats: int | None, preemptions: float | None) -> str:
    """What kept the batch from being larger at the second scrape."""
    waiting, running = page.gauges.get("waiting", 0.0), page.gauges.get("running", 0.0)
    if waiting <= 0:
        return BoundBy.LOAD.value
    if preemptions or page.gauges.get("kv_usage", 0.0) >= FULL_KV_USAGE:
        return BoundBy.MEMORY.value
    if seats is not None and running >= seats:
        return BoundBy.SEATS.value
    return BoundBy.BUDGET.value


def compare(
    start_s: float,
    earlier: ServerPage,
    end_s: float,
    later: ServerPage,
    *,
    model: CostModel | None = None,
    max_num_seqs: int | None = None,
    mean_context: float = 512.0,
) -> Interval:
    """Describe what happened between two pages of one server.

    Args:
        model: cost model of the served geometry, used only where the server exports no FLOP counters.
        max_num_seqs: the server's seats if known; without it "seats" is never named as the limit.
        mean_context: tokens of context assumed for derived figures where KV usage and pool size do not tell.

    Raises:
        ValueError: if `end_s` is not after `start_s`.
    """
    span_s = end_s - start_s
    if not span_s > 0:
        raise ValueError(f"the second page is not later than the first ({start_s} s, {end_s} s)")
    restarted = was_restarted(earlier, later)
    base = ServerPage(later.engine, later.model) if restarted else earlier
    deltas = {word: _delta(word, base, later) for word in later.counters}
    seen = _histograms(base, later)
    iterations, first = seen.get("iteration_tokens"), seen.get("ttft")
    steps = iterations.count if iterations is not None else None
    prompt, output = deltas.get("prompt_tokens"), deltas.get("generation_tokens")
    running, preemptions = later.gauges.get("running"), deltas.get("preemptions")
    context = later.context_tokens or earlier.context_tokens or mean_context
    queries, hits = deltas.get("prefix_queries"), deltas.get("prefix_hits")
    computed = None if prompt is None else max(prompt - (hits or 0.0), 0.0)  # what the prefix cache served is not run
    flops, moved, derived = _work(deltas, model, computed, output, running, steps, context)
    device_s = span_s * later.engines
    bound_by = _bound_by(later, max_num_seqs, preemptions)
    return Interval(
        start_s=start_s,
        end_s=end_s,
        restarted=restarted,
        running=running,
        waiting=later.gauges.get("waiting"),
        kv_usage=later.gauges.get("kv_usage"),
        prompt_tokens_per_s=None if prompt is None else prompt / span_s,
        output_tokens_per_s=None if output is None else output / span_s,
        preemptions=preemptions,
        prefix_hit_rate=hits / queries if queries and hits is not None else later.gauges.get("cache_hit_rate"),
        steps_per_s=None if steps is None else steps / span_s,
        mean_tokens_per_step=iterations.mean if iterations is not None else None,
        ttft=quantiles(first),
        itl=quantiles(seen.get("itl")),
        e2e=quantiles(seen.get("e2e")),
        flops_per_s=None if flops is None else flops / device_s,
        bytes_per_s=None if moved is None else moved / device_s,
        intensity=flops / moved if flops is not None and moved else None,
        derived=derived,
        bound_by=bound_by,
        full_batch=None if bound_by == BoundBy.LOAD.value else bound_by in (BoundBy.SEATS.value, BoundBy.MEMORY.value),
        prompt_tokens=prompt,
        output_tokens=output,
        finished=deltas.get("finished"),
        first_tokens=None if first is None else first.count,
        steps=steps,
        prefix_queries=queries,
        prefix_hits=hits,
        engines=later.engines,
        histograms=seen,
    )


def _work(
    deltas: dict[str, float | None],
    model: CostModel | None,
    prompt: float | None,
    output: float | None,
    running: float | None,
    steps: float | None,
    mean_context: float,
) -> tuple[float | None, float | None, bool]:
    """FLOPs and bytes of the interval, and whether they were derived."""
    flops, read, write = deltas.get("flops"), deltas.get("read_bytes"), deltas.get("write_bytes")
    if flops is not None and read is not None:
        return flops, read + (write or 0.0), False
    if model is None or prompt is None or output is None:
        return None, None, False
    if steps is None:
        steps = output / max(running or 1.0, 1.0)
    if prompt + output <= 0:
        return 0.0, 0.0, True
    flops, moved = derive_cost(model, prompt, output, running or 1.0, steps, mean_context)
    return flops, moved, True
