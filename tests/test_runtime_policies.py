"""The real scheduler drives the real model: whatever the policy, preemption or admission, each request gets its own tokens."""

from __future__ import annotations

import itertools

import pytest

from core.config import AdmissionPolicy, BatchPolicy, CacheConfig, PreemptionMode, SchedulerConfig
from core.request import Request, SamplingParams
from core.scheduler import Scheduler
from tests.runtime_driver import generate_alone, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

PROMPTS = prompts_of((5, 19, 8, 30, 3, 12, 40, 2))
NUM_TOKENS = 14
NUM_BLOCKS, BLOCK_SIZE = 20, 4


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    runner = make_runner(num_blocks=64)
    return [generate_alone(runner, prompt, NUM_TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("batch", "mode", "admission"), list(itertools.product(BatchPolicy, PreemptionMode, AdmissionPolicy)), ids="-".join
)
def test_tokens_do_not_depend_on_the_policy(
    expected: list[list[int]], batch: BatchPolicy, mode: PreemptionMode, admission: AdmissionPolicy
) -> None:
    """A pool far below demand, filled with NaN at the start, so that preemption and block reuse happen."""
    knobs = SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=48, batch_policy=batch, preemption_mode=mode, admission_policy=admission
    )
    swap = 16 if mode is PreemptionMode.SWAP else 0
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, num_swap_blocks=swap)
    scheduler = Scheduler(knobs, cache, max_model_len=512, vocab_size=256, seed=0)
    runner = make_runner(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_swap_blocks=swap, nan_fill=True)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    requests = [Request(str(i), tuple(p), sampling, 0.0) for i, p in enumerate(PROMPTS)]
    for request in requests:
        scheduler.add_request(request)
    preemptions = 0
    for step in range(400):
        if not scheduler.has_work():
            break
        decision = scheduler.schedule(float(step))
        preemptions += len(decision.preemptions)
        scheduler.update_from_output(decision, runner.execute_model(decision), float(step))
        scheduler.check_invariants()
    assert not scheduler.has_work()
    assert [list(r.output_token_ids) for r in requests] == expected
    if admission is not AdmissionPolicy.RESERVE and batch is not BatchPolicy.FIXED:
        assert preemptions > 0, "the case must occur"
