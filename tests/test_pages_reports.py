"""The Reports page, replays on the pages, and the save-as control of figures."""

from __future__ import annotations

import base64
import io
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from core import telemetry
from core.bundle import RunBundle, bundle_bytes, read_bundle, write_bundle
from core.charts import batch_timeline, roofline_spec, style
from core.errors import BundleError, ControlRefused, ExportError
from core.lengths import LengthSpec
from core.live_bundle import bundle_of
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.repeat import repeat
from core.replay_view import ReplayView
from core.report.caption import Caption, RunFacts
from core.report.file_kinds import FORMATS
from core.report.job import ExportJob
from core.run_record import RunRecorder
from core.snapshot import RooflineCeilings
from pages.parts import engine_access, linked, save_as, ticker
from pages.parts.paired import Pair, pair_figure
from tests.bundle_cases import simulated_bundle
from tests.fake_live import FakeLive
from tests.live_cases import live_engine, wait_until

ROOT = Path(__file__).resolve().parents[1]
HARNESS = """
import streamlit as st
from pathlib import Path

files = [f for f in sorted((Path({root!r}) / "pages").glob("*.py")) if f.stem != "main"]
st.navigation([st.Page(file, default=file.stem == {first!r}) for file in files]).run()
"""


@pytest.fixture
def fake():
    live = FakeLive()
    engine_access.install(live)
    yield live
    engine_access.install(None)


@pytest.fixture(scope="module")
def bundle() -> RunBundle:
    return simulated_bundle()


def page(name: str, view: ReplayView | None = None) -> AppTest:
    at = AppTest.from_string(HARNESS.format(root=str(ROOT), first=name), default_timeout=120)
    if view is not None:
        at.session_state["replay_view"] = view
    return at.run()


def html_of(at: AppTest) -> str:
    return "\n".join(node.proto.body for node in at.get("html"))


def button(at: AppTest, name: str) -> Any:
    return next(b for b in at.button if b.key and b.key.startswith(f"replay_{name}"))


# -- replays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["home", "live", "kv_blocks", "roofline", "latency", "story", "scheduler", "reports"])
def test_pages_show_a_replay_and_say_so(fake: FakeLive, bundle: RunBundle, name: str) -> None:
    view = ReplayView.of(bundle)
    view.seek(40)
    at = page(name, view)
    assert not at.exception
    words = html_of(at)
    assert "<b>REPLAY</b> small, recorded 2026-01-02T03:04:05Z, predicted then." in words
    assert "measured" not in words.replace("recorded", "").replace("is not measured", "").replace("are not measured", "")
    assert not fake.commands


def test_the_bar_moves_in_time(fake: FakeLive, bundle: RunBundle) -> None:
    view = ReplayView.of(bundle)
    at = page("live", view)
    assert "Step 1 of 72" in html_of(at)
    button(at, "next").click().run()
    assert view.step == 2
    button(at, "last").click().run()
    assert view.step == 72
    button(at, "back").click().run()
    assert view.step == 71
    at.slider[0].set_value(30).run()
    assert view.step == 30
    button(at, "play").click().run()
    assert view.step == 31
    at.run()
    assert view.step == 32
    button(at, "pause").click().run()
    at.run()
    assert view.step == 32
    next(b for b in at.button if b.key == "replay_close").click().run()
    assert "REPLAY" not in html_of(at)
    assert not at.exception


def test_commands_are_refused_in_a_replay(bundle: RunBundle) -> None:
    access = engine_access.Access(ReplayView.of(bundle), "s")
    assert access.is_replay
    assert not access.is_controller
    for answer in (access.pause(), access.reset(), access.set_scheduler(max_num_seqs=3), access.acquire()):
        assert not answer.ok
        assert "this is a replay" in answer.message
    assert access.bundle_source()() is access._live.bundle


OPEN = """
import streamlit as st
from pages.parts import replay
st.text(replay.open_bundle({content!r}, "given.zip") or "open at " + str(st.session_state["replay_at"]))
"""


def test_a_bundle_is_opened_or_the_reason_is_said(bundle: RunBundle) -> None:
    raw = bundle_bytes(bundle)
    at = AppTest.from_string(OPEN.format(content=raw), default_timeout=120).run()
    assert at.text[0].value == "open at 1"
    at = AppTest.from_string(OPEN.format(content=raw[:5000]), default_timeout=120).run()
    assert "given.zip is damaged" in at.text[0].value


@pytest.mark.parametrize(
    ("name", "keys"),
    [("live", {"sets", "live_composition", "live_gantt", "live_blocks"}), ("kv_blocks", {"kv_map", "kv_pool"})],
)
def test_canvases_are_saved_as_well(
    name: str, keys: set[str], fake: FakeLive, bundle: RunBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, tuple[save_as.Make, Caption]] = {}

    def keep(key: str, make: save_as.Make, *, title: str, span: str, how: str = "", **_: Any) -> None:
        seen[key] = (make, Caption(title, span, CAPTION.facts, how))

    monkeypatch.setattr(save_as, "control", keep)
    view = ReplayView.of(bundle)
    view.seek(40)
    assert not page(name, view).exception
    assert keys <= set(seen)
    for key in keys:
        make, caption = seen[key]
        assert caption.how
        assert "Drag" not in caption.how, "how to use a figure on the screen is no matter for paper"
        drawn = save_as.content_of("svg", *make(), caption, style.DARK, 8.5).decode()
        assert caption.title.split()[0] in drawn
        assert len(pd.read_csv(io.BytesIO(save_as.content_of("csv", *make(), caption, style.DARK, 8.5))))


