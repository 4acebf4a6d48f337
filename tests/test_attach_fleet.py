"""Several servers as one set of figures, their detectors, and what is predicted from one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.attach.fleet import summarise
from core.attach.forecast import Prediction, lengths_of, observed_figure, take
from core.attach.page import ServerPage
from core.attach.scraper import Target
from core.attach.verdicts import UNSEEN, judge
from core.charts import attach, attach_spec, attach_tiles
from core.charts.style import DARK
from core.detectors import DETECTORS
from core.devices import device_named
from core.errors import ConfigError
from core.load_spec import ArrivalProcess
from core.models_catalog import guess_model
from core.scenario import parse_scenario
from tests.attach_cases import Server, histogram, steady

H100 = device_named("H100 SXM")


def test_a_sum_adds_counts_and_rates_and_weights_the_usage_by_the_pools() -> None:
    one, two = steady(running=4, kv=0.5), steady(running=8, waiting=3, kv=1.0, tokens=160)
    two.info["num_gpu_blocks"] = "3000"
    states = [one.state("a"), two.state("b")]
    seen = summarise(states, 38.0)
    assert (seen.replicas, seen.answering, seen.running, seen.waiting) == (2, 2, 12, 3)
    assert seen.output_tokens_per_s == pytest.approx((80 + 160) / 2)
    assert seen.kv_usage == pytest.approx((0.5 * 1000 + 1.0 * 3000) / 4000)
    assert seen.prefix_hit_rate == pytest.approx(0.25)
    assert seen.mean_running == pytest.approx(12)
    assert seen.ttft.count == 2 * 16, "both histograms, of the intervals that ended in the last 30 s"
    assert seen.bound_by in ("load", "KV memory")
    assert dict(seen.bound_shares) == pytest.approx({"load": 0.5, "KV memory": 0.5})
    assert seen.full_batch_share == 1.0
    assert seen.flops_per_s == pytest.approx(0.5e9), "a mean over devices, not a sum"
    assert seen.intensity == pytest.approx(4.0)


def test_a_server_that_does_not_answer_is_counted_and_left_out() -> None:
    good, bad = steady().state("good"), steady().state("bad", status="slow")
    both, alone = summarise([good, bad], 38.0), summarise([good], 38.0)
    assert (both.replicas, both.answering) == (2, 1)
    assert both.running == alone.running
    assert both.output_tokens_per_s == alone.output_tokens_per_s


def test_several_engines_behind_one_page_are_devices_of_their_own() -> None:
    server = steady()
    server.pages = [replace(p, engines=2) for p in server.pages]
    assert server.intervals()[-1].flops_per_s == pytest.approx(1e9 / 2 / 2)
    with pytest.raises(ConfigError, match="2 engines behind one page"):
        take(server.state(), 38.0, device=H100)


def test_the_context_of_a_request_follows_from_usage_and_pool() -> None:
    page = steady(2, running=10, kv=0.5).pages[-1]
    assert page.context_tokens == pytest.approx(0.5 * 1000 * 16 / 10)


def test_every_failure_mode_of_the_product_is_judged_or_named_as_unseen() -> None:
    verdicts = judge(steady(40).state(seats=32), budget=2048)
    assert {v.name for v in verdicts} == set(DETECTORS)
    assert not [v.name for v in verdicts if v.found]
    assert all(v.value is None for v in verdicts if v.name in UNSEEN)


def test_memory_ceiling_thrash_and_starvation_are_found_with_their_beginning() -> None:
    server = steady(12)
    for _ in range(30):
        server.tell(running=4, waiting=9, kv=0.97, grow={"generation_tokens": 40, "preemptions": 3, "prefix_queries": 0})
    found = {v.name: v for v in judge(server.state())}
    assert found["memory ceiling"].found
    assert found["memory ceiling"].value == 1.0
    assert found["preemption thrash"].found
    assert found["starvation"].found, "requests wait and none gets a first token"
    assert found["starvation"].began_at == 11
    assert found["starvation"].value == pytest.approx(60.0)


def test_interference_head_of_line_and_host_are_judged_by_what_is_known() -> None:
    server = Server()
    for _ in range(20):
        server.tell(
            running=4,
            waiting=2,
            kv=0.3,
            grow={"prompt_tokens": 50, "generation_tokens": 60, "flops": 1e9, "read_bytes": 1e9, "write_bytes": 0},
            seen={"itl": [0.015] * 58 + [0.8] * 2, "iteration_tokens": [10.0] * 6, "ttft": [0.1]},
        )
    target = Target("a", "http://127.0.0.1:1", device=H100)
    told = {v.name: v for v in judge(server.state(seats=32, target=target), budget=2048)}
    assert told["prefill interference"].found
    assert told["head-of-line blocking"].found, "seats, KV and budget have room, and requests wait"
    assert told["host-bound"].found
    assert told["host-bound"].value == pytest.approx(1 - 0.5e9 / 3.35e12)
    untold = {v.name: v for v in judge(server.state())}
    assert untold["host-bound"].value is None
    assert "choose one" in untold["host-bound"].sentence
    assert untold["head-of-line blocking"].value is None


def test_a_fall_of_the_hit_rate_under_a_full_pool_is_cache_thrash() -> None:
    server = Server()
    for k in range(80):
        server.tell(kv=0.95, waiting=1, grow={"prefix_queries": 100, "prefix_hits": 80 if k < 40 else 5})
    assert next(v for v in judge(server.state()) if v.name == "cache thrash").found


# -- what is taken into a prediction -------------------------------------------------------------------------


def test_lengths_keep_the_exact_mean_of_the_histogram() -> None:
    spec = lengths_of(histogram([10, 20, 30, 400], (8.0, 64.0, 512.0, float("inf"))), None)
    assert spec is not None
    assert spec.mean == pytest.approx(115, rel=0.05)
    assert lengths_of(None, 99.6).low == 100  # type: ignore[union-attr]
    assert lengths_of(None, None) is None


@pytest.mark.parametrize(
    ("served", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1 8B"),
        ("smollm2-135m-instruct", "SmolLM2 135M"),
        ("/models/Qwen2.5-7B-Instruct/", "Qwen2.5 7B"),
        ("my-finetune", None),
        ("", None),
    ],
)
def test_a_served_name_tells_the_geometry(served: str, found: str | None) -> None:
    spec = guess_model(served)
    assert (spec.name if spec else None) == found


def test_a_queue_is_taken_as_users_and_none_as_arrivals() -> None:
    target = Target("a", "http://127.0.0.1:1", device=H100)
    queued = take(steady(40, running=4, waiting=6).state(target=target, seats=4), 78.0)
    assert queued.whatif.load is not None
    assert (queued.whatif.load.process, queued.whatif.load.users) == (ArrivalProcess.CLOSED_LOOP, 10)
    assert queued.whatif.scheduler.max_num_seqs == 4
    free = take(steady(40).state(target=target), 78.0)
    assert free.whatif.load is not None
    assert free.whatif.load.process is ArrivalProcess.POISSON
    assert free.whatif.load.rate_per_s == pytest.approx(0.5)
    assert free.whatif.load.output_tokens.mean == pytest.approx(80, rel=0.05)
    assert any("max_num_seqs is on no metrics page" in line for line in free.assumptions)
    assert (free.whatif.block_size, free.whatif.num_blocks) == (16, 1000)


def test_prediction_and_observation_have_the_same_figures_and_the_scenario_reads_back() -> None:
    target = Target("a", "http://127.0.0.1:1", device=H100)
    taken = take(steady(40, running=4, waiting=6).state(target=target, seats=4), 78.0)
    job = Prediction(taken)
    job.wait(240)
    assert job.result is not None, job.message
    assert job.result.finished == taken.whatif.load.num_requests  # type: ignore[union-attr]
    assert observed_figure(taken.observed, "output_tokens_per_s") == pytest.approx(40)
    assert observed_figure(taken.observed, "mean_batch") == pytest.approx(4)
    assert job.result.figure("mean_batch") == pytest.approx(4, abs=0.6), "four seats, ten users"
    scenario = parse_scenario(taken.scenario)
    assert scenario.engine.scheduler.max_num_seqs == 4
    assert scenario.engine.cache.num_blocks == 1000
    assert scenario.device == H100


def test_what_cannot_be_taken_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="device of a is not known"):
        take(steady().state(), 38.0)
    server = steady()
    server.pages = [ServerPage("vllm", "mine", p.gauges, p.counters, p.histograms, p.info) for p in server.pages]
    with pytest.raises(ConfigError, match="'mine' is not in the catalogue"):
        take(server.state(), 38.0, device=H100)
    quiet = Server()
    for _ in range(5):
        quiet.tell(running=0)
    with pytest.raises(ConfigError, match="too few requests"):
        take(quiet.state(), 8.0, device=H100)


# -- pictures ------------------------------------------------------------------------------------------------


def test_no_server_is_missing_from_a_sum_over_time() -> None:
    """Two servers scraped out of step, one of them half as often."""
    fast, slow = steady(40, running=4), steady(20, running=8)
    states = [fast.state("fast"), slow.state("slow")]
    slow_intervals = slow.intervals(period_s=4.0)
    states[1] = type(states[1])(
        **{**{f: getattr(states[1], f) for f in states[1].__dataclass_fields__}, "intervals": slow_intervals, "scraped_s": 76.0}
    )
    frame = attach.scheduler_frame(states, 78.0, None)
    assert set(frame["running"]) == {12.0}
    assert frame["ago_s"].is_monotonic_increasing
    assert frame["ago_s"].max() <= 0


def test_dots_say_where_their_figures_are_from_and_specs_hold_no_number_of_the_run() -> None:
    state = steady(10).state()
    dots = attach.dot_frame([state], 18.0)
    assert len(dots) == 9
    assert set(dots["origin"]) == {"exported"}
    assert dots["age"].iloc[-1] == 0.0
    assert attach_spec.dots_spec(DARK) is attach_spec.dots_spec(DARK)
    tips = [
        layer["encoding"]["tooltip"]
        for layer in attach_spec.dots_spec(DARK)["layer"]
        if layer.get("data") == {"name": "dots"} and "tooltip" in layer.get("encoding", {})  # not rings: the dot inside tells
    ]
    assert len(tips) == 1
    assert all(tip[0]["field"] == "name" for tip in tips)


def test_tiles_and_facts_of_nothing_are_dashes_not_zeros() -> None:
    seen = summarise([steady(3).state(status="unreachable")], 4.0)
    empty = attach.scheduler_frame([], 4.0, None), attach.tokens_frame([], 4.0), attach.latency_frame([], 4.0)
    values = [t.value for t in attach_tiles.tiles(seen, *empty)]
    assert set(values) == {"–"}
    assert {v for _, v, _ in attach_tiles.facts(seen, H100, False)} <= {"–", "– FLOP/B"}
