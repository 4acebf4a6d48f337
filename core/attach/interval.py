"""Two pages of one server, a few seconds apart, as one dot on a roofline.

    FLOP/s = delta FLOPs / delta t        FLOP/B = delta FLOPs / delta bytes

The counters come from the server where it estimates them; else they are derived from its token counters, the
running requests and the model's geometry, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        derived: True where FLOPs and bytes were derived rather than exported.
        mean_tokens_per_step: tokens an engine iteration.
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


def _delta(word: str, earlier: ServerPage, later: ServerPage) -> float | None:
    """Growth of a counter; after a restart the counter itself."""
    now = later.counters.get(word)
    if now is None:
        return None
    before = earlier.counters.get(word, 0.0)
    return now - before if now >= before else now


def was_restarted(earlier: ServerPage, later: ServerPage) -> bool:
    """True if the process is another one, or any counter fell."""
    if earlier.process_start_s is not None and later.process_start_s is not None:
        return later.process_start_s > earlier.process_start_s + 1.0
    return any(later.counters.get(word, value) < value for word, value in earlier.counters.items())


def _histogram(word: str, earlier: ServerPage, later: ServerPage, restarted: bool) -> Histogram | None:
    now = later.histograms.get(word)
    return None if now is None else now.minus(None if restarted else earlier.histograms.get(word))


def _quantiles(histogram: Histogram | None) -> Quantiles:
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


def _bound_by(page: ServerPage, seats: int | None) -> str:
    waiting, running = page.gauges.get("waiting", 0.0), page.gauges.get("running", 0.0)
    if waiting <= 0:
        return BoundBy.LOAD.value
    if seats is not None and running >= seats:
        return BoundBy.SEATS.value
    if page.gauges.get("kv_usage", 0.0) >= 0.9:
        return BoundBy.MEMORY.value
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
        mean_context: tokens of context assumed for derived figures where the pages do not tell.

    Raises:
        ValueError: if `end_s` is not after `start_s`.
    """
    span_s = end_s - start_s
    if not span_s > 0:
        raise ValueError(f"the second page is not later than the first ({start_s} s, {end_s} s)")
    restarted = was_restarted(earlier, later)
    base = ServerPage(later.engine, later.model) if restarted else earlier
    deltas = {word: _delta(word, base, later) for word in later.counters}
    iterations = _histogram("iteration_tokens", base, later, restarted)
    steps = iterations.count if iterations is not None else None
    prompt, output = deltas.get("prompt_tokens"), deltas.get("generation_tokens")
    running = later.gauges.get("running")
    flops, moved, derived = _work(deltas, model, prompt, output, running, steps, mean_context)
    queries, hits = deltas.get("prefix_queries"), deltas.get("prefix_hits")
    return Interval(
        start_s=start_s,
        end_s=end_s,
        restarted=restarted,
        running=running,
        waiting=later.gauges.get("waiting"),
        kv_usage=later.gauges.get("kv_usage"),
        prompt_tokens_per_s=None if prompt is None else prompt / span_s,
        output_tokens_per_s=None if output is None else output / span_s,
        preemptions=deltas.get("preemptions"),
        prefix_hit_rate=hits / queries if queries and hits is not None else later.gauges.get("cache_hit_rate"),
        steps_per_s=None if steps is None else steps / span_s,
        mean_tokens_per_step=iterations.mean if iterations is not None else None,
        ttft=_quantiles(_histogram("ttft", base, later, restarted)),
        itl=_quantiles(_histogram("itl", base, later, restarted)),
        e2e=_quantiles(_histogram("e2e", base, later, restarted)),
        flops_per_s=None if flops is None else flops / span_s,
        bytes_per_s=None if moved is None else moved / span_s,
        intensity=flops / moved if flops is not None and moved else None,
        derived=derived,
        bound_by=_bound_by(later, max_num_seqs),
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
