"""One metrics page of a serving engine as plain numbers.

The page is Prometheus text. Counters are accepted with and without `_total`, old names beside new ones, and
labelled samples of one metric (several engines, several sources) are summed. What a server does not export is
None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from core.attach.names import COUNTERS, GAUGES, HISTOGRAMS, INFO, KINDS, OF_ONE_ENGINE, PREFIXES, SHARES
from core.errors import BatchscopeError

MAX_PAGE_BYTES = 8 * 2**20


class MetricsPageError(BatchscopeError):
    """A page that is no metrics page of a serving engine; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram: `counts[i]` observations were <= `bounds[i]`; the last bound is infinity."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    count: float

    def plus(self, other: Histogram) -> Histogram:
        """Observations of both; with other buckets the one with more observations stands for both."""
        if other.bounds != self.bounds:
            return self if self.count >= other.count else other
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total, self.count + other.count)

    def minus(self, earlier: Histogram | None) -> Histogram:
        """Observations since `earlier`; an earlier page with other buckets or higher counts (a restart) is ignored."""
        if earlier is None or earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        counts = tuple(max(a - b, 0.0) for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds, counts, self.total - earlier.total, self.count - earlier.count)

    def quantile(self, q: float) -> float | None:
        """Quantile by linear interpolation inside a bucket, as Prometheus' histogram_quantile does.

        A quantile in the last, open bucket is its lower bound. None for an empty histogram.
        """
        if self.count <= 0 or not self.bounds:
            return None
        rank = q * self.counts[-1]
        low_bound, low_count = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > low_count:
                if math.isinf(bound):
                    return low_bound
                return low_bound + (bound - low_bound) * (rank - low_count) / (count - low_count)
            low_bound, low_count = (low_bound if math.isinf(bound) else bound), count
        return low_bound

    @property
    def mean(self) -> float | None:
        """Mean of the observations; None if there is none."""
        return self.total / self.count if self.count > 0 else None


