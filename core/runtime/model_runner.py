"""The executor that really runs the model: state, KV tensors, one forward pass and one sampling call a step.

    released, new, grown rows -> swap out, swap in, copy -> flat batch -> logits -> one token for each row that samples

The only module that moves keys and values between device and host. Block `num_blocks`, one past the pool, is the
scratch block of padded steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.clock import Clock, WallClock
from core.config import CacheConfig
from core.errors import ConfigError, ExecutorError
from core.executor import ExecutorInfo
from core.model_spec import ModelSpec
from core.outputs import ModelRunnerOutput, SchedulerOutput, StepTiming, TopLogprobs
from core.runtime.backend import Backend, KVCache, ModelWeights
from core.runtime.input_batch import InputBatch, PlannedStep
from core.runtime.model import DecoderModel
from core.runtime.prepared_step import PreparedStep, added_by, has_same_batch
from core.runtime.probe import measure_ceilings
from core.runtime.sampler import Sampler, SamplingBatch, likeliest
from core.runtime.weights import weight_bytes
from core.slots import by_slots
from core.snapshot import RooflineCeilings

_output, _timing = by_slots(ModelRunnerOutput), by_slots(StepTiming)


class ModelRunner:
    """Implements `core.executor.Executor` in this process.

    Args:
        spec, weights: the model, its tensors on one device and of one dtype.
        backend: who computes.
        cache: size of the KV pool and of the host's swap space.
        clock: source of the timing split.
        label: the model's name for people; fallback: "" or why it stands in for another.
        nan_fill: fill the pool with NaN instead of zeros, to prove that unwritten slots never matter.

    Raises:
        ConfigError: if the pool does not fit into memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        backend: Backend,
        cache: CacheConfig,
        *,
        clock: Clock,
        label: str = "",
        fallback: str = "",
        nan_fill: bool = False,
    ) -> None:
        self._spec, self._clock, self._nan_fill = spec, clock, nan_fill
        self._label, self._fallback = label or spec.name, fallback
        self._device, self._dtype = weights.embedding.device, weights.embedding.dtype
        self._num_threads = torch.get_num_threads()  # a backend with threads of its own leaves PyTorch one later
        self._weight_bytes = weight_bytes(weights)
        self._max_model_len = len(weights.rope_cos)
        self._model = DecoderModel(spec, weights, backend)
        self._sampler = Sampler(spec.eos_token_ids)
        self._closed = False
        self._info: ExecutorInfo | None = None
        self._info_paths: tuple[object, ...] = ()
        self._prepared: PreparedStep | None = None
        self._cache: KVCache
        self._host: KVCache | None = None
        self._batch: InputBatch
        self.resize(cache.num_blocks, cache.block_size, cache.num_swap_blocks)

    @property
    def info(self) -> ExecutorInfo:
        """One object as long as nothing in it changes."""
        backend = self._model.backend
        paths = (backend.name, str(getattr(backend, "graph_label", "")), self._cache.num_blocks, self._cache.block_size)
        if self._info is None or self._info_paths != paths:
            self._info, self._info_paths = self._describe(), paths
        return self._info

    def _describe(self) -> ExecutorInfo:
        stored, read = self._weight_bytes
        backend = self._model.backend
        saved = int(getattr(backend, "saved_bytes", 0))  # a backend may hold the matrices in fewer bits
        coded = int(getattr(backend, "coded_bytes", 0))  # or a second time, for steps of few tokens
        return ExecutorInfo(
            spec=self._spec,
            model_label=self._label,
            device=_device_label(self._device),
            dtype=str(self._dtype).removeprefix("torch."),
            weight_bytes=stored - saved + coded,
            weight_bytes_read=read - saved,
            kv_bytes_per_token=self._cache.bytes_per_token,
            block_size=self._cache.block_size,
            num_blocks=self._cache.num_blocks,
            num_threads=self._num_threads if self._device.type == "cpu" else 0,
            fallback=self._fallback,
            kernels=backend.name,
            graphs=str(getattr(backend, "graph_label", "")),
            coded_tokens=int(getattr(backend, "coded_tokens", 0)),
            coded_bytes_read=read - int(getattr(backend, "coded_saved_bytes", 0)) if coded else 0,
        )

    @property
    def backend(self) -> Backend:
        """Who computes; for tests and measurements."""
        return self._model.backend

    @property
    def cache(self) -> KVCache:
        """The KV tensors; for tests and probes, nobody else touches them."""
        return self._cache

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; see `Executor`. Rows with samples=True, and only those, get a token.

        Raises:
            ExecutorError: for a decision that does not fit what the runner holds, or a failed forward pass.
        """
        if self._closed:
            raise ExecutorError("the model runner is closed; create a new one")
        began = self._clock.now()
        ahead, self._prepared = self._prepared, None
        if ahead is not None and ahead.output.step != scheduler_output.step:
            ahead = None
        discarded_s = 0.0
        if ahead is not None and has_same_batch(ahead.output, scheduler_output):
            planned: PlannedStep | None = ahead.planned
            began -= ahead.seconds
        else:
            discarded_s = ahead.seconds if ahead is not None else 0.0
            planned = self._plan(scheduler_output, ahead)
        prepared = self._clock.now()
        if planned is None:
            timing = StepTiming(prepare_s=prepared - began, discarded_s=discarded_s)
            return ModelRunnerOutput(scheduler_output.step, timing=timing)
        logits = self._forward(planned)
        forwarded = self._clock.now()
        sampled, logprobs = self._sample(logits, planned)
        done = self._clock.now()
        timing = _timing(prepared - began, forwarded - prepared, done - forwarded, 0.0, discarded_s)
        launch = str(getattr(self._model.backend, "launch", ""))
        return _output(scheduler_output.step, sampled, timing, logprobs, launch)

    def prepare_model(self, scheduler_output: SchedulerOutput) -> None:
        """Take over a decision and build its batch; see `PreparingExecutor`."""
        if self._closed:
            raise ExecutorError("the model runner is closed; create a new one")
        began = self._clock.now()
        planned = self._plan(scheduler_output, None)
        self._prepared = PreparedStep(scheduler_output, planned, self._clock.now() - began)

    def _plan(self, output: SchedulerOutput, ahead: PreparedStep | None) -> PlannedStep | None:
        """Take over a decision, or what it adds to the one that was prepared; None if it has no rows."""
        new = output if ahead is None else added_by(ahead.output, output)
        self._update_state(new)
        self._move_blocks(new)
        if not output.request_ids:
            return None
        planned = self._batch.plan(output)
        self._model.prepare(planned.batch)
        if self._batch.calls is None:
            self._batch.calls = getattr(self._model.backend, "row_calls", None)
        return planned

    def measure_ceilings(self, quick: bool = False) -> RooflineCeilings:
        """Peak and bandwidths of the device that this runner uses, measured now; see `core.runtime.probe`."""
        return measure_ceilings(self._dtype, self._device, _device_label(self._device), WallClock(), quick=quick)

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        """Replace the pool and forget every request; see `Executor`.

        Raises:
            ConfigError: if the tensors do not fit into memory; the old pool is gone then, call again with less.
        """
        spec = self._spec
        self._host = None
        self._prepared = None
        self._cache = KVCache(torch.empty(0), torch.empty(0))
        if self._device.type == "cuda":
            self._model.bind_cache(self._cache)  # nobody holds the old pool while the new one is allocated

        def tensors(blocks: int, device: torch.device) -> KVCache:
            shape = (spec.num_layers, blocks, spec.num_kv_heads, block_size, spec.head_dim)
            fill = float("nan") if self._nan_fill else 0.0
            try:
                return KVCache(*(torch.full(shape, fill, dtype=self._dtype, device=device) for _ in range(2)))
            except RuntimeError as error:
                size = 2 * np.prod(shape, dtype=float) * self._dtype.itemsize
                raise ConfigError(
                    f"{blocks} KV blocks of {block_size} tokens need {size / 2**30:.2f} GiB on {device}, which is not there;"
                    " ask for fewer blocks"
                ) from error

        self._cache = tensors(num_blocks + 1, self._device)
        if num_swap_blocks:
            self._host = tensors(num_swap_blocks, torch.device("cpu"))
        self._batch = InputBatch(block_size, self._cache.scratch_block, spec.vocab_size, self._max_model_len)
        self._model.bind_cache(self._cache)

    def close(self) -> None:
        """Drop weights and pool; calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._model.backend.close()
            self._batch = InputBatch(1, 0, 0, 0, rows=1, tokens=1)

    def _update_state(self, step: SchedulerOutput) -> None:
        self._batch.drop(step.released_ids)
        for new in step.new_requests:
            self._batch.add(new)
        for request_id, block_ids in step.new_block_ids:
            self._batch.append_blocks(request_id, block_ids)

    def _move_blocks(self, step: SchedulerOutput) -> None:
        """Swap out, then in, then copy: a block that leaves may be overwritten by one that comes."""
        if step.swap_out or step.swap_in:
            if self._host is None:
                raise ExecutorError(f"step {step.step} swaps blocks, but the swap space has 0 blocks")
            reused = {host for _, host in step.swap_out} & {host for host, _ in step.swap_in}
            if reused:
                raise ExecutorError(f"step {step.step} swaps out to host blocks {sorted(reused)} that it also swaps in")
            pool, space = self._cache.num_blocks, int(self._host.key.shape[1])
            _check_blocks(step.step, "swap_out", step.swap_out, pool, space)
            _check_blocks(step.step, "swap_in", step.swap_in, space, pool)
            _copy_blocks(self._cache, self._host, step.swap_out)
            _copy_blocks(self._host, self._cache, step.swap_in)
        if step.copy_blocks:
            _check_blocks(step.step, "copy_blocks", step.copy_blocks, self._cache.num_blocks, self._cache.num_blocks)
            _copy_blocks(self._cache, self._cache, step.copy_blocks)

    def _forward(self, planned: PlannedStep) -> torch.Tensor:
        try:
            logits = self._model.forward(planned.batch)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            batch = planned.batch
            raise ExecutorError(
                f"the forward pass of {batch.num_tokens} tokens in {batch.num_rows} rows failed: {error}"
            ) from error
        return logits

    def _sample(
        self, logits: torch.Tensor, planned: PlannedStep
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, TopLogprobs], ...]]:
        rows = planned.sample_rows
        if not len(rows):
            return (), ()
        state = self._batch
        best = self._model.backend.best_tokens() if len(planned.batch.logits_indices) == len(rows) else None
        if best is not None and state.all_plain():
            token_ids = likeliest(best, planned.sample_ids)
            state.commit(rows, token_ids)
            return tuple(zip(planned.sample_ids, token_ids.tolist(), strict=True)), ()
        params = [p for p in (state.sampling[row] for row in rows.tolist()) if p is not None]
        positions = state.num_tokens[rows] - state.num_prompt_tokens[rows]
        columns = SamplingBatch(planned.sample_ids, params, state.seeds[rows], positions)
        token_ids, logprobs = self._sampler.sample(logits[: len(rows)], columns, best)
        state.commit(rows, token_ids)
        return tuple(zip(planned.sample_ids, token_ids.tolist(), strict=True)), logprobs


def _check_blocks(step: int, name: str, pairs: Sequence[tuple[int, int]], sources: int, targets: int) -> None:
    bad = [(a, b) for a, b in pairs if not (0 <= a < sources and 0 <= b < targets)]
    if bad:
        raise ExecutorError(f"step {step} has {name} {bad[0]}; there are {sources} source and {targets} target blocks")


def _copy_blocks(source: KVCache, target: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks (source block, target block) of all layers; the sources are read before any target is written."""
    if not pairs:
        return
    origin = torch.tensor([a for a, _ in pairs], device=source.key.device)
    goal = torch.tensor([b for _, b in pairs], device=target.key.device)
    for old, new in ((source.key, target.key), (source.value, target.value)):
        new.index_copy_(1, goal, old.index_select(1, origin).to(new.device))


def _device_label(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
