"""The guided tour: its stops make sense, each changes the live load, and the end gives everything back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core.charts import tour as figure
from core.control import LiveLimits
from core.live_changes import check_load
from core.tour import LEAST_STEPS, STOPS, measured
from pages.parts import engine_access
from tests.fake_live import FakeLive
from tests.fake_snapshots import busy_run

PAGE = Path(__file__).resolve().parents[1] / "pages" / "tour.py"


@pytest.fixture
def live() -> Iterator[FakeLive]:
    fake = FakeLive(busy_run(120))
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def press(app: AppTest, label: str) -> AppTest:
    return next(b for b in app.button if b.label == label).click().run()


def html(app: AppTest) -> str:
    return " ".join(node.proto.body for node in app.get("html"))


def test_every_stop_is_a_load_and_knobs_that_the_engine_takes() -> None:
    for stop in STOPS:
        scheduler, cache = stop.configs()
        check_load(stop.load, LiveLimits(), 8192)
        assert stop.load.users >= 1
        longest = stop.load.prompt_tokens.high + stop.load.output_tokens.high
        assert longest < cache.num_blocks * cache.block_size, "one request alone fits the pool"
        assert scheduler.max_num_seqs <= 64
    users = [stop.load.users for stop in STOPS[:4]]
    assert users == sorted(users)
    assert STOPS[4].load == STOPS[5].load, "the fixed batch and its counterpart get the same load"
    last = STOPS[-1]
    need = -(-(last.load.prompt_tokens.high + last.load.output_tokens.high) // 16)
    assert need * last.load.users > last.configs()[1].num_blocks, "memory is the ceiling of the last stop"


def test_what_is_measured_is_what_the_records_say() -> None:
    records = busy_run(100).records
    found = measured(records)
    assert found is not None
    assert found.steps == len(records)
    assert found.tokens_per_s * (records[-1].start_s + records[-1].duration_s - records[0].start_s) == pytest.approx(
        sum(r.output_tokens for r in records)
    )
    assert found.useful_share == pytest.approx(1.0)
    half = measured([replace(r, useful_flops=r.flops / 2) for r in records])
    assert half is not None
    assert half.useful_share == pytest.approx(0.5)
    assert measured(records[: LEAST_STEPS - 1]) is None


def test_the_tour_leads_through_its_stops_and_gives_the_settings_back(live: FakeLive) -> None:
    before, load = live.run.scheduler, live.load
    app = AppTest.from_file(str(PAGE), default_timeout=120).run()
    assert not app.exception
    press(app, "Begin")
    assert live.load == STOPS[0].load
    assert "1 of 7: One sequence" in html(app)
    live.run.advance(40)
    live.picture = live._publish()
    app.run()
    assert "stops visited: 1" in html(app)
    press(app, "Next")
    assert live.load == STOPS[1].load
    assert live.commands[-2][1]["reset"] is True
    press(app, "End the tour")
    assert (live.run.scheduler, live.load) == (before, load)
    assert "Each stop changes the load" in html(app)


def test_a_viewer_cannot_lead(live: FakeLive) -> None:
    live.control.acquire("somebody else", label="the lecturer")
    app = AppTest.from_file(str(PAGE), default_timeout=120).run()
    assert all(b.disabled for b in app.button if b.key and b.key.startswith("tour_"))
    assert any("only watches" in c.value for c in app.caption)


def test_a_stop_that_was_not_visited_has_no_bar_label() -> None:
    found = measured(busy_run(100).records)
    assert found is not None
    frame = figure.stops_frame({2: found})
    assert list(frame["label"] != "") == [number == 2 for number in range(len(STOPS))]
