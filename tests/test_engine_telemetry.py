"""Histories, windows, latencies and utilisation: bounded, exact, and with the field's definitions."""

from __future__ import annotations

import dataclasses
import random
import threading

import numpy as np
import pytest

from core.latency import LatencyTracker, Newest, gaps_s, request_record, tpot_s
from core.records import StepRecord
from core.request import SLO, FinishReason, Request, RequestStatus, SamplingParams
from core.snapshot import RooflineCeilings
from core.step_history import CHUNK_STEPS, StepHistory
from core.telemetry import MAX_WINDOW_STEPS, Telemetry
from core.utilisation import bandwidth_ceiling, mbu, mfu


def step_record(step: int, *, start_s: float = 0.0, duration_s: float = 0.1, **changes: object) -> StepRecord:
    """A decode step of four rows."""
    plain: dict[str, object] = {f.name: 0 for f in dataclasses.fields(StepRecord)}
    plain |= {"step": step, "start_s": start_s, "duration_s": duration_s, "decode_requests": 4, "decode_tokens": 4}
    plain |= {"output_tokens": 4, "bound_by": "load", "full_batch": False, "kind": "measured", "graph": ""}
    return StepRecord(**(plain | changes))  # type: ignore[arg-type]


def ended(
    times_s: list[float], *, arrival_s: float = 0.0, reason: FinishReason = FinishReason.LENGTH, slo: SLO | None = None
) -> Request:
    """A request whose tokens came at these times."""
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=100), arrival_s, slo=slo or SLO())
    request.output_token_ids = [5] * len(times_s)
    request.token_times_s = list(times_s)
    request.first_token_time_s = times_s[0] if times_s else None
    request.finished_time_s = times_s[-1] if times_s else arrival_s + 7.0
    request.status = RequestStatus.FINISHED
    request.finish_reason = reason
    return request


