"""Recorded pages of a real server, and small pages of our own for what it does not show."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from benchmarks.attach_vllm import Received, checks
from core.attach.interval import compare, derive_cost
from core.attach.page import Histogram, MetricsPageError, ServerPage, parse_page
from core.attach.scraper import TargetState
from core.cost_model import cost_model
from core.model_spec import SMOLLM2_135M


def load(folder: Path, name: str) -> ServerPage:
    return parse_page((folder / f"vllm_metrics_{name}.txt").read_text())


def counter_in(text: str, name: str) -> float:
    """Read one counter by hand, without the parser under test."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " ")))


def test_recorded_page_says_what_the_server_said(shared_bench: Path) -> None:
    text = (shared_bench / "vllm_metrics_busy_2.txt").read_text()
    page = parse_page(text)
    assert page.engine == "vllm"
    assert page.model == "smollm2-135m-instruct"
    assert page.gauges["running"] == counter_in(text, "vllm:num_requests_running") == 7
    assert page.gauges["waiting"] == counter_in(text, "vllm:num_requests_waiting") == 7
    assert page.gauges["kv_usage"] == pytest.approx(0.02754820936639113)
    assert page.counters["generation_tokens"] == counter_in(text, "vllm:generation_tokens_total") == 1321
    assert page.counters["flops"] == counter_in(text, "vllm:estimated_flops_per_gpu_total")
    assert page.counters["finished"] == 10, "all finish reasons together"
    assert page.block_size == 128
    assert page.num_blocks is not None
    assert page.histograms["ttft"].count == 17
    assert page.histograms["iteration_tokens"].count == 166
    assert page.histograms["iteration_tokens"].total == 2426


def test_interval_between_two_busy_pages(shared_bench: Path) -> None:
    first, second = load(shared_bench, "busy_1"), load(shared_bench, "busy_2")
    got = compare(10.0, first, 12.0, second)
    delta = second.counters["generation_tokens"] - first.counters["generation_tokens"]
    assert got.output_tokens_per_s == pytest.approx(delta / 2)
    assert not got.restarted
    assert not got.derived
    flops = second.counters["flops"] - first.counters["flops"]
    moved = sum(second.counters[w] - first.counters[w] for w in ("read_bytes", "write_bytes"))
    assert got.flops_per_s == pytest.approx(flops / 2)
    assert got.intensity == pytest.approx(flops / moved)
    texts = [(shared_bench / f"vllm_metrics_busy_{i}.txt").read_text() for i in (1, 2)]
    counts = [counter_in(text, "vllm:inter_token_latency_seconds_count") for text in texts]
    assert got.itl.count == counts[1] - counts[0] > 0
    assert got.itl.p50 is not None
    assert got.itl.p99 is not None
    assert 0 < got.itl.p50 <= got.itl.p99


def test_derived_figures_are_marked_and_near_the_servers_own(shared_bench: Path) -> None:
    first, second = load(shared_bench, "busy_1"), load(shared_bench, "busy_2")
    own = compare(0.0, first, 2.0, second)

    def without_counters(page: ServerPage) -> ServerPage:
        kept = {k: v for k, v in page.counters.items() if k not in ("flops", "read_bytes", "write_bytes")}
        return ServerPage(page.engine, page.model, page.gauges, kept, page.histograms, page.info, page.process_start_s)

    model = cost_model(SMOLLM2_135M)
    derived = compare(0.0, without_counters(first), 2.0, without_counters(second), model=model, mean_context=130)
    assert derived.derived
    assert derived.flops_per_s == pytest.approx(own.flops_per_s, rel=0.35)
    assert compare(0.0, without_counters(first), 2.0, without_counters(second)).flops_per_s is None


def test_idle_page_has_no_quantile_and_no_work(shared_bench: Path) -> None:
    page = load(shared_bench, "idle")
    got = compare(0.0, page, 5.0, page)
    assert got.output_tokens_per_s == 0
    assert got.ttft.p50 is None
    assert got.intensity is None
    assert got.bound_by == "load"


def test_a_restart_counts_from_zero_and_is_said(shared_bench: Path) -> None:
    after, idle = load(shared_bench, "after"), load(shared_bench, "idle")
    restarted = ServerPage(
        idle.engine, idle.model, idle.gauges, idle.counters, idle.histograms, idle.info, (after.process_start_s or 0) + 60
    )
    got = compare(0.0, after, 5.0, restarted)
    assert got.restarted
    assert got.output_tokens_per_s == pytest.approx(idle.counters["generation_tokens"] / 5)


