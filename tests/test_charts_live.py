"""Figures of the Live and Home pages: what they add up to, that their specifications are constant and compile."""

import json
from itertools import pairwise

import numpy as np
import pytest
import vl_convert

from core.charts import batch_timeline, gantt, seats, style, tiles
from pages.parts.tiles import tile_rows
from tests.fake_snapshots import FakeRun, busy_run


@pytest.fixture(scope="module")
def run():
    return busy_run()


@pytest.fixture(scope="module")
def snapshot(run):
    return run.snapshot()


SPECS = [batch_timeline.composition_spec, batch_timeline.batch_spec, batch_timeline.times_spec, gantt.gantt_spec, seats.seat_spec]


def test_tokens_of_a_step_fill_the_budget_exactly(run):
    frame = batch_timeline.composition_frame(run.history())
    assert len(frame) == len(run.records)
    assert (frame[["prefill", "decode", "padding", "idle"]].sum(axis=1) == frame["budget"]).all()


def test_a_long_history_is_cut_to_the_bound(run):
    many = run.history() * 3
    assert len(batch_timeline.composition_frame(many)) == batch_timeline.MAX_STEPS
    assert len(batch_timeline.batch_frame(many)) == batch_timeline.MAX_STEPS
    assert len(batch_timeline.times_frame(many)) == batch_timeline.MAX_STEPS


def test_parts_of_a_step_add_up_to_its_duration(run):
    frame = batch_timeline.times_frame(run.history())
    parts = frame.drop(columns="step").sum(axis=1)
    assert parts.to_list() == pytest.approx([1e3 * r.duration_s for r in run.records])


def test_events_are_marked_only_where_they_happened(run):
    frame = batch_timeline.composition_frame(run.history())
    assert (frame["preempted"] > 0).sum() == sum(r.preempted > 0 for r in run.records) > 0


@pytest.mark.parametrize("build", SPECS)
@pytest.mark.parametrize("theme", style.THEMES.values(), ids=lambda t: t.name)
def test_specifications_are_constant_and_compile(build, theme):
    spec = build(theme)
    assert build(theme) is spec
    vega = vl_convert.vegalite_to_vega(json.dumps({**spec, "data": {"values": []}}))
    assert vega["marks"]


def test_lanes_cover_each_life_without_gap_or_overlap(snapshot):
    rows = gantt.lanes(snapshot)
    assert len(rows) == gantt.MAX_LANES
    assert any(row.preempted_spans_s for row in rows)
    for row in rows:
        spans = gantt.spans_of(row, snapshot.time_s)
        end = row.finished_s if row.finished_s is not None else snapshot.time_s
        assert spans[0][1] == row.arrival_s
        assert spans[-1][2] == end
        for (_, _, before), (_, after, _) in pairwise(spans):
            assert before == after


def test_preempted_time_is_drawn_as_preempted(snapshot):
    row = next(r for r in snapshot.running if r.preempted_spans_s)
    drawn = sum(b - a for phase, a, b in gantt.spans_of(row, snapshot.time_s) if phase == "preempted")
    assert drawn == pytest.approx(sum(b - a for a, b in row.preempted_spans_s))


def test_two_requests_never_share_a_seat_at_one_time(snapshot):
    rows = (*snapshot.running, *snapshot.preempted, *snapshot.ended)
    seated = seats.assign_seats(rows, snapshot.time_s)
    assert len(seated) == len(rows)
    by_seat = {}
    for seat, row in seated:
        by_seat.setdefault(seat, []).append((row.admitted_s, row.finished_s or snapshot.time_s))
    assert len(by_seat) > 10
    for spans in by_seat.values():
        for (_, before), (after, _) in pairwise(spans):
            assert before <= after


def test_seats_are_drawn_only_where_every_holder_is_known(snapshot):
    frame = seats.seat_frame(snapshot)
    assert frame["from_s"].min() >= np.float32(seats.window_start_s(snapshot)) > 0
    assert set(frame["phase"]) <= set(seats.PHASES)


def test_tiles_have_a_value_a_line_and_a_dash_before_the_first_step(run, snapshot):
    shown = tiles.tiles(snapshot, run.history())
    assert [tile.key for tile in shown] == ["tokens_per_s", "ttft", "itl", "full_batch", "mbu", "host"]
    for tile in shown:
        assert 2 <= len(tile.line) <= tiles.POINTS
    share = next(tile for tile in shown if tile.key == "full_batch")
    assert all(v is None or 0 <= v <= 1 for v in share.line)
    fresh = tiles.tiles(FakeRun().snapshot(), ())
    assert all(tile.line == () for tile in fresh)
    assert next(tile for tile in fresh if tile.key == "host").value == "–"


def test_buckets_leave_no_step_out_but_the_oldest_odd_ones(run):
    history = run.history()[:307]
    cut = tiles.buckets(history)
    assert len(cut) <= tiles.POINTS
    flat = [record.step for bucket in cut for record in bucket]
    assert flat == [record.step for record in history][len(history) - len(flat) :]
    assert len(history) - len(flat) < len(cut[0])


def test_every_meaning_has_one_colour_in_each_theme():
    for theme in style.THEMES.values():
        paints = {m: style.colour(m, theme) for m in ("prefill", "decode", "waiting", "preempted", "finished", "shared", "idle")}
        assert len(set(paints.values())) == len(paints)
    with pytest.raises(KeyError):
        style.colour("nothing")


def test_kinds_are_told_apart_by_their_dashes():
    scale = style.kind_scale()
    assert scale["domain"] == ["measured", "predicted", "replayed"]
    assert len({tuple(dash) for dash in scale["range"]}) == 3


@pytest.mark.parametrize("theme", style.THEMES.values(), ids=lambda t: t.name)
def test_preempted_is_told_from_prefill_without_its_hue(theme):
    channels = style.phase_channels(gantt.PHASES, theme)
    looks = {
        phase: tuple(json.dumps(channels[name]["scale"]["range"][k]) for name in ("color", "stroke", "strokeDash"))
        for k, phase in enumerate(gantt.PHASES)
    }
    assert looks["preempted"][2] != looks["prefill"][2]
    assert looks["preempted"][1] != looks["prefill"][1]
    assert len({look[0] for look in looks.values()}) == len(looks)


def test_a_layer_of_rare_marks_keeps_one_row_so_that_its_axis_has_an_extent():
    rows = [{"step": step, "preempted": 0} for step in (5, 6, 7)]
    spec = {
        "data": {"values": rows},
        "transform": style.seldom("datum.preempted > 0"),
        "mark": "point",
        "encoding": {"x": {"field": "step", "type": "quantitative"}, "size": style.seldom_size("datum.preempted > 0", 22)},
    }
    svg = vl_convert.vegalite_to_svg(json.dumps(spec))
    assert svg.count('aria-roledescription="point"') == 1
    spec["data"] = {"values": [*rows, {"step": 8, "preempted": 2}]}
    assert vl_convert.vegalite_to_svg(json.dumps(spec)).count('aria-roledescription="point"') == 2


def test_tiles_as_rows_hold_every_point_of_every_line(run, snapshot):
    shown = tiles.tiles(snapshot, run.history())
    rows = tile_rows(shown)
    for tile in shown:
        of = rows[rows["figure"] == tile.label]
        assert of["line"].dropna().tolist() == [v for v in tile.line if v is not None]
        assert set(of["value"]) == {tile.value}