@pytest.mark.parametrize("keep", [64, 1000, 2000])
def test_history_is_bounded_keeps_the_newest_whole_and_reaches_back_to_the_start(keep: int) -> None:
    history = StepHistory(keep)
    steps = 40 * keep
    for step in range(steps):
        history.append(step_record(step))
        assert len(history) <= keep + 2 * CHUNK_STEPS
    kept = [r.step for r in history]
    whole = max(keep * 3 // 4 // CHUNK_STEPS, 1) * CHUNK_STEPS
    assert kept[-whole:] == list(range(steps - whole, steps))
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert history.stride > 1
    old = [s for s in kept if s < steps - whole - CHUNK_STEPS]
    assert old
    assert all(s % history.stride == 0 for s in old)


@pytest.mark.parametrize("since", [-1, 0, 1, 255, 256, 300, 511, 512, 998, 999, 5000])
def test_history_since_a_step_is_exactly_what_came_after_it(since: int) -> None:
    history = StepHistory(4000)
    for step in range(1000):
        history.append(step_record(step))
    assert [r.step for r in history.since(since)] == list(range(since + 1, 1000))


def test_history_can_be_read_while_it_grows() -> None:
    history, errors = StepHistory(600), []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            steps = [r.step for r in history.since(-1)]
            if steps != sorted(set(steps)):
                errors.append(steps)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(5000):
        history.append(step_record(step))
    done.set()
    reader.join()
    assert not errors


def test_rates_are_sums_over_the_window_and_zero_when_idle() -> None:
    telemetry = Telemetry(window_s=2.0)
    for step in range(50):  # ten steps a second of four tokens each
        telemetry.on_step(step_record(step, start_s=step * 0.1, forward_s=0.075, num_waiting=step % 2, full_batch=True), 0)
    busy = telemetry.kpis(5.0, idle=False, fragmentation=0.25)
    assert busy.output_tokens_per_s == pytest.approx(40.0)
    assert busy.total_tokens_per_s == pytest.approx(40.0)
    assert busy.mean_batch == pytest.approx(4.0)
    assert busy.full_batch_share == 1.0
    assert busy.host_share == pytest.approx(0.25)
    assert busy.host_us == pytest.approx(25_000)
    assert busy.fragmentation == 0.25
    idle = telemetry.kpis(5.0, idle=True, fragmentation=0.0)
    assert (idle.output_tokens_per_s, idle.total_tokens_per_s, idle.requests_per_s, idle.mean_batch, idle.host_us) == (
        0,
        0,
        0,
        0,
        0,
    )
    later = telemetry.kpis(50.0, idle=False, fragmentation=0.0)
    assert (later.output_tokens_per_s, later.mean_batch, later.full_batch_share) == (0.0, 0.0, None)


def test_a_young_engine_is_not_divided_by_the_whole_window() -> None:
    telemetry = Telemetry(window_s=10.0)
    telemetry.on_step(step_record(0, start_s=100.0, duration_s=0.5), 0)
    assert telemetry.kpis(100.5, idle=False, fragmentation=0.0).output_tokens_per_s == pytest.approx(8.0)


def test_full_batch_share_counts_only_steps_in_which_requests_waited() -> None:
    telemetry = Telemetry(window_s=100.0)
    for step, (waiting, full) in enumerate([(0, False), (0, False), (3, True), (3, False), (1, True), (1, True)]):
        telemetry.on_step(step_record(step, start_s=step * 0.1, num_waiting=waiting, full_batch=full), 0)
    assert telemetry.kpis(0.6, idle=False, fragmentation=0.0).full_batch_share == pytest.approx(3 / 4)


def test_window_sums_equal_a_fresh_sum_after_many_steps() -> None:
    rng = random.Random(3)
    telemetry = Telemetry(window_s=1.0)
    now, records = 0.0, []
    for step in range(3 * MAX_WINDOW_STEPS):
        length = rng.choice([1e-4, 1e-3])
        record = step_record(
            step, start_s=now, duration_s=length, output_tokens=rng.randrange(9), useful_bytes=rng.random() * 1e12
        )
        now += length
        records.append(record)
        telemetry.on_step(record, 0)
    inside = [r for r in records if r.start_s + r.duration_s > now - 1.0][-MAX_WINDOW_STEPS:]
    sums = telemetry.window.sums
    assert sums.steps == len(inside)
    assert sums.output_tokens == sum(r.output_tokens for r in inside)
    assert sums.useful_bytes == pytest.approx(sum(r.useful_bytes for r in inside), rel=1e-9)


def test_goodput_counts_requests_that_met_every_target() -> None:
    telemetry = Telemetry(window_s=10.0)
    telemetry.on_step(step_record(0, start_s=0.0, duration_s=10.0), 0)
    in_time = SLO(ttft_s=2.0, itl_s=1.5)
    telemetry.on_end(ended([1.0, 2.0, 3.0], slo=in_time))
    telemetry.on_end(ended([1.0, 2.0, 5.0], slo=in_time))  # one gap of 3 s
    telemetry.on_end(ended([2.5, 3.0, 3.5], slo=in_time))  # first token too late
    telemetry.on_end(ended([1.0, 2.0]))  # no target: in throughput, not in goodput
    telemetry.on_end(ended([1.0, 2.0], slo=in_time, reason=FinishReason.CANCELLED))
    kpis = telemetry.kpis(10.0, idle=False, fragmentation=0.0)
    assert kpis.requests_per_s == pytest.approx(0.4)
    assert kpis.goodput_per_s == pytest.approx(0.1)
    assert [r.slo_met for r in telemetry.requests] == [None, None, False, False, True]


def test_goodput_has_no_value_without_targets() -> None:
    telemetry = Telemetry()
    telemetry.on_step(step_record(0), 0)
    telemetry.on_end(ended([0.05, 0.1]))
    assert telemetry.kpis(0.1, idle=False, fragmentation=0.0).goodput_per_s is None


def test_a_missed_deadline_misses_the_slo() -> None:
    assert request_record(ended([1.0], slo=SLO(ttft_s=2.0), reason=FinishReason.DEADLINE)).slo_met is False


def test_a_live_request_has_no_record() -> None:
    request = Request("r", (1,), SamplingParams(), 0.0)
    with pytest.raises(ValueError, match="r is waiting"):
        request_record(request)


def test_gaps_and_time_per_output_token() -> None:
    assert gaps_s([1.0, 1.5, 4.0]) == (0.5, 2.5)
    assert gaps_s([1.0]) == ()
    assert tpot_s(4.0, 1.0, 3) == 1.5
    assert tpot_s(4.0, 1.0, 1) is None
    assert tpot_s(4.0, None, 0) is None


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1001])
def test_percentiles_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count)
    newest = Newest(1024)
    newest.extend(values)
    found = newest.percentiles()
    assert found.count == count
    assert [found.p50, found.p95, found.p99] == pytest.approx(list(np.percentile(values, [50, 95, 99])))


