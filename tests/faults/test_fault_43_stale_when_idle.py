"""Fault 43: gauges are refreshed only by a step; when all requests vanish at once the last values stand."""

from __future__ import annotations

from core.clock import VirtualClock
from core.request import SamplingParams
from tests.engine_cases import scripted_engine

LONG = SamplingParams(max_tokens=100, ignore_eos=True)


def test_gauges_are_zero_when_everything_is_cancelled_between_two_steps() -> None:
    clock = VirtualClock()
    engine = scripted_engine(clock=clock, max_num_seqs=20, num_blocks=256)
    ids = [engine.add_request([1, 2, 3, n], LONG) for n in range(25)]
    for _ in range(5):
        engine.step()
        clock.advance(0.1)
    busy = engine.snapshot()
    assert (busy.num_running, busy.num_waiting) == (20, 5)
    assert busy.pool.live > 0
    assert busy.kpis.output_tokens_per_s > 0
    for request_id in ids:
        engine.cancel(request_id)
    for wait_s in (0.0, 2.0):
        clock.advance(wait_s)
        idle = engine.snapshot(wall_s=clock.now())
        assert (idle.num_running, idle.num_waiting, idle.num_preempted) == (0, 0, 0)
        assert (idle.running, idle.waiting, idle.preempted) == ((), (), ())
        assert (idle.pool.live, idle.pool.usage) == (0, 0.0)
        rates = idle.kpis
        assert (rates.output_tokens_per_s, rates.total_tokens_per_s, rates.requests_per_s, rates.mean_batch) == (0, 0, 0, 0)
        assert (rates.host_share, rates.fragmentation) == (0, 0)
        assert idle.state == "idle"
        assert (idle.time_s, idle.wall_time_s) == (clock.now(), clock.now())
        assert idle.passed_over == ()
    assert idle.totals.cancelled == 25
    assert {e.kind for e in engine.step()} == {"cancelled"}
    assert not engine.has_work()
