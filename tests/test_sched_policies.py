"""Queue orders, batch composition, admission, victims, quotas: each policy does what its sentence says."""

from __future__ import annotations

import itertools

import pytest

from core.config import BatchPolicy, TenantConfig, replace_knobs
from core.outputs import BoundBy
from core.policies import catalogue
from core.request import FinishReason, RequestStatus
from tests.scheduler_helpers import Driver, create_request, create_requests, create_scheduler, distinct_tokens


def admitted_order(driver: Driver) -> list[str]:
    return list(itertools.chain.from_iterable(out.admitted for out in driver.run()))


def test_every_policy_has_a_name_and_one_sentence() -> None:
    knobs = catalogue()
    for name, choices in knobs.items():
        owner = create_scheduler().cache if name == "eviction_policy" else create_scheduler().config
        assert {c.value for c in choices} == set(type(getattr(owner, name)))
        for choice in choices:
            assert choice.label
            assert choice.explain.endswith(".")
            assert ". " not in choice.explain, "one sentence"


# -- queue order -----------------------------------------------------------------------------------------


def _three(**knobs: object) -> Driver:
    driver = Driver(create_scheduler(max_num_seqs=1, **knobs))
    driver.add(
        create_request("long", 12, 2, priority=1),
        create_request("short", 3, 9, priority=2),
        create_request("middle", 6, 1, priority=0),
    )
    return driver


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", ["long", "short", "middle"]),
        ("priority", ["middle", "long", "short"]),
        ("shortest_prompt", ["short", "middle", "long"]),
        ("shortest_job", ["middle", "short", "long"]),
    ],
)
def test_order_of_the_queue(policy: str, order: list[str]) -> None:
    driver = _three(queue_policy=policy)
    assert [r.request_id for r in driver.scheduler.waiting_order(0.0, 10)] == order
    assert admitted_order(driver) == order


def test_shortest_job_with_one_predicted_length_is_shortest_prompt() -> None:
    assert admitted_order(_three(queue_policy="shortest_job", predicted_output_tokens=8)) == ["short", "middle", "long"]


def test_longest_prefix_comes_first() -> None:
    driver = Driver(create_scheduler(max_num_seqs=1, queue_policy="lpm"))
    warm = distinct_tokens("warm", 12)
    driver.add(create_request("w0", [*warm, 1], 1))
    driver.run()
    driver.add(create_request("cold", 13, 1), create_request("half", [*warm[:8], 5], 1), create_request("full", [*warm, 2], 1))
    assert admitted_order(driver) == ["full", "half", "cold"]


def test_a_change_of_priority_moves_a_waiting_request() -> None:
    driver = _three(queue_policy="priority")
    driver.scheduler.set_priority("short", -1, 0.0)
    assert admitted_order(driver)[0] == "short"
    kinds = [e.kind for r in driver.scheduler.pop_ended() if r.request_id == "short" for e in r.story]
    assert kinds[:3] == ["submitted", "priority", "admitted"]


def test_the_queue_keeps_its_order_over_a_change_of_policy() -> None:
    driver = _three(queue_policy="fcfs")
    driver.scheduler.set_config(create_scheduler(max_num_seqs=1, queue_policy="shortest_prompt").config, 0.0)
    assert admitted_order(driver) == ["short", "middle", "long"]


def test_the_queue_is_read_in_order_without_end() -> None:
    driver = Driver(create_scheduler(max_num_seqs=1), check=False)
    driver.add(*create_requests(300, 3, 1))
    assert [r.request_id for r in driver.scheduler.waiting_order(0.0, 500)] == [f"r{i}" for i in range(300)]
    for number in range(0, 300, 2):
        driver.abort(f"r{number}")
    assert [r.request_id for r in driver.scheduler.waiting_order(0.0, 500)] == [f"r{i}" for i in range(1, 300, 2)]


# -- batch composition -----------------------------------------------------------------------------------


