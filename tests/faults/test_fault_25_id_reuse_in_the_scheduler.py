"""Fault 25: reusing an id while the cancel of the old one is under way kills the new one."""

from __future__ import annotations

import pytest

from core.config import AdmissionMoment
from core.errors import RefusalReason, RequestRefused, UnknownRequest
from core.request import FinishReason, RequestStatus
from tests.scheduler_helpers import Driver, create_request, create_scheduler


def test_a_live_id_is_refused_in_every_state() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, max_num_seqs=1))
    driver.add(create_request("7", 4, 8), create_request("8", 4, 8))
    driver.step()
    for name, status in (("7", "running"), ("8", "waiting")):
        with pytest.raises(RequestRefused, match=f"the id {name} belongs to a request that is {status}") as refused:
            driver.add(create_request(name, 4))
        assert refused.value.reason is RefusalReason.DUPLICATE_ID
    driver.scheduler.check_invariants()
    driver.run()


@pytest.mark.parametrize("in_flight", [False, True])
def test_the_new_one_runs_to_its_end_after_the_cancel(in_flight: bool) -> None:
    driver = Driver(create_scheduler(block_size=4))
    old = create_request("7", 6, 20)
    driver.add(old)
    driver.steps(3)
    new = create_request("7", 9, 5)
    if in_flight:
        out = driver.scheduler.schedule(driver.now)
        result = driver.runner.execute_model(out)
        driver.abort("7")
        driver.add(new)
        driver.scheduler.update_from_output(out, result, driver.now + 1)
        driver.scheduler.check_invariants()
        assert new.output_token_ids == []
    else:
        driver.abort("7")
        driver.add(new)
    driver.run()
    assert (old.finish_reason, new.finish_reason) == (FinishReason.CANCELLED, FinishReason.LENGTH)
    assert new.num_output_tokens == 5


def test_an_id_is_in_use_until_the_end_that_a_decision_made_has_been_told() -> None:
    driver = Driver(create_scheduler(block_size=4, admission_moment=AdmissionMoment.BETWEEN_LAUNCHES))
    old, other = create_request("7", 6, 20, deadline_s=2.0), create_request("8", 6, 6)
    driver.add(old, other)
    driver.steps(2)
    driver.scheduler.pop_ended()
    out = driver.scheduler.schedule(driver.now, hold_late=True)
    assert (old.finish_reason, "7" in driver.scheduler.requests) == (FinishReason.DEADLINE, False)
    assert driver.scheduler.has_id("7")
    with pytest.raises(RequestRefused, match="the id 7 belongs to a request that ends in this very step") as refused:
        driver.scheduler.add_request(create_request("7", 9, 5))
    assert refused.value.reason is RefusalReason.DUPLICATE_ID
    assert [r.status for r in driver.scheduler.pop_ended()] == [RequestStatus.REFUSED], "the other end is not told yet"
    out = driver.scheduler.late_join(driver.now) or out
    events = driver.scheduler.update_from_output(out, driver.runner.execute_model(out), driver.now + 1)
    assert [e.kind for e in events if e.request_id == "7"] == ["cancelled"]
    assert driver.scheduler.pop_ended() == [old]
    assert not driver.scheduler.has_id("7")
    new = create_request("7", 9, 5)
    driver.add(new)
    driver.run()
    assert (new.finish_reason, new.num_output_tokens) == (FinishReason.LENGTH, 5)


def test_an_end_of_a_dropped_decision_is_told_with_the_loss() -> None:
    driver = Driver(create_scheduler(block_size=4))
    old, other = create_request("7", 6, 20, deadline_s=2.0), create_request("8", 6, 6)
    driver.add(old, other)
    driver.steps(2)
    driver.scheduler.schedule(driver.now)
    told = [(e.request_id, e.kind) for e in driver.scheduler.forget_kv(driver.now)]
    assert told == [("7", "cancelled"), ("8", "preempted")]
    driver.runner.resize(driver.scheduler)
    new = create_request("7", 9, 5)
    driver.add(new)
    driver.run()
    assert (new.finish_reason, other.finish_reason) == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert [e.kind for e in driver.events if e.request_id == "7" and e.finish_reason] == ["finished"]


def test_an_unknown_id_is_said_to_be_unknown() -> None:
    driver = Driver(create_scheduler())
    with pytest.raises(UnknownRequest, match="'nobody'"):
        driver.abort("nobody")
    driver.add(create_request("R", 4, 1))
    driver.run()
    with pytest.raises(UnknownRequest):
        driver.abort("R")
