"""The request-level baseline: padded, admitted whole, held until its longest member ends."""

from __future__ import annotations

import pytest

from core.config import TenantConfig, replace_knobs
from core.errors import ConfigError
from core.outputs import BoundBy
from core.request import FinishReason
from tests.scheduler_helpers import Driver, create_request, create_requests, create_scheduler


def _driver(**knobs: object) -> Driver:
    return Driver(create_scheduler(batch_policy="fixed", block_size=4, **knobs))


def test_all_rows_reach_their_first_token_together() -> None:
    driver = _driver(max_num_batched_tokens=512)
    driver.add(create_request("a", 4, 3), create_request("b", 10, 3), create_request("c", 1, 3))
    out = driver.step()
    assert out.request_ids == ("a", "b", "c")
    assert out.num_scheduled_tokens == (4, 10, 1)
    assert out.samples == (True, True, True)
    assert (out.padded_rows, out.padded_width, out.padded_context) == (3, 10, 10)


def test_a_prompt_rectangle_above_the_budget_is_run_in_slices_padded_on_the_left() -> None:
    driver = _driver(max_num_batched_tokens=12)
    driver.add(create_request("a", 4, 2), create_request("b", 10, 2), create_request("c", 1, 2))
    outs = driver.steps(3)
    assert [(o.padded_rows, o.padded_width, o.padded_context) for o in outs] == [(3, 4, 4), (3, 4, 8), (3, 2, 10)]
    assert [dict(zip(o.request_ids, o.num_scheduled_tokens, strict=True)) for o in outs] == [
        {"b": 4},
        {"b": 4, "a": 2},
        {"b": 2, "a": 2, "c": 1},
    ]
    assert outs[2].samples == (True, True, True)
    assert all(o.padded_rows * o.padded_width <= 12 for o in outs)


def test_held_until_the_longest_member_ends() -> None:
    driver = _driver(num_blocks=64)
    short, long, late = create_request("short", 4, 2), create_request("long", 4, 9), create_request("late", 4, 1)
    driver.add(short, long)
    driver.step()
    driver.add(late)
    outs = [driver.step() for _ in range(8)]
    assert short.is_finished
    assert [o.request_ids for o in outs[1:]] == [("long",)] * 7
    assert all((o.padded_rows, o.padded_width) == (2, 1) for o in outs)
    assert [o.padded_context for o in outs] == list(range(5, 13))
    assert all(o.bound_by is BoundBy.POLICY and not o.full_batch for o in outs)
    assert "held until its longest member ends" in outs[0].passed_over[0].detail
    assert late.admitted_time_s is None
    assert driver.step().admitted == ("late",)


def test_blocks_of_an_ended_member_stay_until_the_batch_ends() -> None:
    driver = _driver(num_blocks=64)
    driver.add(create_request("short", 4, 1), create_request("long", 9, 5))
    driver.step()
    each = -(-(9 + 5) // 4)
    assert driver.scheduler.kv.counts().live == 2 * each, "every row holds the longest prompt plus the longest output"
    assert len(driver.scheduler.kv.held) == 1
    driver.run()
    assert driver.scheduler.kv.counts().live == 0


def test_an_ended_id_may_come_back_while_its_row_is_held() -> None:
    driver = _driver(num_blocks=64)
    driver.add(create_request("a", 4, 1), create_request("b", 4, 6))
    driver.step()
    again = create_request("a", 5, 2)
    driver.add(again)
    driver.run()
    assert again.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("who", ["short", "long"])
def test_a_cancelled_member_yields_nothing_more_and_the_batch_goes_on(who: str) -> None:
    driver = _driver(num_blocks=64)
    driver.add(create_request("short", 4, 5), create_request("long", 30, 8))
    driver.step()
    driver.abort(who)
    outs = driver.run(max_steps=30)
    assert not any(who in o.request_ids for o in outs)
    assert driver.scheduler.kv.counts().live == 0


def test_the_longest_prompt_cancelled_under_way_leaves_no_empty_step() -> None:
    driver = _driver(max_num_batched_tokens=8)
    driver.add(create_request("short", 2, 3), create_request("long", 40, 3))
    driver.step()
    driver.abort("long")
    outs = driver.run(max_steps=20)
    assert all(o.request_ids for o in outs)


def test_memory_bounds_the_rows_by_the_rectangle() -> None:
    driver = _driver(num_blocks=16, max_num_batched_tokens=512)
    driver.add(create_request("a", 4, 4), create_request("b", 20, 4), *create_requests(3, 4, 4))
    out = driver.step()
    assert out.admitted == ("a", "b")
    assert (out.bound_by, out.full_batch) == (BoundBy.MEMORY, True)
    assert out.passed_over[0].detail == "3 rows would need 18 blocks, 16 available"
    driver.run()


def test_tokens_equal_those_of_iteration_level_batching() -> None:
    def run(policy: str) -> list[list[int]]:
        driver = Driver(create_scheduler(num_blocks=64, batch_policy=policy, max_num_batched_tokens=32))
        requests = [create_request(f"r{n}", 1 + 3 * n, 2 + n) for n in range(9)]
        driver.add(*requests)
        driver.run()
        return [r.output_token_ids for r in requests]

    assert run("fixed") == run("chunked")


def test_a_change_to_fixed_lets_the_running_ones_end_first() -> None:
    driver = Driver(create_scheduler(num_blocks=64))
    first, second = create_request("first", 4, 6), create_request("second", 4, 2)
    driver.add(first)
    driver.steps(2)
    driver.scheduler.set_config(replace_knobs(driver.scheduler.config, batch_policy="fixed"), driver.now)
    driver.add(second)
    out = driver.step()
    assert (out.request_ids, out.bound_by, out.padded_rows) == (("first",), BoundBy.POLICY, 0)
    driver.run()
    assert first.num_preemptions == 0
    assert second.admitted_time_s >= first.finished_time_s


def test_a_change_away_from_fixed_dissolves_the_batch_and_loses_nothing() -> None:
    driver = _driver(num_blocks=64)
    short, long = create_request("short", 4, 1), create_request("long", 12, 9)
    driver.add(short, long)
    driver.steps(2)
    driver.scheduler.set_config(replace_knobs(driver.scheduler.config, batch_policy="chunked"), driver.now)
    driver.scheduler.check_invariants()
    assert not driver.scheduler.kv.held
    driver.add(create_request("new", 4, 2))
    assert driver.step().admitted == ("new",)
    driver.run()
    assert (long.num_output_tokens, long.num_preemptions) == (9, 0)


def test_what_a_rectangle_can_never_hold_is_refused() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4))
    driver.add(create_request("big", 20, 30))
    with pytest.raises(ConfigError, match=r"leave request big .* behind for ever: needs 13 blocks"):
        driver.scheduler.set_config(replace_knobs(driver.scheduler.config, batch_policy="fixed"), 0.0)
    driver.run()


def test_quotas_hold_in_a_fixed_batch() -> None:
    driver = _driver(num_blocks=64, tenants=(TenantConfig("a", max_seqs=1, max_blocks=8),))
    driver.add(*create_requests(3, 4, 4, prefix="a", tenant="a"), *create_requests(2, 4, 4, prefix="b", tenant="b"))
    out = driver.step()
    assert out.admitted == ("a0", "b0", "b1")
    assert out.bound_by is BoundBy.QUOTA
    driver.run()
