"""Axes as text, a sweep in the background, and the page: what is best, what a plane shows, what cannot run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

from core.charts import sweep as planes
from core.charts.style import DARK
from core.config import BatchPolicy, SchedulerConfig
from core.devices import DEVICES
from core.errors import ConfigError
from core.lengths import LengthSpec
from core.load_spec import LoadSpec, PromptKind
from core.models_catalog import model_named
from core.step_timer import roofline_coefficients
from core.sweep import Axis, Goal, SweepSpec, pareto_front
from core.sweep_job import SweepJob
from core.sweep_text import parse_axes, parse_prices
from core.whatif import WhatIf
from pages.parts import whatif_run
from tests.fake_live import FakeLive
from tests.fake_snapshots import starting_snapshot

PAGE = str(Path(__file__).resolve().parents[1] / "pages" / "sweep.py")
LOAD = LoadSpec(rate_per_s=40.0, num_requests=16,
                prompt_tokens=LengthSpec.uniform(20, 90), output_tokens=LengthSpec.uniform(5, 20),
                prompt_kind=PromptKind.RANDOM, slo_ttft_s=1.0, slo_itl_s=0.5)  # fmt: skip
BASE = WhatIf(model_named("Qwen3 0.6B"), DEVICES["L4"], SchedulerConfig(max_num_seqs=8), load=LOAD, max_model_len=1024)


def test_axes_are_read_line_by_line() -> None:
    axes = parse_axes(
        "max_num_seqs = 2 to 32 in 5  # doubling\n\nbatch_policy = chunked, fixed\nenable_prefix_caching = on, off\n"
        "rate_per_s = 0.5, 8\ndevice = L4, H100 SXM",
        BASE,
        {"H100 SXM": replace(DEVICES["H100 SXM"], price_per_hour=2.0)},
    )
    assert [a.values for a in axes[:4]] == [(2, 4, 8, 16, 32), ("chunked", "fixed"), (True, False), (0.5, 8)]
    assert axes[4].labels == ("L4", "H100 SXM")
    assert axes[4].values[1].price_per_hour == 2.0
    assert BASE.with_knob("batch_policy", "fixed").scheduler.batch_policy is BatchPolicy.FIXED
    assert parse_prices("H100 SXM = 2.5\n") == {"H100 SXM": 2.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no axis"),
        ("max_num_seqs", "line 1: 'max_num_seqs' is no axis"),
        ("max_num_seqs = 4\nnonsense = 3", "line 2: unknown knob 'nonsense'"),
        ("max_num_seqs = 0", "line 1: max_num_seqs is 0"),
        ("rate_per_s = 8 to 2 in 3", "line 1: '8 to 2 in 3' is no span"),
        ("device = H900", "line 1: device 'H900' is not known"),
        ("max_num_seqs = 1 to 9 in 900", "asks for 900 values"),
    ],
)
def test_a_wrong_axis_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parse_axes(text, BASE)


def test_a_fitted_law_does_not_travel_to_another_device_and_stays_with_another_model() -> None:
    law = roofline_coefficients(DEVICES["L4"], 2.0, 1e9)
    here = replace(BASE, coefficients=law, num_blocks=300)
    assert here.with_knob("device", here.device) is here
    there = here.with_knob("device", DEVICES["H100 SXM"])
    assert (there.coefficients, there.num_blocks) == (None, None)
    assert there.setup().cache.num_blocks > 300
    other = here.with_knob("model", model_named("Qwen3 1.7B"))
    assert (other.coefficients, other.num_blocks) == (law, 300)


def test_a_job_collects_rows_and_stops_when_asked() -> None:
    spec = SweepSpec(BASE, (Axis("max_num_seqs", (2, 4, 16)), Axis("max_num_batched_tokens", (64, 0))))
    job = SweepJob(spec, n_jobs=1)
    job.start()
    assert job.join(240)
    assert job.state.phase == "done"
    assert len(job.state.rows) == 6
    assert sum("max_num_batched_tokens is 0" in r.problem for r in job.state.rows) == 3
    stopped = SweepJob(spec, n_jobs=1)
    stopped.cancel()
    stopped.start()
    assert stopped.join(240)
    assert stopped.state.phase == "cancelled"
    lost = SweepJob(spec, cluster="spark:nowhere")
    lost.start()
    assert lost.join(240)
    assert "not understood" in lost.state.message
    ran = [r for r in job.state.rows if not r.problem]
    front = pareto_front(ran, (Goal("output_tokens_per_s"), Goal("ttft_p95", maximise=False)))
    frame = planes.plane_frame(job.state.rows, "output_tokens_per_s", "ttft_p95", front, ran[0], "device")
    assert len(frame) == 3
    assert frame.front.sum() == len(front)
    assert frame.best.sum() == 1
    json.dumps(planes.plane_spec(DARK, "x", "y", "device"))
    by_seats = planes.plane_frame(job.state.rows, "output_tokens_per_s", "ttft_p95", front, None, "max_num_seqs")
    in_order = by_seats.drop_duplicates("group").sort_values("rank")["group"].tolist()
    assert in_order == sorted(in_order, key=int)
    assert set(planes.rows_frame(job.state.rows, (("ttft_p95", "TTFT p95", "s"),)).columns) >= {
        "max_num_seqs",
        "TTFT p95",
        "problem",
    }


def test_the_page_runs_a_sweep_and_names_the_best(live: FakeLive) -> None:
    at = AppTest.from_file(PAGE, default_timeout=120)
    at.query_params["s_axes"] = "max_num_seqs = 16, 48"
    at.query_params["w_requests"] = "20"
    at.query_params["s_ttft"] = "100000.0"
    at.query_params["s_itl"] = "1000.0"
    at.run()
    assert not at.exception, [e.value for e in at.exception]
    number = next(n for n in at.number_input if n.key == "s_jobs")
    number.set_value(1).run()
    next(b for b in at.button if b.label == "Run the sweep").click().run()
    job = at.session_state["sweep_job"]
    assert job.join(240)
    at.run()
    assert not at.exception, [e.value for e in at.exception]
    shown = "\n".join(node.proto.body for node in at.get("html"))
    assert "Best under the SLO: max_num_seqs" in shown
    area = next(t for t in at.text_area if t.key == "s_axes")
    area.set_value("max_num_seqs = nonsense").run()
    assert any("line 1" in e.value for e in at.error)


def test_the_link_of_the_best_point_gives_its_figures_on_the_what_if_page(
    live: FakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif_run, "MORE_S", 60.0)
    monkeypatch.setattr(whatif_run.wait, "__defaults__", (60.0,))
    at = AppTest.from_file(PAGE, default_timeout=120)
    at.query_params["s_axes"] = "device = L4\nnum_blocks = 640\nmax_num_seqs = 3\nmax_waiting = 500"
    at.query_params["w_requests"] = "30"
    at.query_params["w_output_tokens"] = "200"
    at.query_params["s_ttft"] = "100000.0"
    at.query_params["s_itl"] = "1000.0"
    at.run()
    next(t for t in at.text_area if t.key == "s_prices").set_value("L4 = 0.75").run()
    next(n for n in at.number_input if n.key == "s_jobs").set_value(1).run()
    next(b for b in at.button if b.label == "Run the sweep").click().run()
    job = at.session_state["sweep_job"]
    assert job.join(60)
    at.run()
    assert not at.exception, [e.value for e in at.exception]
    (row,) = job.state.rows
    assert row.problem == ""
    (link,) = at.get("link_button")
    assert "no field for max_waiting" in link.proto.help
    opened = AppTest.from_file(str(Path(PAGE).with_name("what_if.py")), default_timeout=120)
    for name, (value,) in parse_qs(urlsplit(link.proto.url).query).items():
        opened.query_params[name] = value
    opened.run()
    assert not opened.exception, [e.value for e in opened.exception]
    view = opened.session_state["whatif_drawn"]
    target = view.target
    assert (target.device.name, target.num_blocks, target.scheduler.max_num_seqs) == ("L4", 640, 3)
    assert (target.device.price_per_hour, target.load.num_requests) == (0.75, 30)
    for name in ("output_tokens_per_s", "ttft_p95", "itl_p95"):
        assert view.new.figure(name) == pytest.approx(row.figure(name), rel=1e-6)


def test_a_published_device_waits_for_the_host_of_this_machine(live: FakeLive) -> None:
    """As on the What-if page; without it a small model on a large device would answer in microseconds."""
    at = AppTest.from_file(PAGE, default_timeout=120)
    at.query_params["s_axes"] = "device = this machine, H100 SXM"
    at.query_params["w_requests"] = "20"
    at.run()
    next(b for b in at.button if b.label == "Run the sweep").click().run()
    job = at.session_state["sweep_job"]
    assert job.join(240)
    here, there = job.state.spec.axes[0].values
    host_s = at.session_state["whatif_known"].base.host_s
    assert there.step_overhead_s == host_s > 0
    assert here.name == "this machine"
    assert job.state.rows[1].figure("ttft_p50") > host_s


def test_while_the_model_loads_the_page_says_so(live: FakeLive) -> None:
    live.picture = starting_snapshot()
    live.run.records.clear()
    at = AppTest.from_file(PAGE, default_timeout=120).run()
    assert any("still loading" in t.value for t in at.text)
