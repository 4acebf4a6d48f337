"""Home, Live and Prompt on fake snapshots: what is shown, how large a tick is, what a command does."""

import json
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core.charts import batch_timeline, gantt, seats, style
from core.config import BatchPolicy, SchedulerConfig
from core.control import LOCAL
from core.load_spec import LoadSpec
from core.outputs import BoundBy
from core.streams import StreamPiece
from pages.parts import answers, element, engine_access, frame, policies, request_sets, settings, status_bar, tiles
from tests.fake_live import FakeLive
from tests.fake_snapshots import FakeRun, busy_run, heavy_run, idle_snapshot, starting_snapshot

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("home", "live", "prompt")
HARNESS = """
import streamlit as st
from pathlib import Path

files = [Path({root!r}) / "pages" / f"{{name}}.py" for name in ("home", "tour", "live", "kv_blocks", "roofline", "prompt")]
st.navigation([st.Page(file, default=file.stem == {first!r}) for file in files]).run()
"""


@pytest.fixture
def live():
    fake = FakeLive()
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def open_page(name):
    at = AppTest.from_string(HARNESS.format(root=str(ROOT), first=name), default_timeout=120).run()
    assert not at.exception
    return at


def html_of(at):
    return "\n".join(node.proto.body for node in at.get("html"))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scene", ["busy", "starting", "idle"])
def test_pages_draw_in_every_state(live, page, scene):
    live.picture = {"busy": live.picture, "starting": starting_snapshot(), "idle": idle_snapshot()}[scene]
    if scene != "busy":
        live.run.records.clear()
    at = open_page(page)
    assert "bs-heading" in html_of(at)
    words = " ".join(node.value for node in (*at.text, *at.info))
    if scene == "starting":
        assert "reading weights" in words.replace("\\", "")
    if scene == "idle" and page != "prompt":
        assert "was submitted" in words
        assert any("load" in button.label for button in at.button)


def test_the_whole_app_runs_and_offers_the_settings(live):
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=120).run()
    assert not at.exception
    labels = {widget.label for widget in (*at.number_input, *at.selectbox, *at.toggle)}
    assert {"max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "Arrivals"} <= labels


def knob(at, label):
    return next(widget for widget in (*at.number_input, *at.selectbox, *at.toggle) if widget.label == label)


def test_a_knob_takes_effect_and_a_bad_value_is_refused_in_the_words_of_the_core(live):
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=120).run()
    knob(at, "max_num_seqs").set_value(8).run()
    assert live.run.scheduler == SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256)
    knob(at, "max_num_seqs").set_value(0).run()
    assert live.run.scheduler.max_num_seqs == 8
    assert any("max\\_num\\_seqs is 0; give a whole number from 1" in e.value for e in at.error)


def test_a_widget_that_is_gone_sets_nothing_again_or_back(live, monkeypatch):
    """A browser may report a widget once more that was drawn before somebody changed the value, or before the start."""
    config = live.latest().config.scheduler
    was = config.max_num_seqs
    for drawn, reported, in_force in ((was, was, was), (was + 1, was + 9, was), (was + 1, was + 1, was)):
        assert in_force == live.latest().config.scheduler.max_num_seqs
        monkeypatch.setattr(settings.st, "session_state", {"knob": reported})
        settings._change("scheduler", "max_num_seqs", "knob", drawn)
    live.load = None
    monkeypatch.setattr(settings.st, "session_state", {"on": False, "users": 5, "off": True, "speed": "2 steps/s", "length": 99})
    settings._toggle_load("on", False)  # drawn while nothing ran
    settings._change("load", "users", "users", 64)  # there is no load any more
    live.load = LoadSpec()
    settings._toggle_load("on", False)
    settings._toggle_load("off", True)
    settings._set_speed("speed", "2 steps/s")
    settings._set_length("prompt_tokens", "length", 99)
    policies._change("queue_policy", "no such key", "fcfs")
    assert live.commands == []
    monkeypatch.setattr(settings.st, "session_state", {"knob": was + 2, "on": False})
    settings._change("scheduler", "max_num_seqs", "knob", was)
    settings._toggle_load("on", True)
    assert [name for name, _ in live.commands] == ["set_scheduler", "set_load"]


def test_only_the_controller_can_turn_knobs(live, monkeypatch):
    live.control.acquire("somebody else", label="the lecturer")
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=120).run()
    assert knob(at, "max_num_seqs").disabled
    assert any("the lecturer has control" in c.value for c in at.caption)
    monkeypatch.setattr(engine_access, "session_id", lambda: "me")
    assert "the lecturer has control" in engine_access.engine().set_scheduler(max_num_seqs=3).message
    assert live.run.scheduler.max_num_seqs != 3