def _mix(policy: str, budget: int = 16, **knobs: object) -> tuple[Driver, list]:
    driver = Driver(create_scheduler(batch_policy=policy, max_num_batched_tokens=budget, **knobs))
    driver.add(create_request("d1", 4, 20), create_request("d2", 4, 20))
    driver.steps(2)
    driver.add(create_request("p1", 14, 4), create_request("p2", 12, 4))
    return driver, driver.steps(4)


def rows(out) -> dict[str, int]:
    return dict(zip(out.request_ids, out.num_scheduled_tokens, strict=True))


def test_chunked_decodes_first_and_fills_up_with_prompts() -> None:
    _, outs = _mix("chunked")
    assert rows(outs[0]) == {"d1": 1, "d2": 1, "p1": 14}
    assert rows(outs[1]) == {"d1": 1, "d2": 1, "p1": 1, "p2": 12}


def test_chunked_splits_a_prompt_over_the_rest_of_the_budget() -> None:
    _, outs = _mix("chunked", budget=8)
    assert [rows(out).get("p1") for out in outs] == [6, 6, 2, 1]
    assert all(out.total_tokens <= 8 for out in outs)


def test_prefill_first_gives_prompts_the_budget_and_decodes_the_rest() -> None:
    _, outs = _mix("prefill_first")
    assert rows(outs[0]) == {"d1": 1, "d2": 1, "p1": 14}
    _, outs = _mix("prefill_first", budget=14)
    assert rows(outs[0]) == {"p1": 14}
    assert rows(outs[1]) == {"p2": 12, "d1": 1, "d2": 1}


def test_separate_never_mixes() -> None:
    driver, outs = _mix("separate")
    driver.run()
    for out in driver.outputs:
        assert len(set(out.is_prefill)) <= 1
    assert rows(outs[0]) == {"p1": 14}
    assert outs[0].bound_by is BoundBy.BUDGET


def test_whole_prompts_ride_with_decodes_and_are_never_split() -> None:
    driver, outs = _mix("whole_prompts", budget=17)
    assert rows(outs[0]) == {"d1": 1, "d2": 1, "p1": 14}
    assert "its 12 tokens run whole" in outs[0].passed_over[0].detail
    driver.run()
    for out in driver.outputs:
        for rid, count, prefill in zip(out.request_ids, out.num_scheduled_tokens, out.is_prefill, strict=True):
            assert not prefill or count == {"d1": 4, "d2": 4, "p1": 14, "p2": 12}[rid]


def test_a_budget_below_the_rows_serves_the_most_senior_first() -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=3, max_num_seqs=8))
    requests = create_requests(6, 1, 10)
    driver.add(*requests)
    outs = driver.steps(12)
    assert max(out.total_tokens for out in outs) == 3
    assert [r.num_output_tokens for r in requests] == sorted((r.num_output_tokens for r in requests), reverse=True)
    driver.run()
    assert all(r.num_output_tokens == 10 for r in requests)


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_the_most_senior_prompt_advances_below_a_crowd_of_decodes(budget: int) -> None:
    driver = Driver(create_scheduler(max_num_batched_tokens=16, num_blocks=64, block_size=4))
    first = create_request("first", 20, 2)
    driver.add(first)
    driver.step()
    driver.add(*[create_request(f"d{n}", 1, 40) for n in range(6)])
    driver.steps(3)
    driver.scheduler.forget_kv(driver.now)
    driver.runner.resize(driver.scheduler)
    first = create_request("senior", 20, 2, priority=-1)
    config = replace_knobs(driver.scheduler.config, queue_policy="priority", preemptive_priority=False)
    driver.scheduler.set_config(config, driver.now)
    driver.steps(6)
    driver.add(first)
    driver.step()
    driver.scheduler.set_config(replace_knobs(config, max_num_batched_tokens=budget), driver.now)
    while not first.num_output_tokens:
        before = first.num_computed_tokens
        out = driver.step()
        assert first.num_computed_tokens > before
        assert out.total_tokens <= budget


# -- admission -------------------------------------------------------------------------------------------


def test_reservation_holds_the_worst_case_and_is_never_preempted() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, admission_policy="reserve"))
    driver.add(*create_requests(10, 6, 10))
    driver.step()
    assert [len(driver.scheduler.kv.block_ids(r.request_id)) for r in driver.scheduler.running] == [4, 4, 4, 4]
    driver.run()
    assert driver.scheduler.counters.preemptions == 0


