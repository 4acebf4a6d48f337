"""Fault 11: with chunking off, a prompt one token over the budget waits for ever."""

from __future__ import annotations

import pytest

from core.config import replace_knobs
from core.errors import ConfigError, RefusalReason, RequestRefused
from core.request import FinishReason
from tests.scheduler_helpers import Driver, create_request, create_scheduler

WHOLE = [
    {"batch_policy": "chunked", "enable_chunked_prefill": False},
    {"batch_policy": "prefill_first"},
    {"batch_policy": "separate"},
    {"batch_policy": "whole_prompts"},
]


@pytest.mark.parametrize("knobs", WHOLE)
def test_sixteen_runs_and_seventeen_is_refused(knobs: dict[str, object]) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=16, **knobs))
    fits = create_request("fits", 16)
    driver.add(fits)
    with pytest.raises(RequestRefused, match=r"17 tokens and runs whole.*budget is 16") as refused:
        driver.add(create_request("over", 17))
    assert refused.value.reason is RefusalReason.BUDGET_TOO_SMALL
    assert driver.run()[0].num_scheduled_tokens == (16,)
    assert fits.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("policy", ["chunked", "fixed"])
def test_both_run_where_prompts_are_split(policy: str) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=16, batch_policy=policy))
    both = [create_request("a", 16), create_request("b", 17)]
    driver.add(*both)
    driver.run()
    assert [r.finish_reason for r in both] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("knobs", WHOLE)
def test_the_toggle_is_refused_while_a_longer_prompt_waits(knobs: dict[str, object]) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=16, max_num_seqs=1))
    long = create_request("long", 40)
    driver.add(create_request("running", 4, 8), long)
    driver.step()
    before = driver.scheduler.config
    with pytest.raises(ConfigError, match=r"leave request long \(waiting\) behind.*40 tokens.*budget is 16"):
        driver.scheduler.set_config(replace_knobs(before, **knobs), driver.now)
    assert driver.scheduler.config is before
    driver.run()
    assert long.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("knobs", WHOLE)
def test_a_prompt_under_way_when_chunking_goes_off_still_ends(knobs: dict[str, object]) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=16))
    long = create_request("long", 40)
    driver.add(long)
    driver.step()
    driver.scheduler.set_config(replace_knobs(driver.scheduler.config, **knobs), driver.now)
    driver.run(max_steps=50)
    assert long.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("knobs", WHOLE)
def test_a_recompute_longer_than_the_budget_is_split_and_not_stuck(knobs: dict[str, object]) -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, max_num_batched_tokens=16, **knobs))
    request = create_request("r", 14, 20)
    driver.add(request)
    driver.steps(8)
    driver.scheduler.forget_kv(driver.now)
    driver.runner.held.clear()
    outs = driver.run(max_steps=60)
    assert request.num_output_tokens == 20
    assert max(out.total_tokens for out in outs) <= 16
