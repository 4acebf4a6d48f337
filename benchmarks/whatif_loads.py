"""The loads that `benchmarks whatif` runs on the real engine, and the loop that runs them.

CALIBRATION   closed loops of 1 to 32 users, with and without pauses    the law is fitted to their steps, and only to them
HELD OUT      other mixes of users and lengths                          its step times are judged on these
              a burst of more requests than seats                       saturation
              Poisson arrivals at shares of the measured capacity       throughput and latencies

The two groups share no seed, no distribution of lengths and no arrival process; seeds are drawn from ranges of their own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from core.engine import Engine
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.prompts import RandomPrompts
from core.records import RequestRecord, StepRecord
from core.request import SamplingParams
from core.workload import Arrival, LoadGenerator

PROMPTS, OUTPUTS = LengthSpec.lognormal(96, 0.7, 8, 512), LengthSpec.lognormal(48, 0.6, 4, 160)
CALIBRATION_SEEDS, HELD_OUT_SEEDS = 100_000, 200_000
ROUNDS = 2
"""Each calibration load runs so many times, in turns: a disturbance then hits all kinds of steps and none alone."""
_LOWEST_ID = 3


@dataclass
class Run:
    """One load on the real engine: its steps, its ended requests and the arrivals as they were sent."""

    records: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last end."""
        return max(r.finished_s for r in self.requests) - self.arrivals[0].time_s

    @property
    def requests_per_s(self) -> float:
        return len(self.requests) / self.span_s


def fitting(spec: LoadSpec, engine: Engine) -> LoadSpec:
    """The load with prompts and outputs that the model's length has room for."""
    room = engine.scheduler.max_model_len // 2

    def cut(lengths: LengthSpec) -> LengthSpec:
        high = min(lengths.high, room)
        return replace(lengths, low=min(lengths.low, high), high=high)

    return replace(spec, prompt_tokens=cut(spec.prompt_tokens), output_tokens=cut(spec.output_tokens))


def run_live(engine: Engine, spec: LoadSpec, seconds: float | None = None, again: int = 0) -> Run:
    """Feed a load and step until it is done; with `seconds`, what is under way then is cancelled.

    Args:
        again: number of a repetition: same arrivals and lengths, other token ids, or the prefix cache would serve them.
    """
    clock, spec = engine.clock, fitting(spec, engine)
    load = LoadGenerator(spec, RandomPrompts(engine.info.spec.vocab_size, _LOWEST_ID + again), start_s=clock.now())
    step_before = engine.latest_record.step if engine.latest_record else 0
    run = Run()
    users: dict[str, int] = {}
    sent: set[str] = set()
    end_s = clock.now() + seconds if seconds is not None else float("inf")
    while clock.now() < end_s:
        for arrival in load.due(clock.now()):
            run.arrivals.append(arrival)
            params = SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True)
            request_id = engine.add_request(arrival.prompt_token_ids, params, arrival_time_s=arrival.time_s)
            users[request_id] = arrival.user
            sent.add(request_id)
        if engine.has_work():
            for event in engine.step():
                if event.kind == "finished":
                    load.on_end(users.pop(event.request_id), clock.now())
        elif load.next_time_s is None:
            break
        else:
            time.sleep(min(max(load.next_time_s - clock.now(), 0.0), 0.001))
    for request_id in users:
        engine.cancel(request_id)
    run.records = [r for r in engine.records if r.step > step_before]
    run.requests = [r for r in engine.telemetry.requests if r.request_id in sent and r.finish_reason != "cancelled"]
    return run


def warm_up(engine: Engine, limit_s: float = 300.0) -> None:
    """Run small loads until compiled kernels have taken over."""
    began = time.perf_counter()
    while True:
        burst = LoadSpec(
            process=ArrivalProcess.BURST, burst_size=4, prompt_kind=PromptKind.RANDOM, output_tokens=LengthSpec.fixed(8)
        )
        run_live(engine, burst)
        if "being compiled" not in engine.executor.info.kernels or time.perf_counter() - began > limit_s:
            break
    engine.info = engine.executor.info


def _closed(users: int, seed: int, prompts: LengthSpec, outputs: LengthSpec, think_s: float = 0.0) -> LoadSpec:
    return LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, prompt_kind=PromptKind.RANDOM, users=users, think_time_s=think_s,
        prompt_tokens=prompts, output_tokens=outputs, seed=seed,
    )  # fmt: skip


def loads_for_fit(seed: int) -> list[LoadSpec]:
    """Closed loops of few and many users with short and long prompts: all kinds of steps."""
    seed += CALIBRATION_SEEDS
    short, middle, long = LengthSpec.uniform(8, 24), LengthSpec.uniform(16, 300), LengthSpec.uniform(150, 700)
    some, many = LengthSpec.uniform(10, 60), LengthSpec.uniform(40, 120)
    mixes = [
        (1, middle, many, 0.0), (2, middle, many, 0.0), (3, long, many, 0.0), (4, short, many, 0.0), (6, middle, many, 0.0),
        (8, LengthSpec.uniform(8, 500), some, 0.0), (10, middle, some, 1.5), (11, short, many, 0.0), (16, short, many, 0.0),
        (24, long, some, 0.0), (32, short, many, 0.0), (32, middle, some, 0.0),
    ]  # fmt: skip
    return [
        _closed(users, seed + 1000 * round_ + i, prompts, outputs, think_s)
        for round_ in range(ROUNDS)
        for i, (users, prompts, outputs, think_s) in enumerate(mixes)
    ]


def load_for_pace(seed: int) -> LoadSpec:
    """A calibration load of a few seconds before a run that is predicted: how slow the machine is now."""
    return _closed(8, seed + CALIBRATION_SEEDS + 50_000, LengthSpec.uniform(16, 200), LengthSpec.uniform(10, 60), 1.0)


def loads_held_out(seed: int) -> list[LoadSpec]:
    """Other mixes: none of their steps is in the fit."""
    seed += HELD_OUT_SEEDS
    return [
        _closed(2, seed + 1, LengthSpec.uniform(30, 600), OUTPUTS),
        _closed(5, seed + 2, PROMPTS, OUTPUTS, 0.4),
        _closed(12, seed + 3, PROMPTS, OUTPUTS),
        _closed(28, seed + 4, PROMPTS, LengthSpec.uniform(10, 120)),
    ]


def burst_load(seed: int, requests: int) -> LoadSpec:
    """All at once: the engine runs at its capacity until the queue is empty."""
    return LoadSpec(
        process=ArrivalProcess.BURST, burst_size=requests, prompt_kind=PromptKind.RANDOM, prompt_tokens=PROMPTS,
        output_tokens=OUTPUTS, seed=seed + HELD_OUT_SEEDS + 31,
    )  # fmt: skip


def poisson_load(seed: int, rate_per_s: float, requests: int) -> LoadSpec:
    """Requests at a rate."""
    return LoadSpec(
        rate_per_s=rate_per_s, num_requests=requests, prompt_kind=PromptKind.RANDOM, prompt_tokens=PROMPTS,
        output_tokens=OUTPUTS, seed=seed + HELD_OUT_SEEDS + 500,
    )  # fmt: skip