def test_old_names_and_other_engines() -> None:
    page = parse_page(
        "sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\nsglang:generation_tokens_total 7\n"
    )
    assert (page.engine, page.gauges["running"], page.gauges["waiting"], page.gauges["kv_usage"]) == ("sglang", 3, 2, 0.5)
    assert page.counters["generation_tokens"] == 7
    old = parse_page("vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.25\nvllm:generation_tokens 9\n")
    assert old.gauges["kv_usage"] == 0.25
    assert old.counters["generation_tokens"] == 9
    assert "waiting" not in old.gauges, "what is not exported is absent, not 0"


SGLANG = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 1000
sglang:cached_tokens_total{cache_source="device",model_name="meta-llama/Llama-3.1-8B-Instruct"} 200
sglang:cached_tokens_total{cache_source="host",model_name="meta-llama/Llama-3.1-8B-Instruct"} 50
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 400
sglang:num_requests_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 12
sglang:num_retracted_requests_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 3
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 5
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:cache_config_info{model_name="meta-llama/Llama-3.1-8B-Instruct",num_pages="4096",page_size="16"} 1
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 9
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="meta-llama/Llama-3.1-8B-Instruct"} 12
sglang:time_to_first_token_seconds_sum{model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.5
sglang:time_to_first_token_seconds_count{model_name="meta-llama/Llama-3.1-8B-Instruct"} 12
"""

TRTLLM = """\
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="llama"} 4
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="llama"} 3
trtllm_prompt_tokens_total{model_name="llama"} 900
trtllm_prompt_cached_tokens_total{model_name="llama"} 300
trtllm_generation_tokens_total{model_name="llama"} 350
trtllm_num_requests_running{model_name="llama"} 6
trtllm_num_requests_waiting{model_name="llama"} 1
trtllm_kv_cache_utilization{model_name="llama"} 0.4
trtllm_kv_cache_tokens_per_block{model_name="llama"} 32
trtllm_kv_cache_max_blocks{model_name="llama"} 2048
trtllm_max_batch_size_runtime{model_name="llama"} 64
trtllm_max_num_tokens_runtime{model_name="llama"} 8192
# TYPE trtllm_time_to_first_token_seconds histogram
trtllm_time_to_first_token_seconds_bucket{le="0.5",model_name="llama"} 7
trtllm_time_to_first_token_seconds_bucket{le="+Inf",model_name="llama"} 7
trtllm_time_to_first_token_seconds_sum{model_name="llama"} 0.7
trtllm_time_to_first_token_seconds_count{model_name="llama"} 7
"""

TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1500
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6000
nv_inference_request_success{model="tensorrt_llm",version="1"} 9
"""


def test_the_documented_names_of_sglang_are_read() -> None:
    page = parse_page(SGLANG)
    assert (page.engine, page.model) == ("sglang", "meta-llama/Llama-3.1-8B-Instruct")
    assert (page.gauges["running"], page.gauges["waiting"], page.gauges["kv_usage"]) == (5, 2, 0.28)
    assert (page.block_size, page.num_blocks, page.max_num_seqs) == (16, 4096, None)
    assert {word: page.counters[word] for word in ("preemptions", "finished", "prefix_hits", "prefix_queries")} == {
        "preemptions": 3, "finished": 12, "prefix_hits": 250, "prefix_queries": 1000,
    }  # fmt: skip
    assert page.histograms["ttft"].mean == pytest.approx(0.125)
    later = parse_page(SGLANG.replace("} 1000", "} 2000").replace("} 200\n", "} 700\n").replace("} 400", "} 900"))
    interval = compare(0.0, page, 2.0, later, model=cost_model(SMOLLM2_135M))
    assert interval.prefix_hit_rate == 0.5
    assert interval.output_tokens_per_s == 250
    assert interval.derived
    whole = compare(0.0, page, 2.0, parse_page(SGLANG.replace("} 1000", "} 2000").replace("} 400", "} 900")),
                    model=cost_model(SMOLLM2_135M))  # fmt: skip
    assert interval.flops_per_s is not None
    assert whole.flops_per_s is not None
    assert interval.flops_per_s < whole.flops_per_s, "what the prefix cache served is not computed"


