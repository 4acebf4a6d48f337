"""Fault 23: one gauge sums blocks that requests hold and blocks kept for reuse; cached blocks look like a leak."""

from __future__ import annotations

import pytest

from core.engine import Engine
from tests.engine_cases import GREEDY, scripted_engine


def run_two_dozen(engine: Engine, first: int) -> None:
    """Twenty-four different prompts, all at once; the three gauges are read after every step."""
    for number in range(24):
        engine.add_request([first + number, *range(1, 10)], GREEDY)
    for _ in engine.steps():
        pool = engine.snapshot().pool
        assert pool.live + pool.cached + pool.free == pool.total
        record = engine.latest_record
        assert record is not None
        assert (record.blocks_live, record.blocks_cached, record.blocks_free) == (pool.live, pool.cached, pool.free)


@pytest.mark.parametrize("num_blocks", [64, 400])
def test_live_and_cached_are_two_gauges(num_blocks: int) -> None:
    engine = scripted_engine(num_blocks=num_blocks, enable_prefix_caching=True)
    for first in (20, 60):
        run_two_dozen(engine, first)
        pool = engine.snapshot().pool
        assert pool.live == 0
        assert pool.cached > 0
        assert pool.free == pool.total - pool.cached
        reclaimable = engine.scheduler.kv.num_available
        assert reclaimable - pool.free == pool.cached
