"""What the product predicts for a watched server, beside what was observed on it.

    metrics page -> seats, pool, block size, model          configuration
    deltas       -> arrivals or users, lengths, prefix hits load                -> WhatIf -> predicted | observed
    what no page tells is assumed, and each assumption is a sentence of the result

With a queue at most scrapes the load is taken as a closed loop of (running + waiting) users, because arrivals beyond
what a server can serve have no steady state; without one, as Poisson arrivals at the observed rate.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from core.attach.fleet import Summary, merged, recent, summarise
from core.attach.page import Histogram, ServerPage
from core.attach.scraper import TargetState
from core.config import EngineConfig, SchedulerConfig
from core.devices import DeviceSpec
from core.errors import BatchscopeError, ConfigError
from core.lengths import MAX_TOKENS, LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.model_spec import ModelSpec
from core.models_catalog import CATALOG, guess_model
from core.scenario import Scenario
from core.scenario_text import scenario_toml
from core.sim_result import SimulationResult
from core.whatif import WhatIf

OBSERVED_S = 120.0
LEAST_REQUESTS, MOST_REQUESTS = 40, 400
VLLM_BUDGET = 2048
VLLM_SEATS = 256
QUANTILES = 24

FIGURES: tuple[tuple[str, str], ...] = (
    ("output_tokens_per_s", "Output tokens/s"),
    ("requests_per_s", "Requests/s"),
    ("ttft_p50", "TTFT p50"),
    ("ttft_p95", "TTFT p95"),
    ("itl_p50", "ITL p50"),
    ("itl_p95", "ITL p95"),
    ("e2e_p50", "E2E p50"),
    ("mean_batch", "Mean batch"),
    ("intensity", "Intensity, FLOP/B"),
    ("full_batch_share", "Full-batch share"),
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken from a server: a what-if, what was observed meanwhile, and what had to be assumed."""

    name: str
    whatif: WhatIf
    observed: Summary
    assumptions: tuple[str, ...]

    @property
    def scenario(self) -> str:
        """The same as the text of a scenario file."""
        w = self.whatif
        engine = EngineConfig(model=_hub_name(w.model), dtype=w.weight_dtype, max_model_len=w.max_model_len)
        cache = w.setup().cache
        return scenario_toml(
            Scenario(
                name=f"{self.name}, observed",
                engine=EngineConfig(
                    model=engine.model, dtype=engine.dtype, max_model_len=engine.max_model_len, scheduler=w.scheduler, cache=cache
                ),
                load=w.load,
                device=w.device,
                tensor_parallel=w.tensor_parallel,
            )
        )


def _hub_name(model: ModelSpec) -> str:
    return next((e.repo for e in CATALOG if e.spec.num_parameters == model.num_parameters), model.name)


def lengths_of(histogram: Histogram | None, mean: float | None) -> LengthSpec | None:
    """A length distribution from a histogram of lengths, scaled to its exact mean; from a mean alone a fixed length."""
    if histogram is not None and histogram.count >= 1:
        ranks = [histogram.quantile((k + 0.5) / QUANTILES) or 1.0 for k in range(QUANTILES)]
        factor = (histogram.mean or 0.0) / (sum(ranks) / QUANTILES)
        return LengthSpec.empirical(tuple(min(max(round(r * factor), 1), MAX_TOKENS) for r in ranks))
    if mean is None or not math.isfinite(mean):
        return None
    return LengthSpec.fixed(min(max(round(mean), 1), MAX_TOKENS))


def _scheduler(state: TargetState, budget: int | None, said: list[str]) -> SchedulerConfig:
    seats = state.seats
    if seats is None:
        seats = VLLM_SEATS
        said.append(f"max_num_seqs is on no metrics page and no queue has shown it yet: {VLLM_SEATS} taken")
    elif state.seats_inferred:
        said.append(f"max_num_seqs {seats}: the batch at which requests were seen to wait")
    if budget is None:
        said.append(f"max_num_batched_tokens is on no metrics page: vLLM's default of {VLLM_BUDGET} taken")
    return SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=max(budget or VLLM_BUDGET, 1))