def test_the_status_bar_says_what_the_snapshot_says(live):
    live.clock = None
    data = status_bar.payload(live.picture, controller=True, holder="", tick="12 ms")
    cells = {cell["key"]: cell for cell in data["values"]}
    assert cells["running"]["text"] == str(live.picture.num_running)
    assert cells["waiting"]["text"] == str(live.picture.num_waiting + live.picture.num_preempted)
    assert cells["bound"]["text"] == live.picture.step_record.bound_by
    assert cells["kv"]["share"] == live.picture.pool.usage
    assert data["running"] is True


def test_an_idle_bar_shows_no_stale_rate():
    run = busy_run()
    snapshot = run.snapshot(num_running=0, num_waiting=0, num_preempted=0)
    cells = {cell["key"]: cell["text"] for cell in status_bar.values(snapshot)}
    assert cells["speed"].startswith("0")
    assert cells["bound"] == "no load"


@pytest.mark.parametrize("command", ["pause", "start", "step_once", "reset"])
def test_the_controls_of_the_bar_reach_the_engine(live, command, monkeypatch):
    monkeypatch.setattr(engine_access, "session_id", lambda: "me")
    assert status_bar.run_command(command).ok
    assert live.commands[-1][0] == command
    assert live.lease().holder == "me"


def test_an_unknown_command_and_a_viewer_are_refused(live, monkeypatch):
    monkeypatch.setattr(engine_access, "session_id", lambda: "me")
    assert not status_bar.run_command("close").ok
    live.control.acquire("other", label="another person")
    answer = status_bar.run_command("pause")
    assert not answer.ok
    assert "another person has control" in answer.message
    assert not live.commands


def test_limits_add_up_and_name_what_binds():
    run = busy_run()
    budget, seats, blocks = request_sets.limits(run.snapshot())
    for limit in (budget, seats, blocks):
        assert sum(share for _, share in limit["parts"]) == pytest.approx(1.0)
    bound = run.records[-1].bound_by
    names = {BoundBy.BUDGET: budget, BoundBy.SEATS: seats, BoundBy.MEMORY: blocks}
    assert [limit["binds"] for limit in names.values()] == [name.value == bound for name in names]
    assert any(limit["binds"] for limit in names.values())


def test_the_head_of_the_queue_tells_why_it_waits():
    snapshot = busy_run().snapshot()
    head = snapshot.passed_over[0]
    line = request_sets.head_of_queue(snapshot)
    assert head.request_id in line
    assert head.detail in line
    assert request_sets.head_of_queue(idle_snapshot()) == ""


def test_rows_tell_of_every_running_request():
    snapshot = busy_run().snapshot()
    rows = request_sets.payload(snapshot, None)["rows"]
    assert [row[0] for row in rows["running"]] == [r.request_id for r in snapshot.running]
    row, view = rows["running"][0], snapshot.running[0]
    assert row[3:9] == [view.prompt_tokens, view.computed_tokens, view.cached_tokens, view.output_tokens, view.max_tokens, 1]


def test_a_chosen_request_shows_its_facts_even_after_its_end():
    snapshot = busy_run().snapshot()
    ended = snapshot.ended[0]
    detail = request_sets.payload(snapshot, ended.request_id)["detail"]
    assert detail["id"] == ended.request_id
    assert not detail["alive"]
    assert request_sets.payload(snapshot, "never heard of")["detail"] is None


def test_a_tick_of_the_heaviest_sets_is_small_and_quick():
    run = heavy_run(250)
    snapshot = run.snapshot()
    assert snapshot.num_running == 64
    assert snapshot.num_waiting + snapshot.num_preempted == 200
    times = []
    for _ in range(5):
        began = time.process_time()
        sets = json.dumps(request_sets.payload(snapshot, snapshot.running[0].request_id))
        row = json.dumps(tiles.payload(tiles.tiles_of(snapshot, run.history())))
        times.append(time.process_time() - began)
    assert len(sets.encode()) + len(row.encode()) < 25_000
    assert min(times) < 0.05


def test_the_queue_cannot_make_a_tick_large():
    run = FakeRun(load=3000).advance(3)
    assert len(run.snapshot().waiting) > 2000
    assert len(json.dumps(request_sets.payload(run.snapshot(), None))) < 25_000


def test_programs_hold_every_registered_element_and_no_markup():
    for name in ("status_bar", "request_sets", "tiles"):
        script = (element.ASSETS / f"{name}.js").read_text("utf-8")
        assert f"function draw_{name}(" in script
        for unsafe in ("innerHTML", "insertAdjacentHTML", "outerHTML", "document.write", "eval("):
            assert unsafe not in script