def test_on_demand_holds_what_is_computed() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4))
    driver.add(*create_requests(10, 6, 10))
    driver.step()
    assert len(driver.scheduler.running) == 8
    driver.run()
    assert driver.scheduler.counters.preemptions > 0


@pytest.mark.parametrize(("share", "running"), [(0.0, 8), (0.25, 6), (0.5, 4), (0.99, 1)])
def test_the_watermark_leaves_its_share_free(share: float, running: int) -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, admission_policy="watermark", watermark=share))
    driver.add(*create_requests(10, 6, 10))
    driver.step()
    assert len(driver.scheduler.running) == running
    assert driver.scheduler.kv.num_available >= min(share * 16, 14)
    driver.run()


def test_a_preempted_request_comes_back_only_when_its_whole_context_fits() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, max_num_batched_tokens=4, caching=False))
    requests = create_requests(3, 16, 24)
    driver.add(*requests)
    contexts: dict[str, int] = {}
    while driver.scheduler.has_work():
        contexts |= {r.request_id: r.num_tokens for r in driver.scheduler.preempted}
        out = driver.step()
        for new in out.new_requests:
            if new.request_id in out.resumed:
                assert len(new.block_ids) == -(-contexts[new.request_id] // 4)
    assert driver.scheduler.counters.preemptions > 0


# -- victims ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "victim"),
    [("latest_arrival", "c"), ("lowest_priority", "b"), ("fewest_tokens_lost", "c"), ("most_blocks_freed", "b")],
)
def test_the_victim_is_the_one_that_the_policy_names(policy: str, victim: str) -> None:
    driver = Driver(create_scheduler(num_blocks=7, block_size=4, victim_policy=policy))
    driver.add(
        create_request("a", 8, 20, priority=0), create_request("b", 11, 20, priority=9), create_request("c", 7, 20, priority=1)
    )
    while not driver.scheduler.preempted:
        driver.step()
    (record,) = driver.outputs[-1].preemptions
    assert (record.victim, record.beneficiary, record.reason) == (victim, "a", "memory")
    assert record.blocks_freed >= 2
    assert record.tokens_lost >= 7
    driver.run()


def test_blocks_never_move_from_a_senior_to_a_junior() -> None:
    driver = Driver(create_scheduler(num_blocks=12, block_size=2, victim_policy="most_blocks_freed"))
    requests = create_requests(6, 3, 16)
    driver.add(*requests)
    arrival = {r.request_id: r.arrival_index for r in requests}
    driver.run()
    records = [p for out in driver.outputs for p in out.preemptions]
    assert records
    assert all(arrival[p.victim] > arrival[p.beneficiary] for p in records)


# -- quotas ----------------------------------------------------------------------------------------------


def test_a_tenant_at_its_seat_quota_does_not_hold_up_the_others() -> None:
    driver = Driver(create_scheduler(tenants=(TenantConfig("a", max_seqs=2),)))
    driver.add(*create_requests(5, 4, 6, prefix="a", tenant="a"), *create_requests(3, 4, 6, prefix="b", tenant="b"))
    out = driver.step()
    assert set(out.request_ids) == {"a0", "a1", "b0", "b1", "b2"}
    assert (out.bound_by, out.passed_over[0].bound_by) == (BoundBy.QUOTA, BoundBy.QUOTA)
    assert "tenant a has 2 of 2 seats" in driver.scheduler.why_waiting("a2")
    for done in driver.run():
        assert sum(1 for rid in done.request_ids if rid.startswith("a")) <= 2


def test_a_block_quota_bounds_the_live_blocks_of_a_tenant() -> None:
    driver = Driver(create_scheduler(num_blocks=32, block_size=4, tenants=(TenantConfig("a", max_blocks=6),)))
    requests = create_requests(4, 7, 10, prefix="a", tenant="a")
    driver.add(*requests, create_request("b", 20, 4, tenant="b"))
    most = 0
    while driver.scheduler.has_work():
        driver.step()
        most = max(most, driver.scheduler.kv.live_by_tenant.get("a", 0))
    assert 4 < most <= 6
    assert all(r.finish_reason is FinishReason.LENGTH for r in requests)