def test_the_small_roofline_is_saved_once_the_ceilings_are_measured(bundle: RunBundle) -> None:
    view = ReplayView.of(bundle)
    view.seek(40)
    picture = view.latest()
    with pytest.raises(ExportError, match="not measured yet"):
        linked.steps_figure(replace(picture, ceilings=None), bundle.steps, style.DARK)
    known = replace(picture, ceilings=RooflineCeilings("this machine", 1e11, 1e10, None, 1 << 30, "float32"))
    spec, data = linked.steps_figure(known, bundle.steps, style.DARK)
    rows = pd.read_csv(io.BytesIO(save_as.content_of("csv", spec, data, CAPTION, style.DARK, 8.5)))
    assert (rows["set"] == "dots").sum() == min(len(bundle.steps), linked.MAX_DOTS)


def test_paired_bars_are_saved_with_their_values_in_words() -> None:
    pairs = [Pair("TTFT p50", "s", 0.2, 0.4), Pair("Output", "tok/s", 412.0, None), Pair("KV use", "%", 0.5, 0.25)]
    spec, data = pair_figure(pairs, ("as live", "what-if"), (False, True), style.DARK)
    rows = pd.read_csv(io.BytesIO(save_as.content_of("csv", spec, data, CAPTION, style.DARK, 8.5)))
    assert rows[["figure", "run", "value", "share"]].values.tolist() == [
        ["TTFT p50", "as live", 0.2, 0.5], ["TTFT p50", "what-if", 0.4, 1.0], ["Output", "as live", 412.0, 1.0],
        ["KV use", "as live", 0.5, 0.5], ["KV use", "what-if", 0.25, 0.25],
    ]  # fmt: skip
    drawn = save_as.content_of("svg", spec, data, CAPTION, style.DARK, 8.5).decode()
    assert all(word in drawn.replace("\u202f", " ") for word in ("TTFT p50", "as live", "what-if", "412 tok/s", "25.0 %"))


# -- taking a run away -----------------------------------------------------------------------------------------


def test_the_page_offers_five_files_and_says_why_there_are_none(fake: FakeLive) -> None:
    at = page("reports")
    assert not at.exception
    assert len(at.get("download_button")) == 5
    make = next(b for b in at.button if b.key == "make_report")
    make.click().run()
    job: ExportJob = at.session_state["export_job"]
    assert job.join(240)
    at.run()
    assert any("records nothing" in error.value for error in at.error)


def test_a_file_can_be_saved_and_the_run_replayed_as_soon_as_it_is_made(fake: FakeLive, bundle: RunBundle) -> None:
    at = page("reports")

    def saves() -> list[bool]:
        return [not b.proto.disabled for b in at.get("download_button")]

    def again() -> Any:
        return next(b for b in at.button if b.key == "replay_this")

    assert saves() == [False] * 5
    assert again().disabled
    job = ExportJob(lambda: bundle, "x")
    job.bundle = bundle
    write_bundle(bundle, job._folder / "x.bundle.zip")
    at.session_state["export_job"] = job
    at.run()
    assert saves() == [True, False, False, False, False]
    again().click().run()
    assert "<b>REPLAY</b> small" in html_of(at)


