"""Fault 5: with a pool far below demand requests evict one another for ever."""

from __future__ import annotations

import itertools

import pytest

from core.config import BatchPolicy, PreemptionMode, VictimPolicy
from core.request import FinishReason
from tests.scheduler_helpers import Driver, create_requests, create_scheduler

MOST_PREEMPTIONS = 10


@pytest.mark.parametrize(
    ("batch", "victim", "mode"),
    list(itertools.product([b for b in BatchPolicy if b is not BatchPolicy.FIXED], VictimPolicy, PreemptionMode)),
)
def test_all_finish_and_the_oldest_always_advances(batch: BatchPolicy, victim: VictimPolicy, mode: PreemptionMode) -> None:
    driver = Driver(
        create_scheduler(
            num_blocks=16, block_size=4, batch_policy=batch, victim_policy=victim, preemption_mode=mode, num_swap_blocks=6
        )
    )
    requests = create_requests(20, 12, 24)
    driver.add(*requests)
    idle = 0
    while driver.scheduler.has_work():
        oldest = min(driver.scheduler.requests.values(), key=lambda r: r.arrival_index)
        before = (oldest.num_output_tokens, oldest.num_computed_tokens)
        out = driver.step()
        victims = {p.victim for p in out.preemptions}
        assert not victims & set(out.request_ids)
        assert oldest.request_id not in victims
        advanced = (oldest.num_output_tokens, oldest.num_computed_tokens) > before
        idle = 0 if advanced else idle + 1
        assert idle <= (1 if batch in (BatchPolicy.PREFILL_FIRST, BatchPolicy.SEPARATE) else 0) + 2
        assert out.step < 2000
    assert all(r.finish_reason is FinishReason.LENGTH and r.num_output_tokens == 24 for r in requests)
    assert max(r.num_preemptions for r in requests) <= MOST_PREEMPTIONS
    assert sum(r.num_preemptions for r in requests) > 0
