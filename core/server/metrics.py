"""GET /metrics: the live engine in Prometheus text under vLLM's metric names.

Gauges come from the latest picture, counters from its totals, and the histograms of TTFT, ITL and tokens a step from its
tallies: whole, and as it happens. The other histograms are of requests that have ended; they are fed at each scrape from
the engine's bounded records, so what left those between two scrapes is missing from them, never from the rest.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from core.config import EngineConfig
from core.records import RequestRecord
from core.snapshot import EngineSnapshot
from core.tally import SECONDS, Tally

LABELS = ("engine", "model_name")
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class MetricsEngine(Protocol):
    """What the exporter reads of the live engine."""

    def latest(self) -> EngineSnapshot: ...

    def requests(self) -> tuple[RequestRecord, ...]: ...


def buckets_of(tally: Tally) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus wants them."""
    names = [*(str(bound) for bound in tally.bounds), "+Inf"]
    return list(zip(names, itertools.accumulate(map(float, tally.counts)), strict=True))


def _cache_info(config: EngineConfig) -> Metric:
    """The settings that a reader needs to judge the figures."""
    cache, scheduler = config.cache, config.scheduler
    info = InfoMetricFamily("vllm:cache_config", "Configuration of the KV cache.")
    values = {
        "block_size": str(cache.block_size),
        "num_gpu_blocks": str(cache.num_blocks),
        "enable_prefix_caching": str(cache.enable_prefix_caching),
        "max_num_seqs": str(scheduler.max_num_seqs),
        "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
    }
    info.add_metric([], values)
    return info


class _Pictures(Collector):
    """Gauges, counters and tallies of the latest picture."""

    def __init__(self, engine: MetricsEngine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing: names are known at the first scrape; asking here would need an engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        s = self._engine.latest()
        labels = ["0", s.info.model_label if s.info else s.config.model]
        gauges = (
            ("vllm:num_requests_running", "Requests in the batch.", s.num_running),
            ("vllm:num_requests_waiting", "Requests in the queue, preempted ones included.", s.num_waiting + s.num_preempted),
            ("vllm:kv_cache_usage_perc", "Live share of the KV blocks, 0 to 1.", s.pool.usage),
        )
        for name, words, value in gauges:
            gauge = GaugeMetricFamily(name, words, labels=LABELS)
            gauge.add_metric(labels, float(value))
            yield gauge
        t = s.totals
        counters = (
            ("vllm:num_preemptions", "Preemptions.", t.preemptions),
            ("vllm:prompt_tokens", "Prompt tokens run through the model, recomputed ones included.", t.prompt_tokens),
            ("vllm:generation_tokens", "Output tokens.", t.output_tokens),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", t.queried_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found there.", t.cached_tokens),
            ("vllm:estimated_flops_per_gpu", "FLOPs of all steps, by their exact composition.", t.flops),
            ("vllm:estimated_read_bytes_per_gpu", "Bytes of weights and KV read.", t.read_bytes),
            ("vllm:estimated_write_bytes_per_gpu", "Bytes of KV written.", t.write_bytes),
        )
        for name, words, value in counters:
            counter = CounterMetricFamily(name, words, labels=LABELS)
            counter.add_metric(labels, float(value))
            yield counter
        for name, words, tally in (
            ("vllm:time_to_first_token_seconds", "Time to the first token, s.", s.tallies.ttft),
            ("vllm:inter_token_latency_seconds", "Gap between two output tokens, s.", s.tallies.itl),
            ("vllm:iteration_tokens_total", "Tokens of a step.", s.tallies.step_tokens),
        ):
            histogram = HistogramMetricFamily(name, words, labels=LABELS)
            histogram.add_metric(labels, buckets_of(tally), tally.total)
            yield histogram
        yield _cache_info(s.config)


class MetricsExporter:
    """One registry for one engine; `text` may be called from any thread.

    Args:
        engine: the live engine.
    """

    def __init__(self, engine: MetricsEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Pictures(engine))
        ProcessCollector(registry=self._registry)
        self._known: set[tuple[str, float]] = set()

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, words, LABELS, registry=self._registry, buckets=buckets)

        self._e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to the last token, s.", SECONDS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Arrival to the first admission, s.", SECONDS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "First admission to the first token, s.", SECONDS)
        self._decode = histogram("vllm:request_decode_time_seconds", "First to the last token, s.", SECONDS)
        self._inference = histogram("vllm:request_inference_time_seconds", "First admission to the last token, s.", SECONDS)
        self._tpot = histogram("vllm:request_time_per_output_token_seconds", "Mean gap of a request, s.", SECONDS)
        self._prompt_length = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _LENGTHS)
        self._output_length = histogram("vllm:request_generation_tokens", "Output tokens of a request.", _LENGTHS)
        self._success = Counter(
            "vllm:request_success", "Finished requests by reason.", (*LABELS, "finished_reason"), registry=self._registry
        )

    def text(self) -> bytes:
        """The page."""
        with self._lock:
            self._catch_up()
            return generate_latest(self._registry)

    def _catch_up(self) -> None:
        s = self._engine.latest()
        labels = ("0", s.info.model_label if s.info else s.config.model)
        records = self._engine.requests()
        now_known = {(r.request_id, r.finished_s) for r in records}
        for r in records:
            if (r.request_id, r.finished_s) not in self._known:
                self._observe(r, labels)
        self._known = now_known

    def _observe(self, r: RequestRecord, labels: tuple[str, str]) -> None:
        if r.queue_s is not None:
            self._queue.labels(*labels).observe(r.queue_s)
        if r.finish_reason in ("stop", "length", "capacity"):
            self._e2e.labels(*labels).observe(r.e2e_s)
            self._prompt_length.labels(*labels).observe(r.prompt_tokens)
            self._output_length.labels(*labels).observe(r.output_tokens)
            self._observe_phases(r, labels)
        reason = {"capacity": "length", "cancelled": "abort", "deadline": "abort"}.get(r.finish_reason, r.finish_reason)
        self._success.labels(*labels, reason).inc()

    def _observe_phases(self, r: RequestRecord, labels: tuple[str, str]) -> None:
        """Where the time of a finished request went."""
        if r.ttft_s is None:
            return
        queue_s = r.queue_s or 0.0
        self._prefill.labels(*labels).observe(max(r.ttft_s - queue_s, 0.0))
        self._decode.labels(*labels).observe(max(r.e2e_s - r.ttft_s, 0.0))
        self._inference.labels(*labels).observe(max(r.e2e_s - queue_s, 0.0))
        if r.tpot_s is not None:
            self._tpot.labels(*labels).observe(r.tpot_s)