def test_a_lone_request_that_outgrows_its_quota_ends_with_capacity() -> None:
    driver = Driver(create_scheduler(num_blocks=32, block_size=4, tenants=(TenantConfig("a", max_blocks=3),)))
    request = create_request("a", 8, 30, tenant="a")
    driver.add(request)
    driver.run()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.CAPACITY, 5)
    assert "quota of tenant a is 3" in request.story[-1].detail


def test_a_rate_is_kept_in_the_long_run_and_debt_is_paid_before_the_next_admission() -> None:
    driver = Driver(create_scheduler(tenants=(TenantConfig("a", max_tokens_per_s=4.0),)))
    driver.add(*create_requests(12, 6, 6, prefix="a", tenant="a"))
    outs = driver.run(max_steps=400)
    tokens = sum(out.total_tokens for out in outs)
    assert tokens / len(outs) <= 4.5
    assert any("above 4 tokens/s" in p.detail for out in outs for p in out.passed_over)


def test_a_throttled_queue_says_when_it_can_go_on() -> None:
    driver = Driver(create_scheduler(tenants=(TenantConfig("a", max_tokens_per_s=2.0),)))
    driver.add(*create_requests(2, 8, 1, prefix="a", tenant="a"))
    driver.step()
    driver.run() if driver.scheduler.num_running else None
    wake = driver.scheduler.next_wakeup(driver.now)
    if driver.scheduler.has_work():
        assert wake is not None
        assert wake > driver.now
        driver.now = wake
        assert driver.step().admitted == ("a1",)


# -- deadlines and admission between launches ------------------------------------------------------------


def test_a_deadline_ends_a_request_in_every_state() -> None:
    driver = Driver(create_scheduler(num_blocks=6, block_size=4, max_num_seqs=2))
    running = create_request("running", 8, 50, deadline_s=6.0)
    preempted = create_request("second", 8, 50, deadline_s=9.0)
    waiting = create_request("waiting", 4, 5, deadline_s=3.0)
    driver.add(running, preempted, waiting)
    assert driver.scheduler.next_wakeup(0.0) == 3.0
    driver.run()
    assert [r.finish_reason for r in (running, preempted, waiting)] == [FinishReason.DEADLINE] * 3
    assert [r.finished_time_s for r in (running, preempted, waiting)] == [6.0, 9.0, 3.0]
    assert all(r.status is RequestStatus.CANCELLED for r in (running, preempted, waiting))
    assert driver.scheduler.totals().cancelled == 3
    assert {e.request_id for e in driver.events if e.kind == "cancelled"} == {"running", "second", "waiting"}


def test_arrivals_join_after_the_shape_was_decided() -> None:
    driver = Driver(create_scheduler(admission_moment="between_launches"))
    driver.add(create_request("a", 4, 20))
    first = driver.step()
    assert (first.decided_rows, first.late_joins) == (0, ("a",))
    driver.steps(2)
    driver.add(create_request("b", 4, 20))
    out = driver.step()
    assert (out.decided_rows, out.late_joins) == (1, ("b",))
    assert set(out.request_ids) == {"a", "b"}
    counters = driver.scheduler.counters
    assert (counters.late_joins, counters.invalidated_shapes) == (2, 1), "an empty batch had no shape to lose"


def test_a_request_that_waited_already_is_part_of_the_decision() -> None:
    driver = Driver(create_scheduler(admission_moment="between_launches", max_num_seqs=1))
    driver.add(create_request("a", 4, 3), create_request("b", 4, 3))
    outs = driver.run()
    (joined,) = [out for out in outs if "b" in out.admitted]
    assert (joined.decided_rows, joined.late_joins) == (1, ())


