"""Pages of an invented server, one after another, as a scraper would see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from core.attach.interval import Interval, compare
from core.attach.page import Histogram, ServerPage
from core.attach.scraper import Target, TargetState

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, math.inf)


def histogram(observed: Sequence[float], bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    counts = tuple(float(sum(v <= b for v in observed)) for b in bounds)
    return Histogram(bounds, counts, sum(observed), float(len(observed)))


class Server:
    """Counters that grow by what each call of `tell` says."""

    def __init__(self, model: str = "SmolLM2-135M-Instruct", blocks: int = 1000) -> None:
        self.model = model
        self.info = {"block_size": "16", "num_gpu_blocks": str(blocks), "enable_prefix_caching": "True"}
        self.counters: dict[str, float] = {}
        self.observed: dict[str, list[float]] = {}
        self.gauges: dict[str, float] = {}
        self.pages: list[ServerPage] = []

    def tell(
        self,
        *,
        running: float = 4,
        waiting: float = 0,
        kv: float = 0.5,
        grow: dict[str, float] | None = None,
        seen: dict[str, Any] | None = None,
    ) -> ServerPage:
        for word, by in (grow or {}).items():
            self.counters[word] = self.counters.get(word, 0.0) + by
        for word, values in (seen or {}).items():
            self.observed.setdefault(word, []).extend(values)
        page = ServerPage(
            "vllm",
            self.model,
            gauges={"running": running, "waiting": waiting, "kv_usage": kv},
            counters=dict(self.counters),
            histograms={
                w: histogram(v, (8.0, 64.0, 512.0, math.inf) if "length" in w else BOUNDS) for w, v in self.observed.items()
            },
            info=self.info,
            process_start_s=1.0,
        )
        self.pages.append(page)
        return page

    def intervals(self, seats: int | None = None, period_s: float = 2.0) -> tuple[Interval, ...]:
        pairs = zip(self.pages, self.pages[1:], strict=False)
        return tuple(
            compare(k * period_s, a, (k + 1) * period_s, b, max_num_seqs=seats, model=None) for k, (a, b) in enumerate(pairs)
        )

    def state(
        self, name: str = "a", *, seats: int | None = None, target: Target | None = None, status: str = "live"
    ) -> TargetState:
        found = self.intervals(seats)
        return TargetState(
            name,
            "http://127.0.0.1:1/metrics",
            status,
            "" if status == "live" else f"{name} is {status}",
            found[-1].end_s if found else 0.0,
            self.pages[-1],
            found,
            target=target or Target(name, "http://127.0.0.1:1/metrics"),
            seats=seats,
        )


def steady(
    scrapes: int = 20, *, running: float = 4, waiting: float = 0, kv: float = 0.5, tokens: int = 80, flops: float = 1e9
) -> Server:
    """A server that makes `tokens` tokens in `tokens / running` steps and ends one request in each interval."""
    server = Server()
    for _ in range(scrapes):
        server.tell(
            running=running,
            waiting=waiting,
            kv=kv,
            grow={
                "generation_tokens": tokens,
                "prompt_tokens": 40,
                "finished": 1,
                "preemptions": 0,
                "prefix_queries": 40,
                "prefix_hits": 10,
                "flops": flops,
                "read_bytes": flops / 4,
                "write_bytes": 0,
            },
            seen={
                "ttft": [0.3],
                "itl": [0.03] * (tokens - 1),
                "e2e": [2.0],
                "iteration_tokens": [running] * max(int(tokens / max(running, 1)), 1),
                "prompt_length": [40],
                "output_length": [tokens],
            },
        )
    return server
