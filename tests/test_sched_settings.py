"""Changing settings of a running scheduler: refused with the reason or applied, and nothing running is lost."""

from __future__ import annotations

import itertools

import pytest

from core.config import BatchPolicy, CacheConfig, QueuePolicy, TenantConfig, replace_knobs
from core.errors import ConfigError
from core.kv_cache_manager import resets_pool
from core.request import FinishReason, RequestStatus
from tests.scheduler_helpers import Driver, create_request, create_requests, create_scheduler


def _busy(count: int = 6, **knobs: object) -> tuple[Driver, list]:
    driver = Driver(create_scheduler(num_blocks=64, block_size=4, **knobs))
    requests = create_requests(count, 7, 12)
    driver.add(*requests)
    driver.steps(3)
    return driver, requests


def _alone(requests: list) -> list[list[int]]:
    tokens = []
    for request in requests:
        driver = Driver(create_scheduler())
        again = create_request(request.request_id, request.prompt_token_ids, request.sampling.max_tokens)
        driver.add(again)
        driver.run()
        tokens.append(again.output_token_ids)
    return tokens


def test_fewer_seats_preempt_the_most_junior() -> None:
    driver, requests = _busy()
    events = driver.scheduler.set_config(replace_knobs(driver.scheduler.config, max_num_seqs=2), driver.now)
    assert [(e.request_id, e.kind) for e in events] == [(f"r{n}", "preempted") for n in (5, 4, 3, 2)]
    assert [r.request_id for r in driver.scheduler.running] == ["r0", "r1"]
    out = driver.step()
    assert {p.victim for p in out.preemptions} == {"r2", "r3", "r4", "r5"}
    assert all("max_num_seqs is now 2" in p.reason for p in out.preemptions)
    driver.run()
    assert [r.output_token_ids for r in requests] == _alone(requests)


def test_a_new_quota_preempts_down_to_it() -> None:
    driver, requests = _busy()
    config = replace_knobs(driver.scheduler.config, tenants=(TenantConfig("default", max_seqs=3, max_blocks=7),))
    driver.scheduler.set_config(config, driver.now)
    driver.scheduler.check_invariants()
    assert driver.scheduler.num_running <= 3
    assert driver.scheduler.kv.counts().live <= 7
    driver.run()
    assert [r.output_token_ids for r in requests] == _alone(requests)


@pytest.mark.parametrize(
    "knobs",
    [
        {"tenants": (TenantConfig("a", max_blocks=65),)},
        {"tenants": (TenantConfig("a", max_seqs=33),)},
        {"preemption_mode": "swap"},
        {"long_prefill_token_threshold": 513},
        {"tenants": (TenantConfig("default", max_blocks=1),)},
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_changes(knobs: dict[str, object]) -> None:
    driver, _ = _busy()
    before = driver.scheduler.config
    with pytest.raises(ConfigError):
        driver.scheduler.set_config(replace_knobs(before, **knobs), driver.now)
    assert driver.scheduler.config is before
    assert driver.scheduler.counters.preemptions == 0
    driver.run()


def test_reservation_is_refused_while_a_request_could_never_be_given_its_worst_case() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4))
    driver.add(create_request("big", 20, 30))
    driver.step()
    with pytest.raises(ConfigError, match=r"request big \(running\).*50 in all, are reserved"):
        driver.scheduler.set_config(replace_knobs(driver.scheduler.config, admission_policy="reserve"), driver.now)
    driver.run()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(BatchPolicy, BatchPolicy)))
def test_any_batch_policy_may_follow_any_other(first: BatchPolicy, second: BatchPolicy) -> None:
    driver, requests = _busy(batch_policy=first, max_num_batched_tokens=16, queue_policy="wfq")
    driver.scheduler.set_config(replace_knobs(driver.scheduler.config, batch_policy=second, queue_policy="lpm"), driver.now)
    driver.run(max_steps=400)
    assert [r.output_token_ids for r in requests] == _alone(requests)


@pytest.mark.parametrize("policy", list(QueuePolicy))
def test_any_queue_policy_keeps_everyone(policy: QueuePolicy) -> None:
    driver, requests = _busy(count=20, max_num_seqs=4)
    driver.scheduler.set_config(replace_knobs(driver.scheduler.config, queue_policy=policy), driver.now)
    driver.scheduler.check_invariants()
    driver.run(max_steps=600)
    assert all(r.finish_reason is FinishReason.LENGTH for r in requests)