def test_the_engine_may_read_its_queue_once_more() -> None:
    driver = Driver(create_scheduler(admission_moment="between_launches"))
    driver.add(create_request("a", 4, 20))
    driver.steps(2)
    out = driver.scheduler.schedule(driver.now)
    assert driver.scheduler.late_join(driver.now) is None
    driver.add(create_request("b", 4, 20))
    amended = driver.scheduler.late_join(driver.now)
    assert amended is not None
    assert (out.request_ids, amended.request_ids) == (("a",), ("a", "b"))
    assert (amended.step, amended.decided_rows, amended.late_joins) == (out.step, 1, ("b",))
    driver.scheduler.check_invariants()
    driver.scheduler.update_from_output(amended, driver.runner.execute_model(amended), driver.now + 1)
    driver.run()


def test_a_row_cancelled_between_decision_and_amendment_leaves_it() -> None:
    driver = Driver(create_scheduler(admission_moment="between_launches"))
    driver.add(create_request("a", 4, 20), create_request("b", 4, 20))
    driver.scheduler.schedule(driver.now)
    driver.abort("a")
    driver.add(create_request("c", 4, 20, tenant="other"))
    amended = driver.scheduler.late_join(driver.now)
    assert amended is not None
    assert amended.request_ids == ("b", "c")
    driver.scheduler.check_invariants()
    result = driver.runner.execute_model(amended)
    driver.scheduler.update_from_output(amended, result, driver.now + 1)
    driver.run()
    served = {t.name: t.served_tokens for t in driver.scheduler.tenants()}
    assert served["other"] == 4 + 19


def test_at_step_boundaries_nothing_joins_late() -> None:
    driver = Driver(create_scheduler())
    driver.add(create_request("a", 4, 3))
    out = driver.scheduler.schedule(0.0)
    driver.add(create_request("b", 4, 3))
    assert driver.scheduler.late_join(0.0) is None
    driver.scheduler.update_from_output(out, driver.runner.execute_model(out), 1.0)
    assert all(o.late_joins == () and o.decided_rows == 0 for o in driver.run())


# -- what bound the batch --------------------------------------------------------------------------------


def test_the_cause_of_the_batch_size_is_named() -> None:
    def first(**knobs: object):
        driver = Driver(create_scheduler(num_blocks=8, block_size=4, **knobs))
        driver.add(*create_requests(6, 7, 4))
        return driver.step()

    assert first(max_num_seqs=2).bound_by is BoundBy.SEATS
    assert first(max_num_batched_tokens=14).bound_by is BoundBy.BUDGET
    assert first().bound_by is BoundBy.MEMORY
    assert first(tenants=(TenantConfig("default", max_seqs=1),)).bound_by is BoundBy.QUOTA
    lone = Driver(create_scheduler())
    lone.add(create_request("only", 4, 2))
    out = lone.step()
    assert (out.bound_by, out.full_batch, out.passed_over) == (BoundBy.LOAD, False, ())


def test_full_batch_means_memory_and_a_queue() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4))
    driver.add(*create_requests(6, 7, 4))
    assert driver.step().full_batch
    driver = Driver(create_scheduler(num_blocks=64, block_size=4, max_num_seqs=2))
    driver.add(*create_requests(6, 7, 4))
    assert not driver.step().full_batch, "seats, not memory, are the limit"


def test_passed_over_is_bounded() -> None:
    driver = Driver(create_scheduler(num_blocks=8, block_size=4, lookahead=100))
    driver.add(create_request("holds", 24, 8), *create_requests(60, 20, 4))
    assert len(driver.steps(2)[1].passed_over) == 16


@pytest.mark.parametrize("policy", [b for b in BatchPolicy if b is not BatchPolicy.FIXED])
def test_tokens_do_not_depend_on_the_batch_policy(policy: BatchPolicy) -> None:
    def run(**knobs: object) -> list[list[int]]:
        driver = Driver(create_scheduler(num_blocks=12, block_size=4, max_num_batched_tokens=20, **knobs))
        requests = create_requests(8, 9, 12)
        driver.add(*requests)
        driver.run()
        return [r.output_token_ids for r in requests]

    alone = []
    for request in create_requests(8, 9, 12):
        driver = Driver(create_scheduler())
        driver.add(request)
        driver.run()
        alone.append(request.output_token_ids)
    assert run(batch_policy=policy) == alone
