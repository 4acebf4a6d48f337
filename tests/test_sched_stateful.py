"""Random lives of a scheduler on a tiny pool against the brute-force model: at least 200 runs of 200 steps.

Each run submits, steps, cancels, changes priorities, policies and the pool, loses the executor, lets requests in between
a decision and its launch, and ends with a drain that must finish in bounded time. After every call all conservation laws
hold, the model agrees, and every request has the tokens it would have alone.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.config import (
    AdmissionMoment,
    AdmissionPolicy,
    BatchPolicy,
    CacheConfig,
    EvictionPolicy,
    PreemptionMode,
    QueuePolicy,
    SchedulerConfig,
    TenantConfig,
    VictimPolicy,
)
from core.errors import ConfigError, RequestRefused
from core.kv_cache_manager import resets_pool
from core.outputs import SchedulerOutput
from core.request import Request, SamplingParams
from core.scheduler import Scheduler
from tests.scheduler_helpers import VOCAB, FakeRunner, distinct_tokens
from tests.scheduler_model import SchedulerModel

STEPS = 200
RUNS = 56  # for each of 4 groups
TENANTS = ("default", "a", "b")
EOS = 3


class Life:
    """One scheduler, its executor and its model.

    Args:
        always: knobs that keep these values through every change.
    """

    def __init__(self, rng: random.Random, **always: Any) -> None:
        self.rng = rng
        self.always = always
        self.seen: Counter[str] = Counter()
        self.arrived: set[str] = set()  # since the latest decision
        self.draining = False
        self.now = 0.0
        self.number = 0
        self.steps = 0
        cache = self.cache(swap=8)
        self.scheduler = Scheduler(
            self.knobs(cache),
            cache,
            max_model_len=rng.choice([24, 64]),
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            seed=rng.randrange(99),
        )
        self.runner = FakeRunner(self.scheduler)
        self.model = SchedulerModel(self.scheduler)

    def cache(self, swap: int) -> CacheConfig:
        rng = self.rng
        return CacheConfig(
            block_size=rng.choice([1, 2, 4]),
            num_blocks=rng.randint(3, 24),
            enable_prefix_caching=rng.random() < 0.8,
            eviction_policy=rng.choice(list(EvictionPolicy)),
            num_swap_blocks=swap,
        )

    def knobs(self, cache: CacheConfig) -> SchedulerConfig:
        rng = self.rng
        seats, budget = rng.randint(1, 8), rng.randint(1, 24)
        tenants = ()
        if rng.random() < 0.5:
            tenants = tuple(
                TenantConfig(
                    name,
                    weight=rng.choice([0.5, 1.0, 4.0]),
                    max_seqs=rng.choice([None, None, rng.randint(1, seats)]),
                    max_blocks=rng.choice([None, None, rng.randint(1, cache.num_blocks)]),
                    max_tokens_per_s=rng.choice([None, None, 3.0]),
                )
                for name in TENANTS[: rng.randint(1, 3)]
            )
        knobs: dict[str, Any] = dict(  # noqa: C408
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=rng.random() < 0.8,
            long_prefill_token_threshold=rng.choice([None, None, min(3, budget)]),
            queue_policy=rng.choice(list(QueuePolicy)),
            batch_policy=rng.choice(list(BatchPolicy)),
            admission_policy=rng.choice(list(AdmissionPolicy)),
            watermark=rng.choice([0.0, 0.1, 0.5]),
            lookahead=rng.choice([0, 0, 1, 4]),
            max_overtakes=rng.choice([0, 2, 64]),
            preemption_mode=rng.choice(list(PreemptionMode)) if cache.num_swap_blocks else PreemptionMode.RECOMPUTE,
            victim_policy=rng.choice(list(VictimPolicy)),
            preemptive_priority=rng.random() < 0.7,
            priority_ageing_s=rng.choice([0.0, 0.0, 5.0]),
            max_wait_overtakes=rng.choice([0, 2, 64]),
            predicted_output_tokens=rng.choice([0, 5]),
            admission_moment=rng.choice(list(AdmissionMoment)),
            tenants=tenants,
            max_waiting=rng.choice([3, 50]),
        )
        return SchedulerConfig(**(knobs | self.always))

    # -- calls -------------------------------------------------------------------------------------------

    def submit(self) -> None:
        rng = self.rng
        self.number += 1
        rid = f"r{self.number}" if rng.random() < 0.9 else f"r{rng.randint(1, self.number)}"
        head = distinct_tokens(f"head{rng.randrange(3)}", rng.choice([0, 4, 8]))
        prompt = (*head, *distinct_tokens(rid + str(rng.random()), rng.randint(1, 10)))
        request = Request(
            rid,
            prompt,
            SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=rng.random() < 0.5, min_tokens=rng.choice([0, 0, 1])),
            self.now,
            tenant=rng.choice(TENANTS),
            priority=rng.randint(0, 3),
            cache_salt=rng.choice([None, None, "", "x"]),
            use_prefix_cache=rng.random() < 0.9,
            deadline_s=self.now + rng.randint(0, 40) if rng.random() < 0.1 else None,
        )
        known = self.scheduler.requests.get(rid)
        try:
            self.scheduler.add_request(request)
        except RequestRefused:
            assert request not in self.scheduler.requests.values()
            return
        assert known is None
        self.arrived.add(rid)
        self.model.submitted(request)

    def cancel(self) -> None:
        if self.scheduler.requests:
            rid = self.rng.choice(sorted(self.scheduler.requests))
            self.model.on_events([self.scheduler.abort(rid, self.now)])

    def reprioritise(self) -> None:
        if self.scheduler.requests:
            self.scheduler.set_priority(self.rng.choice(sorted(self.scheduler.requests)), self.rng.randint(0, 3), self.now)

    def change_knobs(self) -> None:
        before = self.scheduler.config
        try:
            config = self.knobs(self.scheduler.cache)
            events = self.scheduler.set_config(config, self.now)
        except ConfigError:
            assert self.scheduler.config is before
            return
        self.model.on_events(events)
        assert self.scheduler.num_running <= config.max_num_seqs

    def change_pool(self) -> None:
        old = self.scheduler.cache
        new = self.cache(swap=old.num_swap_blocks if self.rng.random() < 0.5 else 8)
        try:
            events = self.scheduler.set_cache(new, self.now)
        except ConfigError:
            assert self.scheduler.cache is old
            return
        self.model.on_events(events)
        if resets_pool(old, new):
            self.runner.resize(self.scheduler)
            self.model.forget()

    def lose_executor(self) -> None:
        if self.rng.random() < 0.5:
            self.scheduler.schedule(self.now)  # decided, never run
            self.arrived.clear()
        self.model.on_events(self.scheduler.forget_kv(self.now))
        self.runner.resize(self.scheduler)
        self.model.forget()

    def step(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        queued = self.model.queue()
        config = scheduler.config
        out = self.decide()
        if rng.random() < 0.1:
            scheduler.check_invariants()
        result = self.runner.execute_model(out)
        self.model.on_decision(out, queued, config)
        if rng.random() < 0.05:
            self.cancel()  # between the decision and its booking
        self.now += 1.0
        events = scheduler.update_from_output(out, result, self.now)
        self.model.on_events(events)
        grown = token_counts(events)
        planned = {rid for rid, samples in zip(out.request_ids, out.samples, strict=True) if samples}
        assert all(n == 1 for n in grown.values())
        assert set(grown) <= planned
        self.steps += 1
        self.seen.update(swapped_out=len(out.swap_out), swapped_in=len(out.swap_in), preempted=len(out.preemptions))

    def decide(self) -> SchedulerOutput:
        """A decision; between two launches it may be held open while requests come and go."""
        rng, scheduler = self.rng, self.scheduler
        between = scheduler.config.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES
        hold = between and rng.random() < 0.7
        arrived, self.arrived = self.arrived, set()
        held = scheduler.schedule(self.now, hold_late=hold)
        fixed = scheduler.config.batch_policy is BatchPolicy.FIXED
        if not hold or fixed:
            assert not hold or scheduler.late_join(self.now) is None
            return held
        assert not arrived & {*held.admitted, *held.late_joins}, "who came after the latest decision joins late"
        live = set(self.model.live)
        if not self.draining:
            for _ in range(rng.choice([0, 0, 1, 3])):
                self.submit()
            if rng.random() < 0.1:
                self.cancel()
        gone = live - set(self.model.live)
        amended = scheduler.late_join(self.now)
        self.arrived.clear()
        if amended is None:
            return held
        self.model.excused = bool(gone)
        assert amended.step == held.step
        stay = [rid for rid in held.request_ids if rid not in gone]
        kept = [rid for rid in amended.request_ids if rid not in amended.late_joins]
        assert sorted(kept) == sorted(stay), "a late join takes nobody's place"
        assert set(amended.late_joins) <= {*amended.admitted, *amended.resumed}
        self.seen.update(amended=1, late_joins=len(amended.late_joins))
        return amended

    def check(self) -> None:
        self.scheduler.check_invariants()
        assert self.model.live == dict(self.scheduler.requests), "every end was told, once"

    def drain(self) -> None:
        """Everything ends in bounded time: each step advances someone, or a rate is waited for."""
        self.draining = True
        tokens = sum(r.num_tokens + r.sampling.max_tokens for r in self.scheduler.requests.values())
        bound = 60 + 40 * (tokens + 1)
        taken = 0
        while self.scheduler.has_work():
            self.step()
            taken += 1
            assert taken < bound, f"{len(self.scheduler.requests)} requests live after {taken} steps of a drain"
        self.check()
        self.model.check_outputs()
        counts = self.scheduler.kv.counts()
        assert (counts.live, self.scheduler.num_running, self.scheduler.num_waiting) == (0, 0, 0)


def token_counts(events: list) -> dict[str, int]:
    """Token events by request."""
    out: dict[str, int] = {}
    for event in events:
        if event.kind == "token":
            out[event.request_id] = out.get(event.request_id, 0) + 1
    return out


RARE = ["cancel", "reprioritise", "change_knobs", "change_pool", "lose_executor"]
CALLS = ["step"] * 14 + ["submit"] * 6 + RARE
QUIET = ["step"] * 16 + ["submit"] * 6 + ["cancel", "reprioritise"]


def live(seed: int, calls: list[str], **always: Any) -> Life:
    """One random life of at least STEPS steps."""
    rng = random.Random(seed)
    life = Life(rng, **always)
    while life.steps < STEPS:
        getattr(life, rng.choice(calls))()
        life.check()
    life.drain()
    return life


@pytest.mark.parametrize("group", range(4))
def test_random_lives_agree_with_the_model(group: int) -> None:
    @settings(max_examples=RUNS, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        live(seed * 4 + group, CALLS if group % 2 else QUIET)

    run()


@pytest.mark.parametrize("admission", AdmissionPolicy)
def test_random_lives_between_launches_with_swap(admission: AdmissionPolicy) -> None:
    """The same with every decision held open and victims swapped out, for each kind of admission."""
    seen: Counter[str] = Counter()

    @settings(max_examples=RUNS // 4, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    @example(26895401)  # a deadline ends a request in a held decision, and its id is submitted again before the launch
    def run(seed: int) -> None:
        life = live(
            seed,
            CALLS,
            admission_policy=admission,
            admission_moment=AdmissionMoment.BETWEEN_LAUNCHES,
            preemption_mode=PreemptionMode.SWAP,
        )
        seen.update(life.seen)

    run()
    assert min(seen[what] for what in ("amended", "late_joins", "preempted", "swapped_out", "swapped_in")) > 20, seen


class SchedulerMachine(RuleBasedStateMachine):
    """The same calls in an order that hypothesis chooses, so that a failure shrinks to the few calls that matter."""

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed: int) -> None:
        self.life = Life(random.Random(seed))

    @rule(seed=st.integers(0, 99), count=st.integers(1, 4))
    def submits(self, seed: int, count: int) -> None:
        self.life.rng.seed(seed)
        for _ in range(count):
            self.life.submit()

    @rule(seed=st.integers(0, 99), count=st.integers(1, 8))
    def steps(self, seed: int, count: int) -> None:
        self.life.rng.seed(seed)
        for _ in range(count):
            self.life.step()
            self.life.check()

    @rule(
        seed=st.integers(0, 99), name=st.sampled_from(["cancel", "reprioritise", "change_knobs", "change_pool", "lose_executor"])
    )
    def calls(self, seed: int, name: str) -> None:
        self.life.rng.seed(seed)
        getattr(self.life, name)()

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=40, stateful_step_count=50, suppress_health_check=list(HealthCheck))