def _load(state: TargetState, seen: Summary, now_s: float, said: list[str]) -> LoadSpec:
    intervals = recent(state, now_s, OBSERVED_S)
    page = state.page
    assert page is not None
    arrived = sum(i.first_tokens or 0.0 for i in intervals)
    made, finished = sum(i.output_tokens or 0.0 for i in intervals), seen.finished or 0.0
    read = sum(i.prompt_tokens or 0.0 for i in intervals)
    prompts = lengths_of(_lengths("prompt_length", state, now_s), read / arrived if arrived else None)
    outputs = lengths_of(_lengths("output_length", state, now_s), made / finished if finished else None)
    if prompts is None or outputs is None or not seen.requests_per_s:
        raise ConfigError("too few requests were seen on this server to take its load; wait until some have ended")
    waited = sum(bool(i.waiting) for i in intervals)
    users = round((seen.mean_running or 0.0) + (seen.mean_waiting or 0.0))
    closed = waited * 2 > len(intervals) and users >= 1
    number = min(max(round(seen.requests_per_s * OBSERVED_S), LEAST_REQUESTS, 3 * users if closed else 0), MOST_REQUESTS)
    if closed:
        said.append(f"requests waited at most scrapes: the load is {users} users who ask again at once")
    else:
        said.append(f"Poisson arrivals at the observed {seen.requests_per_s:.3g} requests/s")
    hits = seen.prefix_hit_rate or 0.0
    shared = round(hits * prompts.mean)
    if shared >= 1:
        said.append(f"prefix hits of {hits:.3g} as one common prefix of {shared} tokens")
    return LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP if closed else ArrivalProcess.POISSON,
        rate_per_s=max(seen.requests_per_s, 1e-6),
        users=max(users, 1),
        num_requests=number,
        prompt_tokens=prompts,
        output_tokens=outputs,
        prompt_kind=PromptKind.RANDOM,
        shared_prefix_share=1.0 if shared >= 1 else 0.0,
        shared_prefix_tokens=max(shared, 1),
        ignore_eos=True,
    )


def _lengths(word: str, state: TargetState, now_s: float) -> Histogram | None:
    """Lengths of the observed time, or of the server's whole life where few requests ended since."""
    found = merged(word, recent(state, now_s, OBSERVED_S))
    if found is not None and found.count >= LEAST_REQUESTS // 2:
        return found
    return state.page.histograms.get(word) if state.page else None


def _pool(page: ServerPage, said: list[str]) -> tuple[int, int | None]:
    if page.block_size is None or page.num_blocks is None:
        said.append("block size and pool are not exported: blocks of 16 tokens, as many as fit into the device's memory")
        return 16, None
    return page.block_size, page.num_blocks


def take(
    state: TargetState,
    now_s: float,
    *,
    device: DeviceSpec | None = None,
    model: ModelSpec | None = None,
    tensor_parallel: int = 1,
    budget: int | None = None,
) -> Taken:
    """The what-if of a watched server.

    Args:
        device, model: what the server runs; by default its target's, and what its model's name says.

    Raises:
        ConfigError: where the server, its model or its device is not known, or too little was seen.
    """
    if state.page is None:
        raise ConfigError(f"{state.name} has not answered yet; there is nothing to take")
    target = state.target
    if model is None and target is not None and target.model is not None:
        model, tensor_parallel = target.model.spec, target.model.tensor_parallel
    model = model or guess_model(state.page.model)
    device = device or (target.device if target else None)
    if model is None:
        raise ConfigError(f"the model {state.page.model!r} is not in the catalogue; choose its geometry")
    if device is None:
        raise ConfigError(f"the device of {state.name} is not known; choose one")
    said: list[str] = []
    budget = budget or state.page.max_num_batched_tokens
    if state.page.engines > 1:
        raise ConfigError(f"{state.name} is {state.page.engines} engines behind one page; watch each of them by itself")
    seen = summarise([state], now_s, OBSERVED_S)
    block_size, num_blocks = _pool(state.page, said)
    caching = state.page.prefix_caching
    whatif = WhatIf(
        model=model,
        device=device,
        scheduler=_scheduler(state, budget, said),
        block_size=block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=True if caching is None else caching,
        tensor_parallel=tensor_parallel,
        load=_load(state, seen, now_s, said),
        label=f"{state.name}: {model.name} on {device.name}",
    )
    said.append("weights and KV in 16 bit; host and launch cost of a step left out")
    return Taken(state.name, whatif, seen, tuple(said))


def observed_figure(seen: Summary, name: str) -> float | None:
    """A figure of a summary under the simulation's name for it."""
    kind, _, rank = name.rpartition("_")
    if rank in ("p50", "p95", "p99"):
        value = getattr(getattr(seen, kind), rank)
        return None if value is None else float(value)
    if name == "mean_batch":
        return seen.mean_running
    value = getattr(seen, name)
    return None if value is None else float(value)


class Prediction:
    """A what-if that runs in a thread of its own; `result` and `message` appear when it is done."""

    def __init__(self, taken: Taken) -> None:
        self.taken = taken
        self.result: SimulationResult | None = None
        self.message = ""
        self.done_requests = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attach-prediction", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.taken.whatif.run(should_stop=self._stop.is_set, on_progress=self._progress)
        except BatchscopeError as error:
            self.message = str(error)

    def _progress(self, done: int, _time_s: float) -> None:
        self.done_requests = done

    @property
    def is_running(self) -> bool:
        """True until there is a result or a message."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end, at most `timeout_s`."""
        self._thread.join(timeout_s)

    def cancel(self) -> None:
        """Stop at the next check."""
        self._stop.set()
