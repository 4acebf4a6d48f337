"""The What-if page on pictures without an engine: what it asks, what it shows, what a link restores, what it applies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from core.models_catalog import MODELS
from core.scenario import parse_scenario
from core.sim_jobs import Outcome, SimulationJobs
from core.traces.reader import read_trace
from core.whatif import WhatIf
from pages.parts import engine_access, paired, whatif_run
from tests.fake_live import FakeLive
from tests.fake_snapshots import busy_run, starting_snapshot

PAGES = Path(__file__).resolve().parents[1] / "pages"
PAGE = str(PAGES / "what_if.py")
DIMMED = ".st-key-whatif_body { opacity"


@pytest.fixture(scope="module")
def jobs() -> Iterator[SimulationJobs]:
    made = SimulationJobs()
    made.warm().result(240)
    yield made
    made.warm().result(240)  # the checks that pages have asked for come first; loky's manager fails on a kill among them
    made.close()


@pytest.fixture
def live(jobs: SimulationJobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLive]:
    monkeypatch.setattr(whatif_run, "jobs", lambda first=False: jobs)
    monkeypatch.setattr(whatif_run, "MORE_S", 240.0)
    monkeypatch.setattr(whatif_run.wait, "__defaults__", (240.0,))
    fake = FakeLive(busy_run())
    engine_access.install(fake)
    yield fake
    engine_access.install(None)


def opened(**params: str) -> AppTest:
    at = AppTest.from_file(PAGE, default_timeout=120)
    for name, value in params.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, [e.value for e in at.exception]
    return at


def words(at: AppTest) -> str:
    return "\n".join(node.proto.body for node in at.get("html"))


def press(at: AppTest, label: str) -> AppTest:
    next(b for b in at.button if b.label == label).click().run()
    assert not at.exception, [e.value for e in at.exception]
    return at


def test_as_live_both_runs_are_the_same_and_the_error_is_shown(live: FakeLive) -> None:
    at = opened()
    assert "As live: turn a knob" in words(at)
    assert words(at).count("bs-paired") == 2
    error = next(c.value for c in at.caption if c.value.startswith("Error against the live engine"))
    assert "median error of" in error
    assert "held" in error


def test_measure_again_looks_at_the_engine_anew_and_a_wrong_form_keeps_the_error(live: FakeLive) -> None:
    at = opened()
    before = at.session_state["whatif_known"]
    ended = live.picture.recent_requests
    live.picture = replace(live.picture, recent_requests=tuple(replace(r, prompt_tokens=2 * r.prompt_tokens) for r in ended))
    prompt = at.number_input(key="w_prompt_tokens").value
    press(at, "Measure again")
    assert at.session_state["whatif_known"] is not before
    assert at.session_state["whatif_check"].base is at.session_state["whatif_known"].base
    assert at.number_input(key="w_prompt_tokens").value == 2 * prompt, "a field that nobody turned follows the live engine"
    assert "As live: turn a knob" in words(at)
    at = opened(w_device="RTX 4090", w_model="Llama 3.1 70B")
    assert any("does not fit" in e.value for e in at.error)
    assert any(c.value.startswith("Error against the live engine") for c in at.caption)


def test_a_preset_after_another_starts_from_the_live_values(live: FakeLive) -> None:
    """A browser keeps what it shows unless it is told otherwise, so the old knob is told its live value."""
    at = press(press(opened(), "Twice the seats"), "Half the KV memory")
    knob = at.number_input(key="w_max_num_seqs")
    assert knob.proto.set_value, "the browser would report the old value with its next run"
    assert knob.value == live.latest().config.scheduler.max_num_seqs
    assert "max_num_seqs" not in words(at).split("bs-paired")[0]
    assert "num_blocks" in words(at)
    at = press(at, "As live")
    assert "As live: turn a knob" in words(at)
    assert not at.warning


def test_a_first_answer_waits_for_no_long_run_and_says_from_how_many_requests_it_is(
    live: FakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = opened()
    ask = whatif_run.ask
    rest: Future[Outcome] = Future()

    def slow(what: WhatIf, max_time_s: float | None = None) -> Future[Outcome]:
        return rest if what.scheduler.max_num_seqs != live.latest().config.scheduler.max_num_seqs else ask(what, max_time_s)

    monkeypatch.setattr(whatif_run, "ask", slow)
    monkeypatch.setattr(whatif_run, "MORE_S", 0.1)
    at = press(at, "Twice the seats")
    assert f"first answer, from {whatif_run.FIRST_REQUESTS} requests" in words(at)
    assert "max_num_seqs" in words(at)
    monkeypatch.setattr(whatif_run, "ask", ask)
    monkeypatch.setattr(whatif_run, "MORE_S", 240.0)
    at.run()
    assert "first answer" not in words(at)


def test_a_preset_changes_hardware_and_says_what_moves(live: FakeLive) -> None:
    at = press(opened(), "On an H100")
    shown = words(at)
    assert "device this machine → H100 SXM" in shown
    assert "throughput" in shown
    assert any("NVIDIA H100 datasheet" in c.value for c in at.caption)
    assert "live this machine" in shown  # the ghost mark
    assert "As live: turn" in words(press(at, "As live"))


def test_a_link_restores_the_form(live: FakeLive) -> None:
    at = opened(w_device="L4", w_max_num_seqs="96", w_model="Qwen3 0.6B")
    shown = words(at)
    for change in ("device this machine → L4", "max_num_seqs 48 → 96", "→ Qwen3 0.6B"):
        assert change in shown


def test_while_a_change_is_simulated_the_results_before_stay_dimmed(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    at = opened()
    before = words(at)
    assert DIMMED not in before
    slow: Future[Outcome] = Future()
    ask = whatif_run.ask
    monkeypatch.setattr(whatif_run, "ask", lambda w, limit=None: slow if w.scheduler.max_num_seqs == 77 else ask(w, limit))
    monkeypatch.setattr(whatif_run, "ask_first", lambda w: slow)
    monkeypatch.setattr(whatif_run, "wait", lambda futures, limit_s=0.0: True)
    next(n for n in at.number_input if n.key == "w_max_num_seqs").set_value(77).run()
    shown = words(at)
    assert "Simulating the change" in shown
    assert DIMMED in shown
    assert shown.count("bs-paired") == 2, "the earlier figures are still there"
    assert any(c.value.startswith("Error against the live engine") for c in at.caption)
    slow.set_result(ask(next_what(at, live)).result(240))
    at.run()
    assert DIMMED not in words(at)
    assert "max_num_seqs 48 → 77" in words(at)


def next_what(at: AppTest, live: FakeLive) -> WhatIf:
    """Any what-if whose result may stand in for the slow one."""
    known = at.session_state["whatif_known"]
    return replace(known.base.whatif, load=replace(live.load, num_requests=20))


def test_a_mix_of_tenants_and_another_order_of_eviction(live: FakeLive) -> None:
    at = opened(w_source="a mix of tenants", w_eviction_policy="lfu", whatif_tab="Flags and files")
    shown = words(at)
    assert "3 tenants, 200 requests" in shown
    assert "eviction_policy lru → lfu" in shown
    press(at, "Apply to live engine")
    assert str(live.commands[-1][1]["cache"].eviction_policy) == "lfu"


@pytest.mark.parametrize(
    ("key", "question"), [("live", "Would these settings be better here"), ("swap", "Is it cheaper to compute")]
)
def test_a_link_names_a_comparison(key: str, question: str, live: FakeLive) -> None:
    at = AppTest.from_file(str(PAGES / "compare.py"), default_timeout=120)
    at.query_params["fork"] = key
    at.query_params["cmp_max_num_seqs"] = "7"
    at.run().run()
    assert not at.exception
    assert question in words(at)
    assert ("max_num_seqs: 48 against 7" in words(at)) == (key == "live")


def test_a_model_that_does_not_fit_is_refused_with_its_sizes(live: FakeLive) -> None:
    at = opened(w_device="RTX 4090", w_model="Llama 3.1 70B")
    assert any("does not fit RTX 4090" in e.value.replace("\\", "") for e in at.error)


def test_a_pasted_config_json_is_read_or_refused_with_the_place(live: FakeLive) -> None:
    at = opened(w_model="config.json")
    assert any("no config.json yet" in e.value.replace("\\", "") for e in at.error)
    area = next(t for t in at.text_area if t.key == "w_config_text")
    area.set_value('{"model_type": "llama",\n nonsense').run()
    assert any("is not JSON" in e.value and "line 2" in e.value for e in at.error)

    area = next(t for t in at.text_area if t.key == "w_config_text")
    area.set_value(json.dumps(MODELS["Qwen2.5 0.5B"].config)).run()
    assert any("0.494 G parameters" in c.value.replace("\\", "") for c in at.caption)


def with_file(at: AppTest, name: str, text: str) -> AppTest:
    at.file_uploader(key="w_trace_file").set_value([(name, text.encode(), "text/csv")]).run()
    assert not at.exception, [e.value for e in at.exception]
    return at


def load_captions(at: AppTest) -> str:
    return "\n".join(c.value.replace("\\", "") for c in at.caption)


def errors(at: AppTest) -> str:
    return "\n".join(e.value.replace("\\", "") for e in at.error)


def test_a_file_of_lengths_alone_gets_arrivals_at_a_rate(live: FakeLive) -> None:
    rows = "num_prefill_tokens,num_decode_tokens\n" + "\n".join(f"{30 + i},{5 + i % 7}" for i in range(40))
    at = with_file(opened(w_source="a trace"), "lengths.csv", rows)
    assert not at.error, [e.value for e in at.error]
    assert "Poisson arrivals of 1.00 requests/s" in words(at)
    at.number_input(key="w_trace_poisson").set_value(4.0).run()
    assert "Poisson arrivals of 4.00 requests/s" in words(at)
    view = at.session_state["whatif_drawn"]
    assert view.base_what.trace.stats().rate_per_s == pytest.approx(4.0, rel=0.5)


def test_a_map_of_columns_says_what_it_lacks_and_a_wrong_unit_is_told(live: FakeLive) -> None:
    rows = "when,in_tok,out_tok\n" + "\n".join(f"{500 * i},{30 + i},9" for i in range(40))
    at = with_file(opened(w_source="a trace"), "mine.csv", rows)
    assert "name the columns" in errors(at)
    at.toggle(key="w_trace_map").set_value(True).run()
    assert "no column yet for: prompt tokens, output tokens" in errors(at)
    at.selectbox(key="w_col_prompt_tokens").set_value("in_tok").run()
    assert errors(at) == "no column yet for: output tokens"
    at.selectbox(key="w_col_output_tokens").set_value("out_tok").run()
    at.selectbox(key="w_col_time").set_value("when").run()
    assert not at.error, [e.value for e in at.error]
    assert "time in ms: inferred: only ms gives a plausible mean rate (2 requests/s" in load_captions(at)
    at.selectbox(key="w_trace_unit").set_value("s").run()
    assert "as stated; mean rate 0.002 requests/s, which is unusual: it would be 2 in ms" in load_captions(at)


def test_applying_sends_scheduler_and_pool_at_once_and_a_scenario_reads_back(live: FakeLive) -> None:
    at = opened(w_max_num_seqs="64", whatif_tab="Flags and files")
    press(at, "Apply to live engine")
    name, changes = live.commands[-1]
    assert name == "configure"
    assert changes["scheduler"].max_num_seqs == 64
    assert changes["cache"].num_blocks == live.run.cache.num_blocks
    code = " ".join(c.value for c in at.code)
    assert "--max-num-seqs 64" in code
    assert "--max-running-requests 64" in code


def test_the_saved_scenario_is_the_what_if(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:

    saved: list[str] = []
    monkeypatch.setattr(st, "download_button", lambda label, data, *a, **k: saved.append(data))
    opened(w_device="H100 SXM", w_max_num_seqs="64", w_tp="3", whatif_tab="Flags and files")
    scenario = parse_scenario(saved[-1])
    assert scenario.engine.scheduler.max_num_seqs == 64
    assert scenario.device is not None
    assert (scenario.device.name, scenario.tensor_parallel) == ("H100 SXM", 3)


def test_a_pasted_model_is_not_called_the_live_one_in_what_is_taken_away(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    monkeypatch.setattr(st, "download_button", lambda label, data, *a, **k: saved.append(data))
    at = opened(w_device="H100 SXM", w_model="config.json", whatif_tab="Flags and files")
    pasted = MODELS["Qwen2.5 0.5B"].config | {"num_hidden_layers": 30}
    at.text_area(key="w_config_text").set_value(json.dumps(pasted)).run()
    assert not at.exception, [e.value for e in at.exception]
    commands = [c.value for c in at.code]
    assert commands[0].startswith("vllm serve MODEL ")
    assert "--model-path MODEL " in commands[1]
    assert all("put its repository or its folder in this place" in str(t.value.to_dict()) for t in at.dataframe[-2:])
    assert "cannot hold the geometry of the pasted config.json" in parse_scenario(saved[-1]).description
    at.selectbox(key="w_model").set_value("Qwen2.5 0.5B").run()
    assert at.code[0].value.startswith("vllm serve Qwen/Qwen2.5-0.5B")


def test_a_saved_mix_of_tenants_names_a_file_with_its_requests(live: FakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: dict[str, str] = {}
    monkeypatch.setattr(st, "download_button", lambda label, data, *a, **k: saved.__setitem__(label, data))
    opened(w_source="a mix of tenants", w_requests="50", whatif_tab="Flags and files")
    scenario = parse_scenario(saved["Save as scenario"])
    assert scenario.load is None
    assert scenario.trace is not None
    rows = read_trace(saved["Save its load"].encode(), name=scenario.trace.path, time_unit=scenario.trace.time_unit)
    assert len(rows) == 50
    assert len({rows.tenant(i) for i in range(50)}) > 1


def test_while_the_model_loads_the_page_says_so(live: FakeLive) -> None:
    live.picture = starting_snapshot()
    live.run.records.clear()
    at = opened()
    assert any("still loading" in t.value for t in at.text)


def test_differences_are_words_that_cannot_mislead() -> None:
    assert paired.difference(100.0, 310.0, "tok/s") == "×\u202f3.1"
    assert paired.difference(1.0, 0.001, "s") == "÷\u202f1.0\u202fk"
    assert paired.difference(1.0, 1.1, "s") == "+10.0\u202f%"
    assert paired.difference(0.5, 0.75, "%") == "+25\u202fpoints"
    assert paired.difference(None, 1.0, "s") == "–"
    assert paired.difference(0.0, 3.0, "") == "+3"
