"""CPU-only scheduler tests: small builders, and an executor whose tokens depend on what the KV slots really hold.

`FakeRunner` keeps one value a slot. Computing a token writes its history into the slot that the block table names;
sampling reads the whole context back through the table. A stale, shared or overwritten block, a wrong start or a
missing copy therefore changes the tokens, exactly as it would in a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from core.config import CacheConfig, SchedulerConfig
from core.outputs import ModelRunnerOutput, RequestEvent, SchedulerOutput
from core.request import Request, SamplingParams
from core.scheduler import Scheduler

VOCAB = 997
GARBAGE = -1  # what a slot holds before anything is written


def create_scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 256,
    caching: bool = True,
    eos: Sequence[int] = (),
    num_swap_blocks: int = 0,
    eviction: str = "lru",
    seed: int = 0,
    **knobs: object,
) -> Scheduler:
    """A scheduler over a tiny pool; further keywords are knobs of SchedulerConfig."""
    return Scheduler(
        SchedulerConfig(**knobs),
        CacheConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            enable_prefix_caching=caching,
            eviction_policy=eviction,
            num_swap_blocks=num_swap_blocks,
        ),
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        eos_token_ids=eos,
        seed=seed,
        kv_bytes_per_token=16.0,
    )


def create_request(
    request_id: str,
    prompt: int | Sequence[int],
    max_tokens: int = 4,
    *,
    at: float = 0.0,
    sampling: SamplingParams | None = None,
    **fields: object,
) -> Request:
    """A request; a prompt given as a length gets tokens that no other id shares."""
    tokens = distinct_tokens(request_id, prompt) if isinstance(prompt, int) else tuple(prompt)
    params = sampling or SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=request_id, prompt_token_ids=tokens, sampling=params, arrival_time_s=at, **fields)


def create_requests(count: int, prompt: int, max_tokens: int = 4, *, prefix: str = "r", **fields: object) -> list[Request]:
    """`count` requests of one shape with different prompts."""
    return [create_request(f"{prefix}{i}", prompt, max_tokens, **fields) for i in range(count)]


def distinct_tokens(name: str, count: int) -> tuple[int, ...]:
    """Tokens that follow from a name alone."""
    return tuple(_mix(name.encode(), i) % VOCAB for i in range(count))


def _mix(*parts: object) -> int:
    raw = "|".join(p.hex() if isinstance(p, bytes) else str(p) for p in parts).encode()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")


def _history(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % (1 << 61)


@dataclass
class _Held:
    """What the runner keeps of a request."""

    token_ids: list[int]
    block_ids: list[int]
    sampling_seed: int
    num_prompt_tokens: int


class FakeRunner:
    """Executes SchedulerOutputs on slots that hold token histories.

    Args:
        choose: maps (request id, number of output tokens so far, default token) to the token to sample.
    """

    def __init__(self, scheduler: Scheduler, choose: Callable[[str, int, int], int] | None = None) -> None:
        self.choose = choose
        self.resize(scheduler)

    def resize(self, scheduler: Scheduler) -> None:
        """A new, empty pool, as the executor's own `resize`."""
        cache = scheduler.cache
        self.block_size = cache.block_size
        self.slots = [[GARBAGE] * cache.block_size for _ in range(cache.num_blocks)]
        self.host = [[GARBAGE] * cache.block_size for _ in range(cache.num_swap_blocks)]
        self.held: dict[str, _Held] = {}

    def execute_model(self, out: SchedulerOutput) -> ModelRunnerOutput:
        for device, host in out.swap_out:
            self.host[host] = list(self.slots[device])
        for host, device in out.swap_in:
            self.slots[device] = list(self.host[host])
        for source, target in out.copy_blocks:
            self.slots[target] = list(self.slots[source])
        for rid in out.released_ids:
            self.held.pop(rid, None)
        for new in out.new_requests:
            assert new.request_id not in self.held, f"{new.request_id} is new twice"
            self.held[new.request_id] = _Held(list(new.token_ids), list(new.block_ids), new.sampling_seed, new.num_prompt_tokens)
        for rid, blocks in out.new_block_ids:
            self.held[rid].block_ids += blocks
        sampled = []
        writes = []
        for rid, count, start, samples in zip(
            out.request_ids, out.num_scheduled_tokens, out.num_computed_tokens, out.samples, strict=True
        ):
            row = self.held[rid]
            assert start + count <= len(row.token_ids), f"{rid} is asked to compute past its end"
            before = self._read(row, start - 1) if start else 0
            assert before != GARBAGE, f"{rid} reads slot {start - 1}, which nobody has written"
            for position in range(start, start + count):
                before = _history(before, row.token_ids[position])
                block, slot = row.block_ids[position // self.block_size], position % self.block_size
                self.slots[block][slot] = before
                writes.append((block, slot))
            if samples:
                assert start + count == len(row.token_ids)
                sampled.append((rid, self._sample(rid, row)))
        assert len(set(writes)) == len(writes), "two rows write one slot"
        for rid, token in sampled:
            self.held[rid].token_ids.append(token)
        return ModelRunnerOutput(step=out.step, sampled=tuple(sampled))

    def _read(self, row: _Held, position: int) -> int:
        return self.slots[row.block_ids[position // self.block_size]][position % self.block_size]

    def _sample(self, rid: str, row: _Held) -> int:
        """A token that depends on every slot of the context and on the request's own seed."""
        context = 0
        expected = 0
        for position, token in enumerate(row.token_ids):
            expected = _history(expected, token)
            value = self._read(row, position)
            assert value == expected, f"{rid}: slot {position} holds something else than its history"
            context = _history(context, value % VOCAB)
        token = _mix(context, row.sampling_seed, len(row.token_ids)) % VOCAB
        return token if self.choose is None else self.choose(rid, len(row.token_ids) - row.num_prompt_tokens, token)


@dataclass
class Driver:
    """Steps a scheduler with a FakeRunner on a step counter and checks all laws after every call."""

    scheduler: Scheduler
    runner: FakeRunner = None  # type: ignore[assignment]
    now: float = 0.0
    check: bool = True
    outputs: list[SchedulerOutput] = field(default_factory=list)
    events: list[RequestEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = self.runner or FakeRunner(self.scheduler)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)
            self._check()

    def step(self) -> SchedulerOutput:
        """One whole step: decide, run, book."""
        out = self.scheduler.schedule(self.now)
        self._check()
        result = self.runner.execute_model(out)
        self.now += 1.0
        self.events += self.scheduler.update_from_output(out, result, self.now)
        self._check()
        self.outputs.append(out)
        return out

    def steps(self, count: int) -> list[SchedulerOutput]:
        return [self.step() for _ in range(count)]

    def run(self, max_steps: int = 2000) -> list[SchedulerOutput]:
        """Step until nothing is live."""
        done = []
        while self.scheduler.has_work():
            assert len(done) < max_steps, f"still at work after {max_steps} steps: {list(self.scheduler.requests)}"
            done.append(self.step())
        return done

    def abort(self, request_id: str) -> RequestEvent:
        event = self.scheduler.abort(request_id, self.now)
        self.events.append(event)
        self._check()
        return event

    def _check(self) -> None:
        if self.check:
            self.scheduler.check_invariants()


def outputs_of(requests: Iterable[Request]) -> dict[str, list[int]]:
    """Output tokens by id."""
    return {r.request_id: list(r.output_token_ids) for r in requests}
