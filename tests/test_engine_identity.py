"""Token identity: same request, same seed, same tokens, whatever happened around it.

The oracle runs each request alone, whole, in a large pool. Then all of them run together under every policy, in a
pool so small that requests are preempted, with arrivals, cancels and changes of priority around them. The rows are a
covering array: every combination of values of any three settings occurs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

from core.config import (
    AdmissionMoment,
    AdmissionPolicy,
    BatchPolicy,
    EvictionPolicy,
    PreemptionMode,
    QueuePolicy,
    TenantConfig,
    VictimPolicy,
)
from core.engine import Engine
from core.replay import replay
from core.request import SamplingParams
from core.run_record import RunRecorder
from tests.covering import covering_rows
from tests.engine_cases import texts_of, tiny_engine, tokens_of

FACTORS: dict[str, list[Any]] = {
    "queue_policy": list(QueuePolicy),
    "batch_policy": list(BatchPolicy),
    "admission_policy": list(AdmissionPolicy),
    "victim_policy": list(VictimPolicy),
    "preemption_mode": list(PreemptionMode),
    "enable_prefix_caching": [True, False],
    "eviction_policy": list(EvictionPolicy),
    "admission_moment": list(AdmissionMoment),
    "enable_chunked_prefill": [True, False],
}
ROWS = covering_rows(FACTORS, strength=3)
POOL = {"num_blocks": 13, "num_swap_blocks": 24, "max_num_seqs": 5, "max_num_batched_tokens": 32, "watermark": 0.1}
TENANTS = (TenantConfig("x", 3.0), TenantConfig("y", 1.0))


def requests() -> Iterator[tuple[str, list[int], SamplingParams]]:
    """Ten requests: shared heads, one prompt twice, greedy and sampled, with and without a seed of their own."""
    rng = random.Random(7)
    head = [rng.randrange(1, 256) for _ in range(12)]
    for number in range(10):
        own = [rng.randrange(1, 256) for _ in range(rng.randint(1, 14))]
        prompt = head[: 4 * (number % 4)] + (own if number != 9 else [])
        params = SamplingParams(
            max_tokens=rng.randint(3, 12),
            temperature=0.9 if number % 3 == 1 else 0.0,
            top_p=0.95 if number % 3 == 1 else 1.0,
            seed=40 + number if number % 2 else None,
            ignore_eos=number % 4 != 2,
        )
        yield f"q-{number}", prompt or head, params


@pytest.fixture(scope="module")
def oracle() -> dict[str, tuple[list[int], str]]:
    """Tokens and text of each request alone."""
    found = {}
    for request_id, prompt, params in requests():
        engine = tiny_engine(enable_prefix_caching=False, max_num_batched_tokens=512)
        engine.add_request(prompt, params, request_id=request_id)
        events = engine.run_until_idle()
        found[request_id] = (tokens_of(events)[request_id], texts_of(events)[request_id])
        engine.close()
    return found


def run_together(engine: Engine) -> list[Any]:
    """Everything at once, with three more requests that are cancelled while they wait, prefill and decode."""
    events: list[Any] = []
    rng = random.Random(3)
    for number, (request_id, prompt, params) in enumerate(requests()):
        engine.add_request(prompt, params, request_id=request_id, tenant="xy"[number % 2], priority=number % 4)
        if number % 3 == 0:
            doomed = engine.add_request([rng.randrange(1, 256)] * 18, SamplingParams(max_tokens=9), tenant="y", priority=-1)
            for _ in range(number // 3):
                events += engine.step()
            if doomed in engine.scheduler.requests:
                engine.cancel(doomed)
        events += engine.step()
    engine.set_priority(next(iter(engine.scheduler.requests)), 9)
    return events + engine.run_until_idle(max_steps=2000)


@pytest.mark.parametrize("row", ROWS, ids=["-".join(str(v) for v in row.values()) for row in ROWS])
def test_tokens_are_those_of_the_request_alone(row: dict[str, Any], oracle: dict[str, tuple[list[int], str]]) -> None:
    engine = tiny_engine(**POOL, **row, tenants=TENANTS, lookahead=len(row["queue_policy"]) % 3)
    events = run_together(engine)
    tokens, texts = tokens_of(events), texts_of(events)
    for request_id, (ids, text) in oracle.items():
        assert tokens[request_id] == ids, engine.story(request_id)
        assert texts[request_id] == text
    picture = engine.snapshot()
    assert picture.totals.finished + picture.totals.cancelled == picture.totals.submitted
    assert picture.pool.live == 0
    engine.close()


def test_the_rows_cover_every_three_settings() -> None:
    for group in combinations(FACTORS, 3):
        seen = {tuple(row[n] for n in group) for row in ROWS}
        assert seen == set(product(*(FACTORS[n] for n in group)))


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_the_pool_is_small_enough_to_matter(mode: PreemptionMode) -> None:
    recorder = RunRecorder()
    engine = tiny_engine(**POOL, preemption_mode=mode, recorder=recorder)
    run_together(engine)
    outputs = list(recorder.record().outputs())
    assert sum(len(o.preemptions) for o in outputs) > 0
    assert any(o.swap_in for o in outputs) == (mode is PreemptionMode.SWAP)
    assert engine.snapshot().totals.cached_tokens > 0
    assert any(len(set(o.is_prefill)) == 2 for o in outputs)
    assert replay(recorder.record(), check_laws=True).identical


def test_a_fixed_batch_gives_the_tokens_of_continuous_batching(oracle: dict[str, tuple[list[int], str]]) -> None:
    fixed = tiny_engine(batch_policy="fixed", max_num_seqs=4, max_num_batched_tokens=256)
    events = run_together(fixed)
    assert {i: tokens_of(events)[i] for i in oracle} == {i: ids for i, (ids, _) in oracle.items()}
    assert sum(r.padded_tokens for r in fixed.records) > 0
    assert all(r.useful_flops <= r.flops for r in fixed.records)
    assert any(r.useful_flops < r.flops for r in fixed.records)
