"""The executor that runs nothing: it prices a batch, moves the virtual clock, and answers with made-up tokens.

    decision -> StepComposition -> StepTimer -> clock.advance(seconds) -> one token for each row that samples

A request ends as it would have ended: after `max_tokens`, or with the model's end token at a length that the caller knows
(a trace's). Tokens depend on the seed, the request and the place only, so a preempted, chunked or cached request gets
the tokens of the plain run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from operator import add
from typing import NamedTuple
from zlib import crc32

from core.clock import Clock, VirtualClock
from core.config import CacheConfig, EngineConfig
from core.cost_model import CostModel, StepComposition, StepSums
from core.devices import DEVICES, DeviceSpec
from core.errors import ConfigError
from core.executor import ExecutorInfo
from core.memory_plan import weight_memory_bytes
from core.model_spec import SMOLLM2_135M, TINY, ModelSpec
from core.models_catalog import MODELS
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.step_composition import sum_columns
from core.step_timer import RooflineTimer, StepTimer

DEFAULT_DEVICE = "H100 SXM"
_STRIDE = 0x9E3779B1  # odd, so that places of one request get different tokens for any vocabulary


class PricedStep(NamedTuple):
    """What a step came to: sums over all that ran, sums over what was useful, and the bytes of copied blocks."""

    run: StepSums
    useful: StepSums
    swap_bytes: float
    copy_bytes: float


class SimExecutor:
    """Implements `core.executor.Executor` on a virtual clock.

    Args:
        model: prices FLOPs and bytes; `timer` turns a composition into seconds.
        clock: moved by each step.
        output_lengths: request id -> number of output tokens after which the model's end token comes; requests that are
            not in it run to their `max_tokens`.
        device: its name, for labels.

    Attributes:
        last: the latest step as it was priced; None before the first.
    """

    def __init__(
        self,
        model: CostModel,
        timer: StepTimer,
        clock: VirtualClock,
        cache: CacheConfig,
        *,
        dtype: str = "bfloat16",
        weight_dtype: str | None = None,
        seed: int = 0,
        output_lengths: Mapping[str, int] | None = None,
        device: str = "",
    ) -> None:
        self._model, self._timer, self._clock = model, timer, clock
        self._dtype, self._weight_dtype, self._seed = dtype, weight_dtype or dtype, seed
        self._device = device or timer.label
        self._lengths = output_lengths if output_lengths is not None else {}
        self._bases: dict[str, int] = {}
        self._ends: dict[str, int] = {}  # position of the end token
        spec = model.spec
        self._window = spec.sliding_window
        self.last: PricedStep | None = None
        self._vocab = spec.vocab_size
        self._eos = spec.eos_token_ids[0] if spec.eos_token_ids else None
        self._silent = frozenset(spec.eos_token_ids)
        if len(self._silent) >= self._vocab:
            raise ConfigError(f"every token of {spec.name} ends an output; a simulation needs one that does not")
        self.resize(cache.num_blocks, cache.block_size, cache.num_swap_blocks)

    @property
    def info(self) -> ExecutorInfo:
        spec = self._model.spec
        return ExecutorInfo(
            spec=spec,
            model_label=spec.name,
            device=self._device,
            dtype=self._dtype,
            weight_bytes=round(weight_memory_bytes(spec, self._weight_dtype, self._dtype)),
            weight_bytes_read=round(self._model.dense_bytes + self._model.head_bytes + self._all_experts_bytes()),
            kv_bytes_per_token=round(self._model.kv_read_per_token),
            block_size=self._block_size,
            num_blocks=self._num_blocks,
            kernels=self._timer.label,
            kind="predicted",
        )

    def _all_experts_bytes(self) -> float:
        return self._model.expert_bytes * self._model.spec.num_experts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Price the step, let its time pass, answer each row that samples."""
        priced = self._pass_time(scheduler_output)
        timing = self._timer.predict(priced.run, priced.swap_bytes, priced.copy_bytes)
        tokens = self._tokens(scheduler_output)
        rows = compress(scheduler_output.request_ids, scheduler_output.samples)
        return ModelRunnerOutput(scheduler_output.step, tuple(zip(rows, tokens, strict=True)), timing)

    def run(self, scheduler_output: SchedulerOutput) -> list[int]:
        """As `execute_model`, and only the tokens, for `Scheduler.update_quietly`."""
        self._pass_time(scheduler_output)
        return self._tokens(scheduler_output)

    def _pass_time(self, output: SchedulerOutput) -> PricedStep:
        swaps = len(output.swap_in) + len(output.swap_out)
        swap_bytes = swaps * self._block_bytes if swaps else 0.0
        copy_bytes = len(output.copy_blocks) * self._block_bytes if output.copy_blocks else 0.0
        if output.padded_rows:
            composition = StepComposition.from_scheduler_output(output, self._block_bytes)
            run, useful = composition.padded_sums(self._window), composition.sums(self._window)
        else:
            run = useful = sum_columns(output.num_scheduled_tokens, output.num_computed_tokens, output.samples, self._window)
        priced = self.last = PricedStep(run, useful, swap_bytes, copy_bytes)
        self._clock.advance(self._timer.seconds(run, swap_bytes, copy_bytes))
        return priced

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        """Take another size of the pool and forget every request."""
        self._num_blocks, self._block_size = num_blocks, block_size
        self._block_bytes = self._model.kv_read_per_token * block_size
        self._bases.clear()
        self._ends.clear()

    def close(self) -> None:
        """Forget every request."""
        self._bases.clear()
        self._ends.clear()

    def _tokens(self, output: SchedulerOutput) -> list[int]:
        """The token of each row that samples, in row order."""
        bases, ends = self._bases, self._ends
        for request_id in output.released_ids:
            bases.pop(request_id, None)
            ends.pop(request_id, None)
        for new in output.new_requests:
            request_id = new.request_id
            bases[request_id] = crc32(request_id.encode("utf-8", "surrogatepass"), self._seed)
            length = self._lengths.get(request_id)
            if length is not None and self._eos is not None:
                ends[request_id] = new.num_prompt_tokens + length
        vocab, eos = self._vocab, self._eos
        rows = output.request_ids
        places = list(map(add, output.num_computed_tokens, output.num_scheduled_tokens))  # of the new token, from 0
        if not all(output.samples):
            rows, places = tuple(compress(rows, output.samples)), list(compress(places, output.samples))
        tokens = [(bases[r] + place * _STRIDE) % vocab for r, place in zip(rows, places, strict=True)]
        if not self._silent.isdisjoint(tokens):
            tokens = [self._audible(token) for token in tokens]
        if ends and eos is not None:
            tokens = [
                eos if place + 1 >= ends.get(r, place + 2) else token
                for r, place, token in zip(rows, places, tokens, strict=True)
            ]
        return tokens

    def _audible(self, token: int) -> int:
        while token in self._silent:
            token = (token + 1) % self._vocab
        return token


