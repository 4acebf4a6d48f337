"""Fault 58: a page that redraws charts all the time uses more and more memory though its data are bounded."""

from __future__ import annotations

import asyncio
import os
import statistics
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from benchmarks.dashboard_server import serving
from benchmarks.soak import status
from benchmarks.viewers import Viewer
from core.charts import batch_timeline, gantt, roofline, seats
from tests.fake_snapshots import FakeRun

VIEWERS, INTERVAL_S = 4, 0.1
BOUND_STEPS = 1000
WARM_UP, MEASURED = 150, 300
"""Refreshes; the warm-up lasts until histories and record hold as many steps as they ever will."""
MOST_GROWTH_MB = 7.5
"""50 MB in 2,000 refreshes, for so many; `python -m benchmarks soak` is the same for half an hour at the usual bounds.
The resident size of a server that keeps nothing moves by less than one."""
LIMIT_S = 500.0


def steps(url: str) -> float:
    """Steps that the engine has run, by the metrics page."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:iteration_tokens_total_count{"))


async def look(url: str, pid: int) -> tuple[list[tuple[int, float]], list[Viewer]]:
    """Viewers of the live page; (refreshes since the warm-up, resident MB of the server) each second after it."""
    seen = asyncio.Event()  # a cancelled wait for a message may go on all the same, to the end of LIMIT_S
    viewers = [Viewer(url, "live", interval_s=INTERVAL_S, goes_on=lambda: not seen.is_set()) for _ in range(VIEWERS)]
    watching = [asyncio.create_task(viewer.watch(LIMIT_S)) for viewer in viewers]
    samples: list[tuple[int, float]] = []
    base = 0
    while not any(task.done() for task in watching) and (not samples or samples[-1][0] < MEASURED):
        await asyncio.sleep(1.0)
        refreshes = sum(viewer.runs for viewer in viewers)
        if not base and refreshes >= WARM_UP and steps(url) > BOUND_STEPS:
            base = refreshes
        if base:
            samples.append((refreshes - base, status(pid)[0]))
    seen.set()
    await asyncio.gather(*watching, return_exceptions=True)
    await asyncio.sleep(1.0)  # the connections close
    return samples, viewers


@pytest.mark.slow
def test_memory_is_level_over_300_refreshes_with_a_busy_engine() -> None:
    environment = os.environ | {"BATCHSCOPE_MODEL": "tiny", "BATCHSCOPE_DTYPE": "float32", "BATCHSCOPE_THINK_S": "0"}
    environment["BATCHSCOPE_HISTORY_STEPS"] = str(BOUND_STEPS)
    with serving("app:app", environment) as (url, server), ThreadPoolExecutor(1) as thread:
        samples, viewers = thread.submit(lambda: asyncio.run(look(url, server.pid))).result()
    assert [error for viewer in viewers for error in viewer.errors] == []
    assert samples, f"{BOUND_STEPS} steps and {WARM_UP} refreshes were not reached in {LIMIT_S:.0f} s"
    assert samples[-1][0] >= MEASURED, f"only {samples[-1][0]} refreshes after the warm-up"
    warm = [mb for count, mb in samples if count < 75]
    late = [mb for count, mb in samples if count >= MEASURED - 75]
    growth = statistics.median(late) - statistics.median(warm)
    print(f"{growth:.1f} MB over {MEASURED} refreshes, {late[-1]:.0f} MB at the end")
    assert growth <= MOST_GROWTH_MB
    for viewer in viewers:  # a chart that kept its old points would send more and more
        third = len(viewer.run_bytes) // 3
        # a refresh without news sends little, two that come together count as one: neither moves the upper tenth
        middle, end = (
            statistics.quantiles(part, n=10)[-1] for part in (viewer.run_bytes[third:-third], viewer.run_bytes[-third:])
        )
        assert end <= 1.4 * middle


def test_charts_hold_a_stated_number_of_points_however_long_the_run_was() -> None:
    run = FakeRun(load=200)
    sizes = []
    for _ in range(2):
        run.advance(2 * batch_timeline.MAX_STEPS)
        picture, records = run.snapshot(), run.records
        frames = [
            batch_timeline.composition_frame(records),
            batch_timeline.batch_frame(records),
            batch_timeline.times_frame(records),
            roofline.dot_frame(records, "forward"),
        ]
        sizes.append([len(frame) for frame in frames])
        assert len(gantt.lanes(picture)) == gantt.MAX_LANES
        assert set(seats.seat_frame(picture).seat) <= set(range(seats.MAX_SEATS))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] == batch_timeline.MAX_STEPS