def test_the_documented_names_of_tensorrt_llm_are_read() -> None:
    page = parse_page(TRTLLM)
    assert (page.engine, page.model) == ("trtllm", "llama")
    assert (page.gauges["running"], page.gauges["waiting"], page.gauges["kv_usage"]) == (6, 1, 0.4)
    assert (page.block_size, page.num_blocks, page.max_num_seqs, page.max_num_batched_tokens) == (32, 2048, 64, 8192)
    assert (page.counters["finished"], page.counters["prefix_hits"], page.counters["prefix_queries"]) == (7, 300, 900)
    assert page.histograms["ttft"].mean == pytest.approx(0.1)
    assert not page.itl_is_mean
    gaps = 'trtllm_time_per_output_token_seconds_bucket{le="+Inf"} 7\ntrtllm_time_per_output_token_seconds_sum 0.2\n'
    assert parse_page(TRTLLM + gaps).itl_is_mean, "a mean of each request, not a gap"
    triton = parse_page(TRITON)
    assert (triton.engine, triton.model) == ("trtllm", "tensorrt_llm")
    assert (triton.gauges["running"], triton.gauges["waiting"], triton.gauges["kv_usage"]) == (3, 2, 0.25)
    assert (triton.block_size, triton.num_blocks, triton.max_num_seqs, triton.counters["finished"]) == (64, 6000, 512, 9)
    assert "generation_tokens" not in triton.counters, "Triton exports no tokens: unknown, not 0"
    with pytest.raises(MetricsPageError, match="/prometheus/metrics"):
        parse_page('[{"iter": 1, "numActiveRequests": 2}]')


def test_several_engines_add_up_but_a_share_does_not() -> None:
    page = parse_page(
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 5\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 1.0\n'
    )
    assert page.gauges["running"] == 8
    assert page.gauges["kv_usage"] == 0.75


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no metric at all"), ("<html>login</html>", "/metrics|no metric"), ("python_info 1\n", "found: python_info")],
)
def test_a_page_of_something_else_is_refused(text: str, words: str) -> None:
    with pytest.raises(MetricsPageError, match=words):
        parse_page(text)


def test_quantile_interpolates_inside_a_bucket() -> None:
    h = Histogram((1.0, 2.0, math.inf), (10.0, 20.0, 20.0), 25.0, 20.0)
    assert h.quantile(0.5) == pytest.approx(1.0)
    assert h.quantile(0.75) == pytest.approx(1.5)
    assert Histogram((1.0, math.inf), (0.0, 4.0), 9.0, 4.0).quantile(0.5) == 1.0, "open bucket: its lower bound"
    assert h.minus(h).quantile(0.5) is None


def test_more_decoding_tokens_a_step_raise_the_derived_intensity() -> None:
    model = cost_model(SMOLLM2_135M)
    few = derive_cost(model, 0, 100, 1, 100, 100)
    many = derive_cost(model, 0, 1600, 16, 100, 100)
    assert many[0] / many[1] > 8 * few[0] / few[1]
    assert few[0] / few[1] == pytest.approx(1.0, rel=0.2), "2 FLOP a weight, 2 bytes a weight, one sequence"


def test_the_figures_of_the_page_equal_the_counters_of_recorded_pages(shared_bench: Path) -> None:
    """The check that `python -m benchmarks attach-vllm` makes on a live vLLM, on pages recorded from one."""
    texts = [(shared_bench / f"vllm_metrics_{name}.txt").read_text() for name in ("idle", "busy_1", "busy_2", "after")]
    pages = [parse_page(text) for text in texts]
    intervals = tuple(compare(2.0 * k, a, 2.0 * (k + 1), b) for k, (a, b) in enumerate(itertools.pairwise(pages)))
    state = TargetState("vLLM", "", "live", "", 6.0, pages[-1], intervals)

    def grew(name: str) -> float:
        return counter_in(texts[-1], name) - counter_in(texts[0], name)

    finished = round(grew("vllm:request_success_total"))
    got = Received(finished, round(grew("vllm:prompt_tokens_total")), round(grew("vllm:generation_tokens_total")))
    found = checks(state, texts[0], texts[-1], got, 6.0)
    assert len(found) == 14
    for name, page, server in found:
        assert page == pytest.approx(server, rel=1e-9), name
    assert {name: page for name, page, _ in found}["output tokens"] > 1000
