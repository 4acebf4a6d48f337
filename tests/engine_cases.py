"""Small engines for tests: one on the tiny model, one whose executor answers by a script and loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from core.clock import Clock, StepClock
from core.config import CacheConfig, EngineConfig
from core.engine import Engine
from core.executor import ExecutorInfo
from core.factory import create_engine, with_overrides
from core.model_spec import TINY, ModelSpec
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.request import SamplingParams
from core.run_record import RunRecorder
from core.runtime.tokenizer import ByteTokenizer
from core.scheduler import Scheduler

EOS = 0
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)


def tiny_engine(*, recorder: RunRecorder | None = None, **knobs: Any) -> Engine:
    """The tiny model in float32 on a step clock, every conservation law checked after every step."""
    plain = {"model": "tiny", "clock": "step", "dtype": "float32", "check_invariants": True, "block_size": 4, "num_blocks": 256}
    plain |= {"num_threads": 1}  # on a model this small a second thread only gets in the way
    return create_engine(recorder=recorder, **(plain | knobs))


class ScriptedExecutor:
    """Answers with the scripted tokens of a request, and after them with tokens that follow from id and place.

    Args:
        script: output tokens by request id.
        failures: exception to raise instead of running the n-th call.
    """

    def __init__(
        self,
        cache: CacheConfig,
        script: Mapping[str, Sequence[int]] | None = None,
        failures: Mapping[int, Exception] | None = None,
        spec: ModelSpec = TINY,
    ) -> None:
        self.script = dict(script or {})
        self.failures = dict(failures or {})
        self.calls = 0
        self.closed = 0
        self.resizes: list[tuple[int, int, int]] = []
        self.refuse_resize: Exception | None = None
        self._outputs: dict[str, int] = {}
        self._spec = spec
        self._size = (cache.num_blocks, cache.block_size)

    @property
    def info(self) -> ExecutorInfo:
        weights = self._spec.num_parameters * 4
        return ExecutorInfo(
            self._spec, "scripted", "cpu", "float32", weights, weights, int(self._spec.kv_bytes_per_token("float32")),
            block_size=self._size[1], num_blocks=self._size[0],
        )  # fmt: skip

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self.calls += 1
        if self.calls in self.failures:
            raise self.failures[self.calls]
        for request_id in scheduler_output.released_ids:
            self._outputs.pop(request_id, None)
        for new in scheduler_output.new_requests:
            self._outputs[new.request_id] = len(new.token_ids) - new.num_prompt_tokens
        sampled = []
        for request_id, samples in zip(scheduler_output.request_ids, scheduler_output.samples, strict=True):
            place = self._outputs[request_id]
            if samples:
                sampled.append((request_id, self._token(request_id, place)))
                self._outputs[request_id] = place + 1
        return ModelRunnerOutput(scheduler_output.step, tuple(sampled))

    def _token(self, request_id: str, place: int) -> int:
        script = self.script.get(request_id, ())
        return script[place] if place < len(script) else 33 + crc32(f"{request_id}/{place}".encode()) % 90

    def resize(self, num_blocks: int, block_size: int, num_swap_blocks: int) -> None:
        if self.refuse_resize is not None:
            error, self.refuse_resize = self.refuse_resize, None
            raise error
        self.resizes.append((num_blocks, block_size, num_swap_blocks))
        self._outputs.clear()
        self._size = (num_blocks, block_size)

    def close(self) -> None:
        self.closed += 1


def scripted_engine(
    script: Mapping[str, Sequence[int]] | None = None,
    *,
    failures: Mapping[int, Exception] | None = None,
    clock: Clock | None = None,
    recorder: RunRecorder | None = None,
    spec: ModelSpec = TINY,
    with_text: bool = True,
    **knobs: Any,
) -> Engine:
    """An engine on a `ScriptedExecutor`; `knobs` by name as in `create_engine`."""
    plain = {"model": "tiny", "clock": "step", "dtype": "float32", "check_invariants": True, "block_size": 4, "num_blocks": 64}
    config = with_overrides(EngineConfig(), plain | knobs)
    executor = ScriptedExecutor(config.cache, script, failures, spec)
    limit = spec.max_model_len
    scheduler = Scheduler(
        config.scheduler,
        config.cache,
        max_model_len=min(config.max_model_len or limit, limit),
        vocab_size=spec.vocab_size,
        eos_token_ids=(EOS,),
        seed=config.seed,
        kv_bytes_per_token=executor.info.kv_bytes_per_token,
    )
    tokenizer = ByteTokenizer(spec.vocab_size, None, (EOS,)) if with_text else None
    return Engine(scheduler, executor, clock or StepClock(), config=config, tokenizer=tokenizer, recorder=recorder)


def texts_of(events: Sequence[Any]) -> dict[str, str]:
    """Joined stream of each request."""
    out: dict[str, str] = {}
    for event in events:
        out[event.request_id] = out.get(event.request_id, "") + event.text
    return out


def tokens_of(events: Sequence[Any]) -> dict[str, list[int]]:
    """Output tokens of each request."""
    out: dict[str, list[int]] = {}
    for event in events:
        if event.kind == "token":
            out.setdefault(event.request_id, []).append(event.token_id)
    return out