def test_the_server_takes_bundles_as_large_as_the_page_says() -> None:
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    said = re.search(r"^UPLOAD_MB = (\d+)$", (ROOT / "pages" / "reports.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert said is not None
    assert settings["server"]["maxUploadSize"] == int(said[1]), "above its own limit the server refuses whatever a page allows"


def test_the_files_do_not_tick(fake: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[str] = []
    live = ticker.live

    def told(question: str, render: Any, **more: Any) -> None:
        inside.append("begin")
        live(question, render, **more)
        inside.append("end")

    def button(label: str, *_: Any, **__: Any) -> bool:
        inside.append(label)
        return False

    monkeypatch.setattr(ticker, "live", told)
    monkeypatch.setattr("streamlit.download_button", button)
    assert not page("reports").exception
    assert inside[:3] == ["begin", "end", "Run bundle"], "a press on a button that ticks may be lost"


def test_the_buttons_of_the_bar_have_names(fake: FakeLive, bundle: RunBundle) -> None:
    at = page("live", ReplayView.of(bundle))
    names = [b.label for b in at.button if b.key and b.key.startswith("replay_")]
    assert names == ["First step", "One step back", "Play", "One step on", "Last step", "Back to the live engine"]


def test_an_export_makes_its_files_in_a_process_of_its_own(bundle: RunBundle) -> None:
    job = ExportJob(lambda: bundle, "x", ("--figures", "sets", "--formats", "csv", "--no-report"))
    job.start()
    assert job.join(240)
    assert job.error == ""
    assert read_bundle(job.files()[".bundle.zip"]) == bundle
    assert (job.files()[".bundle.zip"].parent / "x.figures" / "sets.csv").exists()
    folder = job._folder
    job._run()  # again over its own files
    del job
    assert not folder.exists()


def test_an_export_that_fails_keeps_what_is_there_and_says_why(bundle: RunBundle) -> None:
    job = ExportJob(lambda: bundle, "x", ("--figures", "nonsense", "--no-report"))
    job._run()
    assert list(job.files()) == [".bundle.zip"]
    assert "there is no figure 'nonsense'" in job.error

    def refuse() -> RunBundle:
        raise BundleError("no")

    job = ExportJob(refuse, "x")
    job._run()
    assert (job.error, job.files()) == ("no", {})


def test_the_bundle_of_a_running_engine_repeats_to_the_identical_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "KEPT_REQUESTS", 5)
    load = LoadSpec(
        process=ArrivalProcess.CLOSED_LOOP, users=4, think_time_s=0.0, prompt_kind=PromptKind.RANDOM, ignore_eos=True,
        prompt_tokens=LengthSpec.fixed(9), output_tokens=LengthSpec.fixed(6), slo_ttft_s=1.0,
    )  # fmt: skip
    with live_engine(load=load, knobs={"recorder": RunRecorder()}) as live:
        wait_until(lambda: live.latest().step > 40)
        taken = bundle_of(live)
        wait_until(lambda: live.latest().step > taken.steps[-1].step)
    again = read_bundle(bundle_bytes(taken))
    assert repeat(again).identical
    assert "the engine ran on" in again.manifest.note
    counts = re.search(
        r"of (\d+) requests that had ended the records of the newest (\d+) are kept, (\d+) were", again.manifest.note
    )
    assert counts is not None, "a reader must hear of dropped records"
    ended, kept, dropped = map(int, counts.groups())
    assert kept <= 5 < ended
    assert kept + dropped == ended
    assert again.steps[-1].step <= max(o.step for o in again.record.outputs())
    assert bundle_of(ReplayView.of(again)) is again
    with pytest.raises(ControlRefused):
        bundle_of(FakeLive())


# -- saving a figure -------------------------------------------------------------------------------------------

CAPTION = Caption("Title", "steps 1 to 72", RunFacts("m", "bf16", "cpu", "load", 0, "measured"))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_figure_of_a_page_is_saved_in_every_format(bundle: RunBundle, fmt: str) -> None:
    spec, data = batch_timeline.composition_spec(style.DARK), batch_timeline.composition_frame(bundle.steps)
    content = save_as.content_of(fmt, spec, data, CAPTION, style.DARK, 8.5)
    starts = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF", "csv": b'"step"', "parquet": b"PAR1"}
    assert content.startswith(starts[fmt.partition("@")[0]])
    if fmt == "csv":
        assert pd.read_csv(io.BytesIO(content))["decode"].tolist() == [r.decode_tokens for r in bundle.steps]


def test_data_sets_inside_a_specification_are_saved_too() -> None:
    spec = {
        **roofline_spec.roofline_spec(style.LIGHT),
        "datasets": {"dots": pa.table({"step": [1]}), "curve": pa.table({"batch": [2]})},
    }
    rows = pd.read_csv(io.BytesIO(save_as.content_of("csv", spec, None, CAPTION, style.LIGHT, 8.5)))
    assert rows["set"].tolist() == ["dots", "curve"]
    inline = {"mark": "point", "data": {"values": [{"a": 1}, {"a": 2}]}}
    assert save_as.content_of("csv", inline, None, CAPTION, style.LIGHT, 8.5) == b'"a","set"\n1,"data"\n2,"data"\n'


def test_the_element_gets_the_file_or_the_reason(monkeypatch: pytest.MonkeyPatch, bundle: RunBundle) -> None:
    spec, data = batch_timeline.batch_spec(style.DARK), batch_timeline.batch_frame(bundle.steps)

    def make(**asked: Any) -> dict[str, Any]:
        def content_as(fmt: str, width_cm: float) -> bytes:
            return save_as.content_of(fmt, spec, data, CAPTION, style.DARK, width_cm)

        return save_as._make("sets", {"id": 7, "format": 0, "width": 0} | asked, save_as.FORMATS, content_as)

    made = make(width=1)
    assert (made["id"], made["name"], made["mime"]) == ("7", "sets.png", "image/png")
    assert Image.open(io.BytesIO(base64.b64decode(made["content"]))).width == pytest.approx(17.8 / 2.54 * 96, abs=1)
    for asked in ({"format": 99}, {"format": "svg"}, {"width": -1}):
        assert make(**asked)["error"] == "there is no such format or width"

    def fail(*_: Any) -> bytes:
        raise ExportError("cannot be drawn")

    monkeypatch.setattr(save_as, "content_of", fail)
    assert make()["error"] == "cannot be drawn"
    assert len(save_as.LABELS) == len(FORMATS)
