"""Fault 20: blocks that enter the prefix cache stay counted as used, usage climbs past 100 % and all is refused."""

from __future__ import annotations

from tests.engine_cases import GREEDY, scripted_engine


def test_usage_stays_a_share_and_cached_blocks_make_room() -> None:
    engine = scripted_engine(num_blocks=32, enable_prefix_caching=True)
    for number in range(51):
        request_id = engine.add_request([1 + number] * 9, GREEDY)
        usages = [engine.snapshot().pool.usage]
        usages += [engine.snapshot().pool.usage for _ in engine.steps()]
        assert all(0.0 <= u <= 1.0 for u in usages)
        assert max(usages) > 0.0
        pool = engine.snapshot().pool
        assert (pool.live, pool.usage) == (0, 0.0)
        assert engine.snapshot().ended[0].request_id == request_id
        assert engine.snapshot().ended[0].status == "finished"
    assert pool.cached > 0
    assert engine.snapshot().totals.finished == 51
