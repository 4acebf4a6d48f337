"""The Scheduler, Story and Failure modes pages on pictures without an engine, and the figures behind them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from core.charts import before_after, shares
from core.charts import story as story_figure
from core.config import SchedulerConfig
from core.control import AuditEntry
from core.decision_words import decision_words
from core.detectors import DETECTORS, LIMIT_REASONS
from core.errors import ConfigError
from core.outputs import BoundBy, PassedOver, Preemption
from core.request import StoryEvent
from core.snapshot import TenantView
from core.story import Story
from pages.parts import audit, engine_access
from pages.parts.policies import tenants_of
from tests.fake_live import FakeLive

ROOT = Path(__file__).resolve().parents[1]

STORY = Story(
    "r-000007",
    "finished",
    40,
    4,
    (
        StoryEvent(1.0, 3, "submitted", "40 prompt tokens", 40),
        StoryEvent(2.0, 5, "admitted", "blocks 4-5", blocks=(4, 5)),
        StoryEvent(2.5, 5, "chunk", "tokens 0 to 31 computed", 32),
        StoryEvent(3.0, 6, "chunk", "tokens 32 to 39 computed", 8),
        StoryEvent(3.0, 6, "first_token", "2 s after arrival"),
        StoryEvent(3.5, 7, "blocks", "blocks 6 added", 1, blocks=(6,)),
        StoryEvent(4.0, 8, "preempted", "memory, for r-000002"),
        StoryEvent(6.0, 12, "resumed", "blocks 9-11", blocks=(9, 10, 11)),
        StoryEvent(8.0, 14, "finished", "length"),
    ),
    token_times_s=(3.0, 3.5, 7.0, 8.0),
    tenant="chat",
)


def test_the_audit_list_says_who_changed_what_from_what_to_what(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = engine_access.wall_clock.now()
    entries = (
        AuditEntry(now_s - 2.0, "abcdef", "configure", "scheduler: max_num_seqs 32 to 64"),
        AuditEntry(now_s - 60.0, "123456", "step", "1", "refused", "this session only watches <b>"),
    )
    rows = audit.audit_rows(entries, now_s, "abcdef")
    assert rows[0][1:] == ("this session", "changed settings", "accepted", "scheduler: max_num_seqs 32 to 64")
    assert rows[1][1:] == ("session 1234", "one step", "refused", "1 · this session only watches <b>")
    monkeypatch.setattr(live, "audit", lambda: entries)
    test = AppTest.from_file(str(ROOT / "pages" / "scheduler.py"), default_timeout=120).run()
    (shown,) = [h.body for h in test.get("html") if "max_num_seqs 32 to 64" in h.body]
    assert "&lt;b&gt;" in shown
    assert "123456" not in shown, "an id that is shown whole could be used"


@pytest.mark.parametrize("page", ["scheduler.py", "failure_modes.py", "story.py"])
def test_the_page_draws_without_an_error(page: str, live: FakeLive) -> None:
    test = AppTest.from_file(str(ROOT / "pages" / page), default_timeout=120).run()
    assert not test.exception, [e.value for e in test.exception]


def test_a_limit_is_said_as_its_detector_says_it(live: FakeLive) -> None:
    test = AppTest.from_file(str(ROOT / "pages" / "failure_modes.py"), default_timeout=30).run()
    words = "".join(h.body for h in test.get("html"))
    assert "Found above a limit of 30 %" in words
    assert "(limit 30 %)" in words


def test_phases_cover_a_life_without_gap_or_overlap() -> None:
    spans = story_figure.phases(STORY, now_s=99.0)
    assert spans == [
        ("queue", 1.0, 2.0),
        ("prefill", 2.0, 3.0),
        ("decode", 3.0, 4.0),
        ("preempted", 4.0, 6.0),
        ("prefill", 6.0, 7.0),
        ("decode", 7.0, 8.0),
    ]


def test_every_token_is_a_tick_and_time_starts_at_arrival() -> None:
    frame = story_figure.story_frame(STORY, now_s=99.0)
    assert frame[frame.row == "token"].from_s.tolist() == [2.0, 2.5, 6.0, 7.0]
    assert frame[frame.row == "token"].token.tolist() == [1, 2, 3, 4]
    assert len(frame[frame.row == "chunk"]) == 2
    assert frame.from_s.min() == 0.0


def test_a_token_of_a_story_takes_few_bytes_of_a_tick() -> None:
    def size(tokens: int) -> int:
        long = dataclasses.replace(STORY, token_times_s=tuple(3.0 + 0.01 * k for k in range(tokens)))
        return sum(column.nbytes for column in pa.Table.from_pandas(story_figure.story_frame(long, 99.0), preserve_index=False))

    assert (size(1000) - size(500)) / 500 < 20


def test_every_block_is_a_bar_from_the_step_that_took_it_to_the_one_that_gave_it_back() -> None:
    first = [(0, 4, 2.0, 4.0), (1, 5, 2.0, 4.0), (2, 6, 3.5, 4.0)]
    second = [(0, 9, 6.0, 8.0), (1, 10, 6.0, 8.0), (2, 11, 6.0, 8.0)]
    assert story_figure.held_blocks(STORY, now_s=99.0) == first + second
    running = dataclasses.replace(STORY, events=STORY.events[:-1])
    assert story_figure.held_blocks(running, now_s=99.0)[3:] == [(p, b, a, 99.0) for p, b, a, _ in second]
    assert story_figure.blocks_frame(STORY, now_s=99.0).from_s.tolist() == [1.0, 1.0, 2.5, 5.0, 5.0, 5.0]


def test_every_detector_gives_the_reason_of_its_limit() -> None:
    assert set(LIMIT_REASONS) == set(DETECTORS)


def test_a_live_story_runs_up_to_now() -> None:
    open_story = dataclasses.replace(STORY, events=STORY.events[:2], token_times_s=())
    assert story_figure.phases(open_story, now_s=5.0) == [("queue", 1.0, 2.0), ("prefill", 2.0, 5.0)]


def test_a_decision_in_words_names_everybody(live: FakeLive) -> None:
    snapshot = live.latest()
    record = snapshot.step_record
    assert record is not None
    earlier = Preemption(record.step - 1, "r-9", "", 1, 1, 0, "x")
    snapshot = dataclasses.replace(
        snapshot,
        admitted=("r-1",),
        resumed=("r-2",),
        passed_over=(PassedOver("r-3", BoundBy.MEMORY, "needs 12 blocks, 4 free"),),
        preemptions=(Preemption(record.step, "r-4", "r-2", 8, 96, 0, "memory"), earlier),
    )
    text = " ".join(s.detail for s in decision_words(snapshot))
    for words in ("admitted r-1", "resumed r-2", "r-3: needs 12 blocks, 4 free", "r-4 gave 8 blocks back for r-2", "96 tokens"):
        assert words in text
    assert "r-9" not in text, "an earlier step's preemption is not part of this decision"


def test_shares_of_each_kind_add_up_to_one() -> None:
    tenants = [TenantView("a", 3.0, 1, 0, 4, 900, 0.9), TenantView("b", 1.0, 1, 0, 4, 100, 0.1)]
    frame = shares.shares_frame(tenants)
    assert frame.groupby("what").share.sum().tolist() == pytest.approx([1.0, 1.0])
    assert frame[(frame.tenant == "a") & (frame.what == shares.ENTITLED)].share.item() == 0.75


def test_tenants_from_the_edited_table() -> None:
    columns = ["tenant", "weight", "seats", "blocks", "tokens/s"]
    nan = float("nan")
    table = pd.DataFrame([("a", 2.0, 4.0, nan, 50.0), ("b", nan, nan, nan, nan)], columns=columns)
    a, b = tenants_of(table)
    assert (a.weight, a.max_seqs, a.max_blocks, a.max_tokens_per_s) == (2.0, 4, None, 50.0)
    assert (b.weight, b.max_seqs) == (1.0, None)
    assert SchedulerConfig(tenants=(a, b)).tenant("a") == a
    for row, words in (
        (("a", 0.0, nan, nan, nan), "weight"),
        (("", 1.0, nan, nan, nan), "no name"),
        (("a", 1.0, 1.5, nan, nan), "whole"),
    ):
        with pytest.raises(ConfigError, match=words):
            tenants_of(pd.DataFrame([row], columns=columns))


def test_lanes_keep_every_token_and_share_one_axis(live: FakeLive) -> None:
    records = live.history(-1)
    axis_s = 2 * before_after.span_s(records)
    frame = before_after.lane_frame(records, axis_s)
    width_s = axis_s / before_after.BINS
    for part, total in (
        ("prefill", sum(r.prefill_tokens for r in records)),
        ("decode", sum(r.decode_tokens for r in records)),
        ("padding", sum(r.padded_tokens for r in records)),
    ):
        assert frame[frame.part == part].tokens_per_s.sum() * width_s == pytest.approx(total)
    assert frame.at_s.max() == pytest.approx(axis_s)