def simulated_spec(config: EngineConfig) -> ModelSpec:
    """The geometry that a configuration names, without touching weights.

    Raises:
        ConfigError: for a name that is neither in the catalogue nor given as `spec`.
    """
    if config.spec is not None:
        return config.spec
    known = {"smollm2": SMOLLM2_135M, "synthetic": SMOLLM2_135M, "tiny": TINY}
    if config.model in known:
        return known[config.model]
    for entry in MODELS.values():
        if config.model in (entry.name, entry.repo):
            return entry.spec
    raise ConfigError(
        f"the simulator knows no geometry of model {config.model!r}; give `spec`, or one of: {', '.join([*known, *MODELS])}"
    )


def simulated_executor(
    config: EngineConfig, clock: Clock, *, device: DeviceSpec | None = None, timer: StepTimer | None = None
) -> SimExecutor:
    """An executor for `EngineConfig(executor="simulated")`: the roofline of `device` unless a `timer` is given.

    Raises:
        ConfigError: for a model that is not known or a clock that is not virtual.
    """
    if not isinstance(clock, VirtualClock):
        raise ConfigError("a simulated executor moves a virtual clock; use clock 'virtual'")
    spec = simulated_spec(config)
    weight_dtype = config.dtype if config.weight_dtype == "same" else config.weight_dtype
    model = CostModel.of(
        spec, weight_dtype=weight_dtype, kv_dtype=config.dtype, head_dtype=config.dtype, activation_dtype=config.dtype
    )
    device = device or DEVICES[DEFAULT_DEVICE]
    return SimExecutor(
        model,
        timer or RooflineTimer(model, device),
        clock,
        config.cache,
        dtype=config.dtype,
        weight_dtype=weight_dtype,
        seed=config.seed,
        device=device.name if timer is None else timer.label,
    )