def test_percentiles_are_over_the_newest_values_only() -> None:
    newest = Newest(10)
    for first in range(0, 95, 5):
        newest.extend(range(first, first + 5))
    assert len(newest) == 10
    assert newest.percentiles().p50 == pytest.approx(np.percentile(range(85, 95), 50))
    newest.extend(range(1000, 1025))
    assert newest.percentiles().p50 == pytest.approx(np.percentile(range(1015, 1025), 50))


@pytest.mark.parametrize("seed", range(6))
def test_values_that_come_many_times_at_once_count_as_often(seed: int) -> None:
    rng = np.random.default_rng(seed)
    newest, plain, size = Newest(500), list[float](), 500
    pictures = []
    for _ in range(300):
        value, times = float(rng.exponential()), int(rng.choice((0, 1, 3, 64, 700), p=(0.1, 0.3, 0.3, 0.29, 0.01)))
        if rng.random() < 0.7:
            newest.add(value, times)
            plain += [value] * times
        else:
            plain += (few := rng.exponential(size=3).tolist())
            newest.extend(few)
        assert len(newest) == min(len(plain), size)
        expected = np.percentile(plain[-size:], [50, 95, 99])
        pictures.append((newest.percentiles(), expected, len(newest)))
    for found, expected, count in pictures:  # looked at only now: what came since must not show
        assert found.count == count
        assert [found.p50, found.p95, found.p99] == pytest.approx(list(expected))


def test_latencies_of_tokens_as_they_are_delivered() -> None:
    tracker = LatencyTracker()
    tracker.on_arrival("a", 1.0)
    tracker.on_arrival("b", 2.0)
    tracker.on_tokens([("a", 3.0)])
    tracker.on_tokens([("a", 4.0), ("b", 4.0)])
    assert (tracker.ttft.percentiles().count, tracker.ttft.percentiles().p50) == (2, 2.0)
    assert (tracker.itl.percentiles().count, tracker.itl.percentiles().p50) == (1, 1.0)


CEILINGS = RooflineCeilings("test", 1e12, 20e9, 100e9, 1 << 30, "float32", cache_bytes=10e6)


@pytest.mark.parametrize(
    ("working_set", "bandwidth", "name"),
    [
        (5e6, 100e9, "cache"),
        (10e6, 100e9, "cache"),
        (20e6, 1 / (0.5 / 100e9 + 0.5 / 20e9), "cache + DRAM"),
        (1e9, 1 / (0.01 / 100e9 + 0.99 / 20e9), "DRAM"),
    ],
)
def test_the_bandwidth_ceiling_follows_the_working_set(working_set: float, bandwidth: float, name: str) -> None:
    found, label = bandwidth_ceiling(CEILINGS, working_set)
    assert (found, label) == (pytest.approx(bandwidth), name)


def test_without_a_known_cache_the_ceiling_is_main_memory() -> None:
    for ceilings in (dataclasses.replace(CEILINGS, cache_bytes_per_s=None), dataclasses.replace(CEILINGS, cache_bytes=0.0)):
        assert bandwidth_ceiling(ceilings, 1e6) == (20e9, "DRAM")


def test_utilisation_is_useful_work_over_the_ceiling() -> None:
    assert mfu(5e11, 1.0, CEILINGS) == pytest.approx(0.5)
    share = (10e6 / 100e9 + 990e6 / 20e9) / 0.1  # 10 MB of each step may come from the cache: too little to be named
    assert mbu(100 * 1e9, 10.0, 100, CEILINGS) == (pytest.approx(share), "DRAM")
    assert mbu(1000 * 5e6, 0.1, 1000, CEILINGS) == (pytest.approx(0.5), "cache")  # faster than DRAM: the cache's ceiling
    assert mfu(0.0, 0.0, CEILINGS) is None


def test_kept_requests_are_bounded_by_count_and_by_gaps() -> None:
    telemetry = Telemetry()
    for _ in range(3000):
        telemetry.on_end(ended([float(t) for t in range(200)]))
    kept = telemetry.requests
    assert len(kept) <= 2048
    assert sum(len(r.itl_s) for r in kept) <= 200_000
    assert len(telemetry.recent_requests()) == 200


def test_launches_are_counted_by_their_words() -> None:
    telemetry = Telemetry()
    for step, graph in enumerate(("", "eager", "graph miss 4", "graph hit 4", "graph hit 4", "graph miss")):
        telemetry.on_step(step_record(step, graph=graph), 0)
    work = telemetry.work
    assert (work.graph_captures, work.graph_replays, work.graph_misses) == (1, 2, 2)
    telemetry.clear()
    assert telemetry.work.graph_replays == 0
