"""The roofline's data against the cost model, and its specification against a real Vega compiler."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import vl_convert as vlc

from core.block_view import occupancy, reservations
from core.charts import kv, marginal, roofline, roofline_spec, step_cost, style
from core.charts.arrow import table
from core.devices import DEVICE_PRESETS
from core.records import StepRecord
from core.roofline import decode_sums, model_time, roofline_time
from core.snapshot import CeilingChange
from tests.fake_snapshots import CEILINGS, INFO, busy_run

MODEL = roofline.model_of(INFO)
UNDER = roofline.measured_ceilings(CEILINGS)
THEMES = [style.DARK, style.LIGHT]


def decode_record(step: int, rows: int, context: int, host_s: float = 0.0) -> StepRecord:
    """A decode-only step whose forward time is exactly what the model predicts."""
    cost = MODEL.cost_of_sums(decode_sums(MODEL, rows, context))
    forward = model_time(MODEL, UNDER.device, cost).total_s
    template = busy_run(1).records[-1]
    return replace(
        template, step=step, duration_s=forward + host_s, forward_s=forward, prefill_requests=0, prefill_tokens=0,
        decode_requests=rows, decode_tokens=rows, padded_tokens=0, flops=cost.flops, weight_bytes=cost.weight_bytes,
        kv_read_bytes=cost.kv_read_bytes, kv_write_bytes=cost.kv_write_bytes, swap_bytes=0.0,
    )  # fmt: skip


def test_the_ceilings_meet_at_the_ridge() -> None:
    lines, ridges = roofline.ceiling_frames(UNDER, [1.0, 40.0])
    peak = CEILINGS.peak_flops
    for name, bandwidth in (("DRAM", CEILINGS.dram_bytes_per_s), ("cache", CEILINGS.cache_bytes_per_s)):
        points = lines[lines["name"] == name]
        assert (points["flops_per_s"] / points["intensity"]).tolist() == pytest.approx([bandwidth] * len(points))
        assert points["flops_per_s"].max() == pytest.approx(peak)
        assert ridges.set_index("name")["intensity"][name] == pytest.approx(peak / bandwidth)
    roof = lines[lines["name"] == "compute"]
    assert set(roof["flops_per_s"]) == {peak}
    assert lines["intensity"].min() < 1.0
    assert lines["intensity"].max() > 40.0
    assert set(lines["kind"]) == {"measured"}


def test_the_axes_rest_while_the_dots_wander() -> None:
    """The lines end at half decades, so a little more or less intensity leaves the picture where it is."""
    ends = {
        tuple(roofline.ceiling_frames(UNDER, [x])[0]["intensity"].agg(["min", "max"])) for x in (13.0, 15.0, 17.0, 25.0, 39.0)
    }
    assert len(ends) == 1


def test_a_raised_ceiling_says_by_what_and_when() -> None:
    assert roofline.changes_in_words(CEILINGS) == ""
    moves = (
        CeilingChange("DRAM", "a later probe", 40, 3.0, 20e9, 22e9),
        CeilingChange("compute", "measured steps", 1312, 47.0, 117e9, 139e9),
    )
    words = roofline.changes_in_words(replace(CEILINGS, changes=moves)).replace("\u2009", " ").replace("\u202f", " ")
    assert words == (
        "compute raised from 117 GFLOP/s to 139 GFLOP/s by measured steps at step 1312 (47.0 s); "
        "DRAM raised from 20.0 GB/s to 22.0 GB/s by a later probe at step 40 (3.00 s)"
    )


def test_published_ceilings_are_never_called_measured() -> None:
    lines, _ = roofline.ceiling_frames(roofline.Ceilings(DEVICE_PRESETS[0], "published"), [1.0])
    assert set(lines["kind"]) == {"published"}
    assert all(text.endswith("published") for text in lines["label"] if text)


def test_the_curve_is_the_model_and_stays_under_the_roof() -> None:
    points = roofline.curve_points(MODEL, UNDER, 400, 48)
    frame = roofline.curve_frame(points)
    assert frame["batch"].iloc[0] == 1
    assert frame["batch"].iloc[-1] == 48
    roof = frame["intensity"].map(lambda x: min(CEILINGS.peak_flops, CEILINGS.dram_bytes_per_s * x))
    assert (frame["flops_per_s"] <= roof * (1 + 1e-9)).all()
    assert frame["intensity"].is_monotonic_increasing
    slower = roofline.curve_frame(roofline.curve_points(MODEL, replace(UNDER, host_s=0.01), 400, 48))
    assert (slower["ms"] - frame["ms"]).tolist() == pytest.approx([10.0] * len(frame))


def test_a_dot_is_the_flops_and_bytes_of_its_step() -> None:
    history = busy_run(120).history()
    dots = roofline.dot_frame(history, roofline.WHOLE)
    by_step = {r.step: r for r in history}
    for row in dots.itertuples():
        record = by_step[row.step]
        assert row.intensity == pytest.approx(record.flops / record.moved_bytes)
        assert row.flops_per_s == pytest.approx(record.flops / record.duration_s)
    assert dots["age"].iloc[-1] == 0
    assert dots["age"].iloc[0] == roofline.OLDEST
    assert dots["step"].iloc[-1] == history[-1].step
    forward = roofline.dot_frame(history, roofline.FORWARD)
    assert (forward["flops_per_s"] >= dots["flops_per_s"]).all()


def test_dots_are_bounded_and_idle_steps_are_not_drawn() -> None:
    records = [decode_record(k, 4, 100) for k in range(700)]
    assert len(roofline.dot_frame(records, roofline.FORWARD)) == roofline.DOTS
    assert roofline.dot_frame([replace(records[0], flops=0.0)], roofline.FORWARD).empty
    one = roofline.dot_frame(records[:1], roofline.FORWARD)
    assert one["age"].tolist() == [0]


def test_the_steps_of_a_request_are_lit() -> None:
    records = [replace(decode_record(k, 4, 100), start_s=0.1 * k) for k in range(20)]
    assert "lit" not in roofline.dot_frame(records, roofline.FORWARD)
    life = records[5].start_s, records[9].start_s
    lit = roofline.dot_frame(records, roofline.FORWARD, life)
    assert lit["step"][lit["lit"]].tolist() == [5, 6, 7, 8, 9]
    assert roofline.modelled_dots(records, DEVICE_PRESETS[0], life)["lit"].sum() == 5


def test_on_another_device_a_step_costs_what_its_ceilings_say() -> None:
    device = DEVICE_PRESETS[0]
    records = [decode_record(1, 1, 64), decode_record(2, 48, 700)]
    dots = roofline.modelled_dots(records, device)
    for record, rate in zip(records, dots["flops_per_s"], strict=True):
        assert rate == pytest.approx(min(device.peak_flops, record.intensity * device.memory_bandwidth))


def test_host_time_counts_only_where_the_whole_step_is_drawn() -> None:
    records = [decode_record(k, 4, 100, host_s=0.002) for k in range(5)]
    assert roofline.host_time(records, roofline.WHOLE) == pytest.approx(0.002)
    assert roofline.host_time(records, roofline.FORWARD) == 0.0
    assert roofline.host_time([], roofline.WHOLE) == 0.0


def test_groups_cover_every_batch_once() -> None:
    for most in (1, 2, 3, 7, 8, 48, 64):
        covered = [b for low, high in marginal.group_bounds(most) for b in range(low, high + 1)]
        assert covered == list(range(1, most + 1))


def test_steps_that_obey_the_model_are_measured_as_predicted() -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    records = [decode_record(100 * b + k, b, 256) for b in sizes for k in range(marginal.LEAST_STEPS)]
    groups = marginal.decode_groups(records, float(INFO.kv_bytes_per_token), 32, roofline.FORWARD)
    assert sum(g.steps for g in groups) == len(records)
    assert all(g.context == pytest.approx(257) for g in groups)
    costs = marginal.marginal_costs(groups, MODEL, UNDER, 32, 256)
    whole = roofline_time(MODEL.cost_of_sums(decode_sums(MODEL, 1, 256)), UNDER.device).total_s
    assert costs[0].measured_s == pytest.approx(whole, rel=1e-9)
    for cost in costs:
        assert cost.measured_s is not None
        # a group's median time stands for its mean rows, which bends at the ridge: one part in five at the widest group
        assert cost.measured_s == pytest.approx(cost.predicted_s, rel=0.2)
    assert costs[0].predicted_s > 10 * costs[1].predicted_s


def test_without_steps_there_is_a_prediction_and_no_measurement() -> None:
    costs = marginal.marginal_costs([], MODEL, UNDER, 16, 256)
    assert [c.measured_s for c in costs] == [None] * 5
    total = sum(c.predicted_s * (high - low + 1) for c, (low, high) in zip(costs, marginal.group_bounds(16), strict=True))
    whole = model_time(MODEL, UNDER.device, MODEL.cost_of_sums(decode_sums(MODEL, 16, 255))).total_s
    assert total == pytest.approx(whole)
    assert set(marginal.marginal_frame(costs)["kind"]) == {"predicted"}


def test_prefill_and_padded_steps_do_not_count_as_decode() -> None:
    plain = [decode_record(k, 4, 100) for k in range(3)]
    mixed = [replace(r, prefill_tokens=8, prefill_requests=1) for r in plain]
    padded = [replace(r, padded_tokens=2) for r in plain]
    assert len(marginal.decode_groups(plain + mixed + padded, 1.0, 8, roofline.FORWARD)) == 1
    assert marginal.decode_groups(mixed + padded, 1.0, 8, roofline.FORWARD) == []
    assert marginal.decode_groups(plain[: marginal.LEAST_STEPS - 1], 1.0, 8, roofline.FORWARD) == []


def test_bytes_and_host_parts_add_up() -> None:
    history = busy_run(50).history()
    parts = step_cost.bytes_frame(history)[list(step_cost.BYTE_PARTS)].sum(axis=1)
    assert parts.tolist() == pytest.approx([r.moved_bytes for r in history])
    host = step_cost.host_frame(history)[list(step_cost.HOST_PARTS)].sum(axis=1)
    assert host.tolist() == pytest.approx([1e6 * r.host_s for r in history])


def test_weights_alone_grow_with_the_batch_and_kv_bends_the_line() -> None:
    curve = step_cost.intensity_by_batch(MODEL, 2000, 48, [])["curve"]
    alone = curve[curve["what"] == step_cost.WEIGHTS_ALONE]["intensity"].tolist()
    both = curve[curve["what"] == step_cost.WITH_KV]["intensity"].tolist()
    assert alone[-1] / alone[0] == pytest.approx(48, rel=0.02)
    assert both[-1] < alone[-1] / 4


def figures() -> list[tuple[str, dict[str, object], dict[str, pd.DataFrame]]]:
    """Every chart of the two pages with the data of a busy run, for each theme."""
    run = busy_run(300)
    shot, history = run.snapshot(), run.history()
    points = roofline.curve_points(MODEL, UNDER, 400, 48)
    dots = roofline.dot_frame(history, roofline.FORWARD)
    costs = marginal.marginal_costs([], MODEL, UNDER, 48, 400)
    ways = reservations(shot.running, occupancy(shot.blocks), 2048)
    out: list[tuple[str, dict[str, object], dict[str, pd.DataFrame]]] = []
    for t in THEMES:
        out += [
            ("roofline", roofline_spec.roofline_spec(t), roofline.roofline_data(dots, points, UNDER)),
            ("marginal", marginal.marginal_spec(t), {"": marginal.marginal_frame(costs)}),
            ("intensity", step_cost.by_step_spec(t, "intensity", "FLOP/B", t.text), {"": step_cost.intensity_frame(history)}),
            ("bytes", step_cost.stacked_spec(t, step_cost.BYTE_PARTS, "bytes", "~s"), {"": step_cost.bytes_frame(history)}),
            ("host", step_cost.stacked_spec(t, step_cost.HOST_PARTS, "µs", "whole"), {"": step_cost.host_frame(history)}),
            ("by batch", step_cost.intensity_by_batch_spec(t), step_cost.intensity_by_batch(MODEL, 400, 48, history)),
            ("pool", kv.pool_spec(t), {"": kv.pool_frame(history)}),
            ("fragmentation", kv.fragmentation_spec(t), {"": kv.fragmentation_frame(history, 16)}),
            ("contiguous", kv.reservation_spec(t), {"": kv.reservation_frame(ways)}),
            ("ages", kv.histogram_spec(t, "steps", by_state=True), {"": kv.age_frame(shot.blocks)}),
            ("held", kv.histogram_spec(t, "time held", by_state=False), {"": kv.holding_frame([0.1, 3.0, 70.0])}),
        ]
    return out


def with_data(spec: dict[str, object], data: dict[str, pd.DataFrame]) -> dict[str, object]:
    rows = {name: json.loads(frame.to_json(orient="records")) for name, frame in data.items()}
    own = {"data": {"values": rows.pop("")}} if "" in rows else {}
    return {**spec, "width": 600, **own, **({"datasets": rows} if rows else {})}


@pytest.mark.parametrize(("name", "spec", "data"), figures(), ids=lambda v: v if isinstance(v, str) else "")
def test_every_figure_compiles_and_draws_its_marks(name: str, spec: dict[str, object], data: dict[str, pd.DataFrame]) -> None:
    svg = vlc.vegalite_to_svg(json.dumps(with_data(spec, data)), vl_version="6.1")
    assert "NaN" not in svg, name
    assert svg.count("<path") > 10 or svg.count("<text") > 10, name


def test_specifications_do_not_change_with_the_run() -> None:
    """The browser embeds a chart anew when its specification changes, and zoom is lost."""
    first = {(name, k): json.dumps(spec, sort_keys=True) for k, (name, spec, _) in enumerate(figures())}
    again = {(name, k): json.dumps(spec, sort_keys=True) for k, (name, spec, _) in enumerate(figures())}
    assert first == again
    assert roofline_spec.roofline_spec(style.DARK) is roofline_spec.roofline_spec(style.DARK)
    assert not any("datasets" in spec or "values" in json.dumps(spec.get("data", "")) for _, spec, _ in figures())


def test_every_axis_has_a_title() -> None:
    def axes(node: object) -> list[tuple[str, dict[str, object]]]:
        if isinstance(node, list):
            return [a for item in node for a in axes(item)]
        if not isinstance(node, dict):
            return []
        here = [(k, v) for k, v in node.get("encoding", {}).items() if k in ("x", "y") and isinstance(v, dict) and "axis" in v]
        return here + [a for item in node.values() for a in axes(item)]

    for name, spec, _ in figures():
        for channel, definition in axes(spec):
            assert "title" in definition["axis"], (name, channel)  # type: ignore[operator]


def test_arrow_tables_are_narrow_and_keep_text_and_gaps() -> None:
    frame = pd.DataFrame(
        {
            "step": [-1, 2],
            "ms": [0.5, float("nan")],
            "what": ["a", None],
            "logical": pd.array([3, None], dtype="Int64"),
            "few": [0, 255],
            "more": [256, 65_535],
        }
    )
    got = table(frame)
    assert [str(f.type) for f in got.schema] == ["int32", "float", "string", "int64", "uint8", "uint16"]
    assert got.column("what").to_pylist() == ["a", None]
    assert got.column("logical").to_pylist() == [3, None]
    assert (got.column("few").to_pylist(), got.column("more").to_pylist()) == ([0, 255], [256, 65_535])
    with pytest.raises(OverflowError, match="column step"):
        table(pd.DataFrame({"step": [2**31]}))
