"""Fault 25: reusing an id while the cancel of the old one is under way kills the new one."""

from __future__ import annotations

import pytest

from core.errors import RefusalReason, RequestRefused, UnknownRequest
from core.request import FinishReason
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


def test_an_unknown_id_is_said_to_be_unknown() -> None:
    driver = Driver(create_scheduler())
    with pytest.raises(UnknownRequest, match="'nobody'"):
        driver.abort("nobody")
    driver.add(create_request("R", 4, 1))
    driver.run()
    with pytest.raises(UnknownRequest):
        driver.abort("R")