def test_squeeze_keeps_code_and_drops_comments():
    assert element.squeeze("  // gone\n  a = 1; // kept\n\n    b = 2;\n") == "a = 1; // kept\nb = 2;"


def test_a_prompt_is_sent_streams_and_can_be_cancelled(live):
    at = open_page("prompt")
    at.text_area[0].set_value("<script>alert(1)</script> **bold**")
    next(b for b in at.button if b.label == "Send").click().run()
    assert not at.exception
    name, detail = live.commands[-1]
    assert name == "submit"
    assert detail["chat"] == [{"role": "user", "content": "<script>alert(1)</script> **bold**"}]
    (request_id, stream), *_ = live.streams.items()
    stream.push(StreamPiece(1, "<img src=x> _answer_", 1.0))
    at.run()
    shown = [t.value for t in at.text]
    assert "<img src=x> _answer_" in shown
    assert "› <script>alert(1)</script> **bold**" in shown
    assert "<img" not in html_of(at) + "".join(m.value for m in at.markdown)
    next(b for b in at.button if b.label == "Cancel" and b.key == f"cancel_{request_id}").click().run()
    assert live.streams[request_id].end.kind == "cancelled"


def test_several_prompts_at_once(live):
    at = open_page("prompt")
    at.text_area[0].set_value("first\n\nsecond")
    next(c for c in at.checkbox if c.label == "A request a line").check()
    next(n for n in at.number_input if n.label == "copies").set_value(2)
    next(b for b in at.button if b.label == "Send").click().run()
    assert [detail["chat"][0]["content"] for name, detail in live.commands if name == "submit"] == ["first"] * 2 + ["second"] * 2
    assert len(set(live.streams)) == 4


def test_bad_sampling_is_refused_in_words(live):
    at = open_page("prompt")
    next(n for n in at.number_input if n.label == "max_tokens").set_value(0)
    next(b for b in at.button if b.label == "Send").click().run()
    assert any("max_tokens is 0; ask for at least 1 output token" in t.value for t in at.text)
    assert not live.streams


def test_prompts_are_split_and_copied():
    assert answers.split_prompts(" a\n\n b ", by_line=True, copies=2) == ["a", "a", "b", "b"]
    assert answers.split_prompts(" a\n", by_line=False, copies=1) == [" a\n"]


def test_text_is_taken_as_text_where_markdown_is_read():
    assert frame.plain("a*b_[c](d)$e$:red[x]") == "a\\*b\\_\\[c\\]\\(d\\)\\$e\\$\\:red\\[x\\]"


def test_the_span_names_range_and_kind():
    run = busy_run(30)
    assert frame.span_of(run.history()) == "steps 1 to 30 · measured"
    assert frame.span_of(()) == "no steps yet"


def test_every_zoomable_figure_is_registered_so_that_its_zoom_survives():
    for build in (batch_timeline.composition_spec, batch_timeline.times_spec, gantt.gantt_spec, seats.seat_spec):
        assert frame.scale_params(build(style.DARK)) == ["zoom"]
    assert frame.scale_params({"params": [{"name": "pick", "select": "point"}]}) == []


def test_home_does_not_promise_of_a_fixed_batch_what_only_a_continuous_one_does():
    run = busy_run(60)
    continuous = home_sentences(run)
    run.scheduler = replace(run.scheduler, batch_policy=BatchPolicy.FIXED)
    assert "as soon as its request ends" in continuous
    assert "until its longest member ends" in home_sentences(run)


def home_sentences(run):
    engine_access.install(FakeLive(run))
    try:
        return html_of(open_page("home"))
    finally:
        engine_access.install(None)


def test_local_code_needs_no_lease(live):
    assert live.pause(session_id=LOCAL).accepted


def test_data_of_an_element_are_packed_only_where_that_is_worth_it():
    rows = request_sets.payload(FakeRun().snapshot(), None)
    plain = json.dumps(rows, separators=(",", ":")).encode()
    sent = element.packed(rows)
    assert json.loads(zlib.decompress(sent)) == json.loads(plain)
    assert len(sent) < 0.6 * len(plain)
    for short in ({"at": 3}, [1, 2]):
        assert json.loads(element.packed(short)) == short
    zlib_begins = 0x78
    assert sent[0] == zlib_begins
    assert "ZLIB = 0x78" in (element.ASSETS / "shared.js").read_text("utf-8"), "what the browser tells the two apart by"


def test_the_queue_is_said_to_be_cut_only_where_it_is():
    full = heavy_run().snapshot()
    assert request_sets.payload(full, None)["asides"]["waiting"] == f"first {request_sets.MAX_WAITING} shown"
    older = replace(full, waiting=full.waiting[:7], num_waiting=8)
    assert request_sets.payload(older, None)["asides"]["waiting"] == ""
