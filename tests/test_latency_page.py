"""Latencies by tenant, targets, worst requests: the arithmetic, and the page on scenery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from core.charts import latency, style
from core.records import RequestRecord
from core.slo import attainment, meets, worst
from pages.parts import engine_access
from tests.fake_live import FakeLive
from tests.fake_snapshots import busy_run

PAGE = Path(__file__).resolve().parents[1] / "pages" / "latency.py"


def record(number: int, **fields: object) -> RequestRecord:
    plain = RequestRecord(
        f"r{number}", "a", 0, 0.0, float(number), "length", 10, 3, 0, 0, 0.1, 0.5, 0.2, 0.9, 0.25, 0.0, itl_s=(0.15, 0.25)
    )
    return replace(plain, **fields)


def test_a_request_meets_its_targets_only_if_it_meets_each() -> None:
    assert meets(record(1), 0.5, 0.25)
    assert not meets(record(1), 0.49, None)
    assert not meets(record(1), None, 0.24)
    assert meets(record(1), None, None)
    assert meets(record(1, max_itl_s=None), 1.0, 0.001), "a single token has no gap"
    assert not meets(record(1, ttft_s=None), 1.0, None)
    assert not meets(record(1, finish_reason="deadline"), None, None)


def test_attainment_counts_what_ended_by_itself_and_goodput_is_a_rate() -> None:
    records = [record(1), record(3, ttft_s=9.0), record(5), record(4, finish_reason="cancelled")]
    found = attainment(records, 1.0, None)
    assert (found.counted, found.met, found.span_s) == (3, 2, 4.0)
    assert found.share == pytest.approx(2 / 3)
    assert found.goodput_per_s == pytest.approx(0.5)
    assert attainment([], 1.0, 1.0).share is None
    assert attainment([record(1)], 1.0, None).goodput_per_s is None


def test_the_worst_come_first_and_those_without_a_value_not_at_all() -> None:
    records = [record(1, tpot_s=0.1), record(2, tpot_s=None), record(3, tpot_s=0.7), record(4, tpot_s=0.3)]
    assert [r.request_id for r in worst(records, "tpot_s", 2)] == ["r3", "r4"]


def test_the_histogram_holds_every_value_once_and_stacks_without_gaps() -> None:
    records = busy_run(300).requests
    digest = latency.Digest(records)
    for metric in latency.METRICS:
        frame = digest.histogram(metric)
        values = np.concatenate(list(digest.values(metric).values()))
        assert frame["count"].sum() == len(values)
        assert (frame["above"] - frame["below"] == frame["count"]).all()
        for _, group in frame.groupby("low"):
            assert sorted(group["below"]) == [0, *sorted(group["above"])[:-1]]
        assert frame["low"].min() <= values.min() < frame["high"].max()
    assert len(digest.values("itl")) > 1
    one = latency.Digest(records[:1])
    assert one.overall("ttft").p50 == records[0].ttft_s


def test_many_tenants_become_few_and_keep_their_requests() -> None:
    records = [record(i, tenant=f"t{i % 20}") for i in range(200)]
    digest = latency.Digest(records)
    assert len(digest.by_tenant()) == latency.MAX_TENANTS
    assert sum(len(members) for _, members in digest.by_tenant()) == 200
    assert len(dict(digest.by_tenant())[latency.OTHERS]) == 130


def test_percentiles_over_time_are_those_of_the_requests_of_each_span() -> None:
    records = [record(i, ttft_s=float(i)) for i in range(240)]
    frame = latency.over_time_frame(latency.Digest(records).by_tenant(), "ttft")
    assert frame["requests"].sum() == 240
    assert frame["p50"].is_monotonic_increasing
    assert frame["p50"].iloc[0] == pytest.approx(4.5, abs=0.5)
    assert latency.over_time_frame([], "ttft").empty


def test_a_digest_is_made_again_only_when_a_request_has_ended() -> None:
    records = tuple(busy_run(60).requests)
    assert latency.digest_of(records) is latency.digest_of(tuple(records))
    assert latency.digest_of(records[1:]) is not latency.digest_of(records)
    assert latency.digest_of(()).overall("e2e").p50 is None


def test_specifications_hold_no_number_of_the_run() -> None:
    assert latency.histogram_spec(style.DARK) is latency.histogram_spec(style.DARK)
    assert "datasets" not in latency.histogram_spec(style.DARK)
    assert latency.over_time_spec(style.LIGHT) is latency.over_time_spec(style.LIGHT)


@pytest.fixture
def live() -> Iterator[FakeLive]:
    fake = FakeLive(busy_run(200))
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def page(tab: str) -> AppTest:
    app = AppTest.from_file(str(PAGE), default_timeout=120)
    app.session_state["latency_details"] = tab
    return app.run()


@pytest.mark.parametrize("tab", ["Over time", "By tenant", "Worst requests"])
def test_the_page_draws_each_tab(live: FakeLive, tab: str) -> None:
    app = page(tab)
    assert not app.exception
    html = " ".join(node.proto.body for node in app.get("html"))
    assert "SLO attainment" in html
    assert f"last {len(live.run.requests)} ended requests · measured" in html


def test_the_targets_go_to_the_load(live: FakeLive) -> None:
    app = page("By tenant")
    app.number_input(key="slo_ttft").set_value(3.0).run()
    next(b for b in app.button if "targets" in b.label).click().run()
    assert live.load is not None
    assert (live.load.slo_ttft_s, live.load.slo_itl_s) == (3.0, 0.5)


def test_without_an_ended_request_the_page_says_so(live: FakeLive) -> None:
    live.run.requests.clear()
    app = page("Over time")
    assert not app.exception
    assert any("No request has ended yet" in text.value for text in app.text)
