"""Fault 16: a freed block is reused for other content but the old hash still points to it."""

from __future__ import annotations

from tests.scheduler_helpers import Driver, create_request, create_scheduler, distinct_tokens


def test_the_third_run_has_no_hit_on_overwritten_blocks() -> None:
    driver = Driver(create_scheduler(num_blocks=4, block_size=4))
    outputs, hits = [], []
    for name in ("P1", "P2", "P1"):
        request = create_request(f"run{len(outputs)}", distinct_tokens(name, 12), 5)
        driver.add(request)
        driver.run()
        outputs.append(request.output_token_ids)
        hits.append(request.num_cached_tokens)
    assert hits[:2] == [0, 0]
    assert hits[2] == 0, "P2 needed all 4 blocks, so nothing of P1 is left"
    assert outputs[2] != outputs[1]


def test_entries_and_contents_agree_through_many_reuses() -> None:
    """The runner fails on a slot whose content is not the history of its reader, so a stale entry cannot hide."""
    driver = Driver(create_scheduler(num_blocks=6, block_size=4))
    for number in range(60):
        driver.add(create_request(f"r{number}", distinct_tokens(f"p{number * number % 5}", 9 + number % 4), 3))
        if number % 3 == 0:
            driver.run()
    driver.run()
    assert driver.scheduler.totals().cached_tokens > 0
    assert driver.scheduler.kv.pool.num_evictions > 0
