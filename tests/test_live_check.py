"""The live engine against its own prediction: which window counts, what is simulated for it, and at which pace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.control import AuditEntry
from core.errors import ConfigError
from core.lengths import LengthKind
from core.live_check import LiveRun, compare_live, kernels_since, live_run, unchanged_since
from core.load_spec import ArrivalProcess, LoadSpec
from core.step_residuals import like_steps_differ
from core.telemetry import RECENT_REQUESTS
from core.whatif_base import live_base, live_cost
from tests.fake_snapshots import busy_run

RUN = busy_run(700)
PICTURE = RUN.snapshot()
BASE = live_base(PICTURE, RUN.history(), 16e9).whatif
LOOP = LoadSpec(process=ArrivalProcess.CLOSED_LOOP, users=5, think_time_s=0.5)


def test_the_live_requests_again_are_compared_token_for_token() -> None:
    run = live_run(PICTURE, RUN.history(), 0.0, LoadSpec(rate_per_s=3.0))
    what = run.what(BASE)
    assert what.load is None
    assert run.warm_up_s == 0.0
    result = what.run(max_time_s=run.span_s)
    pairs = {p.name: p for p in compare_live(run, result)}
    tokens = sum(r.output_tokens for r in run.ended) + sum(v.output_tokens for v in run.live)
    assert pairs["output_tokens_per_s"].measured == pytest.approx(tokens / run.span_s)
    assert result.submitted == len(run.ended) + len(run.live)
    assert result.duration_s == pytest.approx(run.span_s, rel=0.05)


def test_a_closed_loop_is_compared_as_a_closed_loop_that_was_running() -> None:
    begun = live_run(PICTURE, RUN.history(), 0.0, LOOP).records
    first = live_run(PICTURE, [replace(r, step=i + 1) for i, r in enumerate(begun)], 0.0, LOOP)
    assert (first.was_running, first.warm_up_s) == (False, 0.0), "the window begins with the load"
    joining = replace(LOOP, ramp_s=7.0)
    assert replace(first, load=joining).what(BASE).load.ramp_s == 7.0, "its users joined within the window"
    run = live_run(PICTURE, RUN.history(), PICTURE.time_s / 4, joining)
    what = run.what(BASE)
    assert what.load is not None
    assert what.load.ramp_s == 0.0, "they are all there"
    assert (what.load.users, what.load.is_closed, what.load.output_tokens.kind) == (5, True, LengthKind.EMPIRICAL)
    assert 0 < run.warm_up_s <= run.span_s
    result = what.run(max_time_s=run.span_s, warm_up_s=run.warm_up_s)
    assert result.duration_s == pytest.approx(run.span_s, rel=0.05)  # it did not run dry
    assert result.mean_batch <= 5
    measured = {p.name: p.measured for p in compare_live(run, result)}
    assert measured["output_tokens_per_s"] == pytest.approx(sum(r.output_tokens for r in run.records) / run.span_s)


def test_requests_under_other_settings_do_not_count() -> None:
    changed = max(r.arrival_s for r in PICTURE.recent_requests)
    with pytest.raises(ConfigError, match="ended under the present settings"):
        live_run(PICTURE, RUN.history(), changed)
    other = replace(RUN.history()[-1], max_num_seqs=3, start_s=changed)
    with pytest.raises(ConfigError, match="ended"):
        live_run(PICTURE, [*RUN.history(), other])


def test_a_window_begins_where_every_request_is_remembered() -> None:
    """Of requests that came before the oldest remembered end, those that ended earlier still are forgotten."""
    one = PICTURE.recent_requests[0]
    recent = tuple(
        replace(one, request_id=f"r{i}", arrival_s=float(i), finished_s=i + (90.0 if i == 0 else 5.0), e2e_s=5.0)
        for i in range(RECENT_REQUESTS)
    )
    picture = replace(PICTURE, recent_requests=recent, time_s=300.0, running=(), waiting=(), preempted=())
    run = live_run(picture, [], 0.0, LOOP)
    assert run.start_s == 6.0  # the end of r1, the oldest one that is remembered
    assert [r.request_id for r in run.ended][:1] == ["r6"]
    assert {"r0", "r1", "r5"} <= {r.request_id for r in run.loop_ended}
    few = live_run(replace(picture, recent_requests=recent[:50]), [], 0.0, LOOP)
    assert (few.start_s, few.ended[0].request_id) == (0.0, "r0")


def test_what_changed_the_engine_begins_the_window_anew() -> None:
    info = PICTURE.info
    assert info is not None
    early = replace(info, kernels="being compiled")
    pictures = [
        replace(PICTURE, time_s=t, wall_time_s=1000.0 + w, info=early if t < 20 else info)
        for t, w in ((5.0, 5.0), (15.0, 15.0), (25.0, 25.0), (30.0, 90.0), (40.0, 100.0))
    ]  # a pause of 55 s, in which the engine's time stands
    latest = replace(PICTURE, time_s=50.0, wall_time_s=1110.0)
    assert kernels_since(latest, pictures) == 25.0
    assert unchanged_since(latest, pictures, []) == 25.0
    assert kernels_since(latest, pictures[2:]) == 0.0
    entry = AuditEntry(1089.0, "me", "configure")
    assert unchanged_since(latest, pictures, [entry]) == 30.0
    assert unchanged_since(latest, pictures, [replace(entry, time_s=1095.0, command="speed"), entry]) == 40.0
    for other in (replace(entry, time_s=1105.0, outcome="refused"), replace(entry, time_s=1105.0, command="pause")):
        assert unchanged_since(latest, pictures, [other, entry]) == 30.0


def test_a_slow_minute_is_simulated_as_slow_as_it_was() -> None:
    run = live_run(PICTURE, RUN.history(), 0.0, LOOP)
    slow = replace(run, records=tuple(replace(r, duration_s=3 * r.duration_s, forward_s=3 * r.forward_s) for r in run.records))

    def factor(of: LiveRun) -> float:
        law = of.what(BASE).coefficients
        assert law is not None
        return law.factor

    assert factor(slow) == pytest.approx(3 * factor(run), rel=0.01)
    at = len(run.records) // 2
    stuck = replace(run.records[at], duration_s=run.records[at].duration_s + 9.0, forward_s=run.records[at].forward_s + 9.0)
    held = replace(run, records=(*run.records[:at], stuck, *run.records[at + 1 :]))
    assert held.held_s(BASE) == pytest.approx(run.held_s(BASE) + 9.0, rel=0.05)
    assert factor(held) == pytest.approx(factor(run), rel=0.02), "one surprise is no pace"
    few = replace(run, records=run.records[:3])
    assert BASE.coefficients is not None
    assert factor(few) == pytest.approx(BASE.coefficients.factor)


def test_like_steps_say_what_no_prediction_can_know() -> None:
    assert PICTURE.info is not None
    cost = live_cost(PICTURE.info)
    seen = live_run(PICTURE, RUN.history()).observations(cost)
    decode = next(o for o in seen if o.kind == "decode")
    steady = [replace(decode, step=i, forward_s=0.01, host_s=0.0) for i in range(40)]
    assert like_steps_differ(steady) == 0.0
    uneven = [replace(o, forward_s=0.01 if o.step % 2 else 0.013) for o in steady]
    assert like_steps_differ(uneven) == pytest.approx(0.3)
    assert like_steps_differ([replace(o, step=2 * o.step) for o in uneven]) is None  # no neighbours
