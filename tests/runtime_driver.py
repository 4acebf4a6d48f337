"""Drives a ModelRunner with hand-made decisions: the smallest scheduler that can join, chunk, skip, preempt and pad."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
import torch

from core.clock import Clock, StepClock
from core.config import CacheConfig
from core.model_spec import TINY, ModelSpec
from core.outputs import ModelRunnerOutput, NewRequestData, SchedulerOutput
from core.request import SamplingParams
from core.runtime.backend import Backend
from core.runtime.model_runner import ModelRunner
from core.runtime.plain_backend import PlainBackend
from core.runtime.synthetic import SyntheticSource


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Import it to run a module's torch code on one thread; parallel regions cost more than tiny products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_runner(
    spec: ModelSpec = TINY,
    *,
    dtype: torch.dtype = torch.float32,
    num_blocks: int = 64,
    block_size: int = 4,
    num_swap_blocks: int = 0,
    nan_fill: bool = False,
    seed: int = 0,
    backend: Backend | None = None,
    clock: Clock | None = None,
) -> ModelRunner:
    """A runner of seeded weights on the plain backend."""
    weights = SyntheticSource(spec, seed).weights(dtype, torch.device("cpu"), spec.max_model_len)
    cache = CacheConfig(num_blocks=num_blocks, block_size=block_size, num_swap_blocks=num_swap_blocks)
    return ModelRunner(spec, weights, backend or PlainBackend(), cache, clock=clock or StepClock(), nan_fill=nan_fill)


@dataclasses.dataclass
class Live:
    """A request as the driver sees it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    output: list[int] = dataclasses.field(default_factory=list)
    computed: int = 0
    blocks: list[int] = dataclasses.field(default_factory=list)
    known: bool = False  # the runner holds it

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output)

    @property
    def missing(self) -> int:
        return len(self.tokens) - self.computed


class Driver:
    """Blocks are handed out lowest first; a step runs exactly the tokens it is told to."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.block_size = runner.info.block_size
        self.free = list(range(runner.info.num_blocks))
        self.live: dict[str, Live] = {}
        self.released: list[str] = []
        self.steps = 0

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams | None = None, seed: int = 0) -> None:
        self.live[request_id] = Live(tuple(prompt), sampling or SamplingParams(), seed)

    def step(self, counts: dict[str, int], *, padded: tuple[int, int, int] = (0, 0, 0), **extra: object) -> ModelRunnerOutput:
        """Run `counts[id]` tokens of each request; `padded` is rows, width, context."""
        new, grown = [], []
        for request_id, count in counts.items():
            r = self.live[request_id]
            need = -(-(r.computed + count) // self.block_size) - len(r.blocks)
            fresh = [self.free.pop(0) for _ in range(need)]
            r.blocks += fresh
            if not r.known:
                data = (request_id, r.tokens, len(r.prompt), tuple(r.blocks), r.sampling, r.seed)
                new.append(NewRequestData(*data))
                r.known = True
            elif fresh:
                grown.append((request_id, tuple(fresh)))
        rows = [self.live[i] for i in counts]
        decision = SchedulerOutput(
            self.steps,
            tuple(counts),
            tuple(counts.values()),
            tuple(r.computed for r in rows),
            tuple(r.missing == n for r, n in zip(rows, counts.values(), strict=True)),
            tuple(r.missing > 1 for r in rows),
            new_requests=tuple(new),
            new_block_ids=tuple(grown),
            released_ids=tuple(self.released),
            padded_rows=padded[0],
            padded_width=padded[1],
            padded_context=padded[2],
        )
        self.released = []
        result = self.runner.execute_model(dataclasses.replace(decision, **extra))
        for r, count in zip(rows, counts.values(), strict=True):
            r.computed += count
        for request_id, token in result.sampled:
            self.live[request_id].output.append(token)
        self.steps += 1
        return result

    def take_back(self, request_id: str) -> None:
        """Preempt by recompute: blocks are freed (the latest first in line again), computed tokens forgotten."""
        r = self.live[request_id]
        self.free = r.blocks + self.free
        r.blocks, r.computed, r.known = [], 0, False
        self.released.append(request_id)

    def finish(self, request_id: str) -> list[int]:
        """End a request and return its output."""
        self.take_back(request_id)
        return self.live.pop(request_id).output

    def run(self, num_tokens: int, *, chunk: int = 1_000_000) -> dict[str, list[int]]:
        """Run all live requests together until each has `num_tokens` output tokens."""
        while any(len(r.output) < num_tokens for r in self.live.values()):
            active = {i: r for i, r in self.live.items() if len(r.output) < num_tokens}
            self.step({i: min(r.missing, chunk) for i, r in active.items()})
        return {i: r.output for i, r in self.live.items()}


def prompts_of(lengths: Sequence[int], vocab_size: int = 256, seed: int = 1) -> list[list[int]]:
    """Random prompts without the end token 0."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def generate_alone(runner: ModelRunner, prompt: Sequence[int], num_tokens: int, **request: object) -> list[int]:
    """Output of one request that has the runner for itself."""
    driver = Driver(runner)
    driver.add("alone", prompt, **request)  # type: ignore[arg-type]
    output = driver.run(num_tokens)["alone"]
    driver.finish("alone")
    runner.execute_model(SchedulerOutput(driver.steps, released_ids=("alone",)))
    return output
