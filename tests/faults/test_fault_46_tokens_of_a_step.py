"""Fault 46: chunks without output are not counted; at the last chunk all prompt tokens appear at once."""

from __future__ import annotations

from core.request import SamplingParams
from tests.engine_cases import scripted_engine


def test_a_step_counts_the_tokens_that_it_ran() -> None:
    engine = scripted_engine(max_num_batched_tokens=4)
    engine.add_request(list(range(1, 11)), SamplingParams(max_tokens=2, ignore_eos=True))
    engine.run_until_idle()
    records = list(engine.records)
    assert [r.prefill_tokens + r.decode_tokens for r in records] == [4, 4, 2, 1]
    assert [r.prefill_tokens for r in records] == [4, 4, 2, 0]
    assert [r.output_tokens for r in records] == [0, 0, 1, 1]
    totals = engine.snapshot().totals
    assert totals.prompt_tokens == 10
    assert totals.output_tokens == 2


def test_every_token_is_counted_once_whatever_the_mix() -> None:
    engine = scripted_engine(max_num_batched_tokens=7)
    lengths = [3, 12, 25, 1]
    for length in lengths:
        engine.add_request(list(range(1, length + 1)), SamplingParams(max_tokens=5, ignore_eos=True), use_prefix_cache=False)
    engine.run_until_idle()
    run = sum(r.prefill_tokens + r.decode_tokens for r in engine.records)
    assert run == sum(lengths) + len(lengths) * 4  # the last output token of a request is never run