# -- the pool --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"num_blocks": 16}, {"num_blocks": 256}, {"block_size": 8}, {"num_swap_blocks": 9}])
def test_another_pool_preempts_first_and_loses_nothing(change: dict[str, int]) -> None:
    driver, requests = _busy()
    cache = replace_knobs(driver.scheduler.cache, **change)
    assert resets_pool(driver.scheduler.cache, cache)
    events = driver.scheduler.set_cache(cache, driver.now)
    assert [e.kind for e in events] == ["preempted"] * 6
    driver.runner.resize(driver.scheduler)
    driver.scheduler.check_invariants()
    assert driver.scheduler.kv.counts().live == 0
    driver.run()
    assert [r.output_token_ids for r in requests] == _alone(requests)


def test_what_never_fits_the_new_pool_ends_with_the_tokens_it_has() -> None:
    driver = Driver(create_scheduler(num_blocks=64, block_size=4))
    big, small, waiting = create_request("big", 30, 9), create_request("small", 4, 9), create_request("later", 33, 2)
    driver.add(big, small)
    driver.steps(3)
    driver.add(waiting)
    events = driver.scheduler.set_cache(replace_knobs(driver.scheduler.cache, num_blocks=6), driver.now)
    driver.runner.resize(driver.scheduler)
    ended = {e.request_id: e for e in events if e.kind == "finished"}
    assert set(ended) == {"big", "later"}
    assert all(e.finish_reason is FinishReason.CAPACITY for e in ended.values())
    assert "needs 8 blocks of 4 tokens" in ended["big"].message
    assert big.num_output_tokens == 3
    driver.run()
    assert small.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("change", [{"eviction_policy": "lfu"}, {"enable_prefix_caching": False}])
def test_a_toggle_touches_no_running_request(change: dict[str, object]) -> None:
    driver, requests = _busy()
    cache = replace_knobs(driver.scheduler.cache, **change)
    assert not resets_pool(driver.scheduler.cache, cache)
    assert driver.scheduler.set_cache(cache, driver.now) == []
    driver.scheduler.check_invariants()
    driver.run()
    assert driver.scheduler.counters.preemptions == 0
    assert [r.output_token_ids for r in requests] == _alone(requests)


def test_prefix_caching_off_empties_the_index_and_on_fills_it_again() -> None:
    driver, _ = _busy()
    driver.run()
    assert driver.scheduler.kv.counts().cached > 0
    off = replace_knobs(driver.scheduler.cache, enable_prefix_caching=False)
    driver.scheduler.set_cache(off, driver.now)
    assert driver.scheduler.kv.counts().cached == 0
    driver.add(create_request("x", 12, 2))
    driver.run()
    assert driver.scheduler.kv.counts().cached == 0
    driver.scheduler.set_cache(replace_knobs(off, enable_prefix_caching=True), driver.now)
    driver.add(create_request("y", 12, 2))
    driver.run()
    assert driver.scheduler.kv.counts().cached == 3


def test_a_pool_below_a_quota_is_refused() -> None:
    driver, _ = _busy(tenants=(TenantConfig("a", max_blocks=40),))
    with pytest.raises(ConfigError, match="above the pool of 16 blocks"):
        driver.scheduler.set_cache(CacheConfig(block_size=4, num_blocks=16), driver.now)
    assert driver.scheduler.num_running == 6
    driver.run()


# -- the executor loses its memory -----------------------------------------------------------------------


@pytest.mark.parametrize("decided", [False, True])
def test_a_lost_executor_loses_no_request(decided: bool) -> None:
    driver, requests = _busy()
    driver.add(create_request("late", 5, 3))
    if decided:
        driver.scheduler.schedule(driver.now)
    events = driver.scheduler.forget_kv(driver.now)
    driver.runner.resize(driver.scheduler)
    driver.scheduler.check_invariants()
    assert {e.request_id for e in events} >= {r.request_id for r in requests}
    assert all(r.status is RequestStatus.PREEMPTED for r in requests)
    out = driver.step()
    assert not out.released_ids, "the new executor holds nothing"
    driver.run()
    assert [r.output_token_ids for r in requests] == _alone(requests)


def test_a_lost_executor_dissolves_a_fixed_batch() -> None:
    driver, requests = _busy(batch_policy="fixed")
    driver.scheduler.forget_kv(driver.now)
    driver.runner.resize(driver.scheduler)
    driver.scheduler.check_invariants()
    driver.run()
    assert [r.output_token_ids for r in requests] == _alone(requests)