@dataclass(frozen=True)
class ServerPage:
    """A parsed page.

    Attributes:
        engine: "vllm", "sglang", "trtllm" or "unknown", by the metrics' prefix.
        gauges, counters: our words to values; a word that the server does not export is absent.
        info: labels of the server's cache_config_info.
        engines: engines behind the page (data-parallel ranks); counters are sums over them.
        process_start_s: Unix time at which the server's process started, if exported.
        itl_is_mean: True where the server exports no single gaps, so "itl" holds one mean gap a request (TPOT).
    """

    engine: str
    model: str
    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    process_start_s: float | None = None
    engines: int = 1
    itl_is_mean: bool = False

    @property
    def block_size(self) -> int | None:
        """Tokens in a block, as the server states it."""
        return _whole(self.info.get("block_size") or self.info.get("page_size")) or self._stated("block_tokens")

    @property
    def num_blocks(self) -> int | None:
        """Blocks of the server's pool, as it states it."""
        return _whole(self.info.get("num_gpu_blocks") or self.info.get("num_pages")) or self._stated("pool_blocks")

    @property
    def max_num_seqs(self) -> int | None:
        """Seats of all engines, where the server states them (this product and TensorRT-LLM do, vLLM does not)."""
        seats = _whole(self.info.get("max_num_seqs")) or self._stated("seats")
        return None if seats is None else seats * self.engines

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Token budget of a step, where the server states it."""
        return _whole(self.info.get("max_num_batched_tokens")) or self._stated("budget_tokens")

    def _stated(self, word: str) -> int | None:
        """A whole number that a gauge states, None if it does not or says 0."""
        return round(self.gauges.get(word, 0.0)) or None

    @property
    def prefix_caching(self) -> bool | None:
        """Whether the server reuses cached prefixes, as it states it."""
        text = self.info.get("enable_prefix_caching", "").lower()
        return {"true": True, "false": False}.get(text)

    @property
    def context_tokens(self) -> float | None:
        """Mean tokens of KV that a running request holds: usage * pool / running; None where the page does not tell."""
        running, usage = self.gauges.get("running", 0.0), self.gauges.get("kv_usage")
        if running < 1 or usage is None or self.block_size is None or self.num_blocks is None:
            return None
        return usage * self.num_blocks * self.block_size * self.engines / running


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


class _Samples:
    """Samples of a page by name, label sets summed."""

    def __init__(self, text: str) -> None:
        self.values: dict[str, float] = {}
        self.seen: dict[str, int] = {}
        self.engines: set[str] = set()
        self.buckets: dict[str, dict[float, float]] = {}
        self.info: dict[str, str] = {}
        self.models: list[str] = []
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._take(sample.name, sample.labels, sample.value)

    def _take(self, name: str, labels: Mapping[str, str], value: float) -> None:
        if name in KINDS and KINDS[name] in labels:
            name = f"{name}{{{KINDS[name]}={labels[KINDS[name]]}}}"
        model = labels.get("model_name") or (labels.get("model") if name.startswith("nv_trt_llm_") else None)
        if model and model not in self.models:
            self.models.append(model)
        if "engine" in labels:
            self.engines.add(labels["engine"])
        if name in INFO:
            self.info = dict(labels)
        if name.endswith("_bucket") and "le" in labels:
            bounds = self.buckets.setdefault(name.removesuffix("_bucket"), {})
            bound = float(labels["le"])
            bounds[bound] = bounds.get(bound, 0.0) + value
        elif math.isfinite(value):
            self.values[name] = self.values.get(name, 0.0) + value
            self.seen[name] = self.seen.get(name, 0) + 1

    def mean(self, names: Iterable[str]) -> float | None:
        """Mean over the samples of the first name that is there."""
        return next((self.values[name] / self.seen[name] for name in names if name in self.values), None)

    def share(self, names: Iterable[str]) -> float | None:
        """The mean, 0 to 1."""
        mean = self.mean(names)
        return None if mean is None else min(max(mean, 0.0), 1.0)

    def gauge(self, word: str) -> float | None:
        """One of our words, put together as is right for it."""
        names = GAUGES[word]
        if word in OF_ONE_ENGINE:
            return self.mean(names)
        return self.share(names) if word in SHARES else self.first(names)

    def first(self, names: Iterable[str]) -> float | None:
        for name in names:
            for spelled in (name, name + "_total"):
                if spelled in self.values:
                    return self.values[spelled]
        return None

    def histogram(self, names: Iterable[str]) -> Histogram | None:
        for name in names:
            found = self.buckets.get(name)
            if found:
                bounds = tuple(sorted(found))
                counts = tuple(found[b] for b in bounds)
                return Histogram(
                    bounds, counts, self.values.get(name + "_sum", 0.0), self.values.get(name + "_count", counts[-1])
                )
        return None


def _present(table: Mapping[str, float | None]) -> dict[str, float]:
    return {word: value for word, value in table.items() if value is not None}


def parse_page(text: str) -> ServerPage:
    """Read a metrics page.

    Raises:
        MetricsPageError: if the text is not Prometheus text, is too long, or holds no metric of a serving engine.
    """
    if len(text) > MAX_PAGE_BYTES:
        raise MetricsPageError(f"the page is {len(text) / 2**20:.0f} MiB long; at most {MAX_PAGE_BYTES // 2**20} MiB are read")
    if text.lstrip()[:1] in ("{", "["):
        raise MetricsPageError("the page is JSON, not Prometheus text; trtllm-serve has the latter at /prometheus/metrics")
    try:
        samples = _Samples(text)
    except (ValueError, KeyError, IndexError) as error:
        raise MetricsPageError(f"the page is not Prometheus text ({error}); give the server's /metrics address") from error
    engines = [engine for engine, starts in PREFIXES.items() if any(name.startswith(starts) for name in samples.values)]
    gauges = _present({word: samples.gauge(word) for word in GAUGES})
    if "kv_usage" not in gauges and gauges.get("pool_blocks"):
        gauges["kv_usage"] = min(gauges.get("used_blocks", 0.0) / gauges["pool_blocks"], 1.0)
    counters = _present({word: samples.first(names) for word, names in COUNTERS.items()})
    if "prefix_hits" in counters and "prompt_tokens" in counters:
        counters.setdefault("prefix_queries", counters["prompt_tokens"])  # SGLang and TensorRT-LLM count hits of all prompts
    if not gauges and not counters:
        some = ", ".join(sorted(samples.values)[:3]) or "no metric at all"
        raise MetricsPageError(f"no metric of vLLM, SGLang or TensorRT-LLM on this page (found: {some})")
    gaps = next((name for name in HISTOGRAMS["itl"] if name in samples.buckets), "")
    histograms = {word: h for word, names in HISTOGRAMS.items() if (h := samples.histogram(names)) is not None}
    return ServerPage(
        engine=engines[0] if engines else "unknown",
        model=", ".join(samples.models),
        gauges=gauges,
        counters=counters,
        histograms=histograms,
        info=samples.info,
        process_start_s=samples.values.get("process_start_time_seconds"),
        engines=max(len(samples.engines), 1),
        itl_is_mean=gaps.endswith("time_per_output_token_seconds") and not gaps.startswith("vllm"),
    )
