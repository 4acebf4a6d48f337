"""The server on a live engine with a tiny model: answers, streams, refusals, departures, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from core.attach.interval import compare
from core.attach.page import parse_page
from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.live import LiveEngine
from core.live_defaults import build_engine
from core.request import SamplingParams
from core.server.routes import routes
from tests.live_cases import ME, ready, settled, wait_until

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def live() -> Iterator[LiveEngine]:
    config = EngineConfig(
        model="tiny",
        dtype="float32",
        executor="inprocess",
        scheduler=SchedulerConfig(max_num_seqs=4),
        cache=CacheConfig(num_blocks=128),
    )
    engine = LiveEngine(config, engine_factory=build_engine)
    engine.launch()
    yield ready(engine)
    engine.close()


@pytest.fixture
def client(live: LiveEngine) -> Iterator[TestClient]:
    with TestClient(Starlette(routes=routes(lambda: live))) as found:
        yield found


def published(live: LiveEngine, ended: int) -> None:
    """Wait for the picture of an end: an answer ends with its step, that step's picture comes a moment later."""
    wait_until(lambda: (n := live.latest()).totals.finished + n.totals.cancelled >= ended and not n.num_running)


def ends(live: LiveEngine) -> int:
    """Requests that have ended, once nothing of an earlier test is still to be published."""
    totals = settled(live).totals
    return totals.finished + totals.cancelled


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_completion_and_its_usage(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 6, **GREEDY})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "text_completion"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_stream_joins_to_the_whole_answer(client: TestClient) -> None:
    call = {"prompt": "Hello there", "max_tokens": 12, **GREEDY}
    whole = client.post("/v1/completions", json=call).json()["choices"][0]["text"]
    streamed = client.post("/v1/completions", json={**call, "stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    parts = events(streamed.text)
    assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == whole
    assert parts[-1]["usage"]["completion_tokens"] == 12
    reasons = [p["choices"][0]["finish_reason"] for p in parts if p["choices"]]
    assert reasons == [None] * 11 + ["length"], "one event a token, the last one with the reason: clients count events"


def test_several_prompts_and_choices(client: TestClient) -> None:
    call = {"prompt": [[1, 2], [3, 4, 5]], "n": 2, "max_tokens": 3, "seed": 1, "temperature": 1.0, "ignore_eos": True}
    body = client.post("/v1/completions", json=call).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


def test_logprobs_are_those_of_the_tokens(client: TestClient) -> None:
    body = client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 4, "logprobs": 2, **GREEDY}).json()
    logprobs = body["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4
    for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert chosen == pytest.approx(max(top.values())), "greedy takes the most likely token"
        assert chosen <= 0


def test_stop_seed_length_and_tenant_reach_the_engine(client: TestClient, live: LiveEngine) -> None:
    call = {"prompt": "Hello there", "max_tokens": 24, "seed": 5, "temperature": 1.0, "ignore_eos": True, "user": "team-a"}
    whole = client.post("/v1/completions", json=call).json()["choices"][0]["text"]
    assert client.post("/v1/completions", json={**call, "seed": 6}).json()["choices"][0]["text"] != whole
    word = whole[len(whole) // 2 : len(whole) // 2 + 2]
    stopped = client.post("/v1/completions", json={**call, "stop": word}).json()["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (whole[: whole.index(word)], "stop")
    assert "team-a" in {r.tenant for r in live.requests()}
    refused = client.post("/v1/completions", json={"prompt": "a", "repetition_penalty": 1.2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "repetition_penalty")


def test_refusals_are_in_openai_form(client: TestClient) -> None:
    wrong = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 0})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")
    long = client.post("/v1/completions", json={"prompt": [1] * 5000, "max_tokens": 4})
    assert long.status_code == 400
    assert "5000" in long.json()["error"]["message"].replace(",", "").replace(" ", "")
    broken = client.post("/v1/completions", content=b"{nonsense")
    assert broken.status_code == 400
    big = client.post("/v1/completions", content=b" " * (5 * 2**20))
    assert big.status_code == 413


def test_a_token_is_needed_where_one_is_set(live: LiveEngine) -> None:
    with TestClient(Starlette(routes=routes(lambda: live, token="s3cret"))) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert client.get("/health").status_code == 200


def test_models_health_and_metrics(client: TestClient, live: LiveEngine) -> None:
    ended = ends(live)
    before = parse_page(client.get("/metrics").text)
    client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 9, **GREEDY})
    published(live, ended + 1)
    after = parse_page(client.get("/metrics").text)
    assert after.engine == "vllm"
    assert after.counters["generation_tokens"] - before.counters["generation_tokens"] == 9
    assert after.histograms["ttft"].count - (before.histograms["ttft"].count if "ttft" in before.histograms else 0) == 1
    assert after.histograms["itl"].count - (before.histograms["itl"].count if "itl" in before.histograms else 0) == 8
    assert after.gauges["running"] == 0
    assert after.block_size == 16
    assert after.num_blocks == 128
    assert (after.max_num_seqs, after.max_num_batched_tokens) == (4, live.config.scheduler.max_num_batched_tokens)
    assert client.get("/v1/models").json()["data"][0]["id"] == live.latest().info.model_label
    assert client.get("/health").json()["state"] in ("running", "idle")


def test_what_waiting_cannot_cure_is_a_400_and_what_it_can_is_a_429(live: LiveEngine) -> None:
    with TestClient(Starlette(routes=routes(lambda: live))) as client:
        too_many = client.post("/v1/completions", json={"prompt": [1], "max_tokens": live.limits.max_output_tokens + 1})
        assert too_many.status_code == 400
        assert "Retry-After" not in too_many.headers
    held, ended = live.limits, ends(live)
    live.limits = replace(held, max_streams=1)
    try:
        with TestClient(Starlette(routes=routes(lambda: live))) as client:
            full = client.post("/v1/completions", json={"prompt": [[1, 2], [3, 4]], "max_tokens": 200, **GREEDY})
            assert full.status_code == 429, full.text
            assert int(full.headers["Retry-After"]) >= 1
            assert full.json()["error"]["type"] == "rate_limit_error"
    finally:
        live.limits = held
    published(live, ended + 1)
    assert live.latest().pool.live == 0, "the first prompt of the refused call was cancelled"


def test_a_model_that_is_not_served_is_not_found(client: TestClient, live: LiveEngine) -> None:
    name = live.latest().info.model_label  # type: ignore[union-attr]
    assert client.post("/v1/completions", json={"model": name, "prompt": [1], "max_tokens": 1}).status_code == 200
    other = client.post("/v1/completions", json={"model": "gpt-4", "prompt": [1], "max_tokens": 1})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert client.get(f"/v1/models/{name}").json()["max_model_len"] == 512
    assert client.get("/v1/models/gpt-4").status_code == 404


def test_the_role_comes_with_the_first_token_not_before(client: TestClient, live: LiveEngine) -> None:
    call = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True, **GREEDY}
    answer = client.post("/v1/chat/completions", json=call)
    if answer.status_code == 400:
        pytest.skip("the tiny model has no chat template")
    parts = events(answer.text)
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert sum("role" in p["choices"][0]["delta"] for p in parts) == 1


def test_the_metrics_count_work_lengths_and_first_tokens_of_live_requests(client: TestClient, live: LiveEngine) -> None:
    ended = ends(live)
    before = parse_page(client.get("/metrics").text)
    client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 9, **GREEDY})
    published(live, ended + 1)
    text = client.get("/metrics").text
    after = parse_page(text)
    ran = live.history(-1)
    assert after.counters["flops"] - before.counters["flops"] > 0
    assert after.counters["flops"] == pytest.approx(sum(r.flops for r in ran))
    assert after.counters["read_bytes"] == pytest.approx(sum(r.weight_bytes + r.kv_read_bytes for r in ran))
    assert after.counters["write_bytes"] == pytest.approx(sum(r.kv_write_bytes for r in ran))
    lengths = after.histograms["output_length"].minus(before.histograms.get("output_length"))
    assert (lengths.count, lengths.total) == (1, 9)
    assert after.process_start_s is not None
    for name in ("request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds"):
        assert f"vllm:{name}_count" in text


def test_gaps_and_first_tokens_are_in_the_metrics_while_their_request_still_runs(client: TestClient, live: LiveEngine) -> None:
    ended = ends(live)
    before = parse_page(client.get("/metrics").text)
    live.pause(**ME)
    live.submit(token_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=400, ignore_eos=True), **ME)
    assert live.step_once(steps=5, **ME).value == 5
    assert live.latest().running[0].output_tokens == 5
    seen = parse_page(client.get("/metrics").text)
    assert seen.histograms["itl"].count == before.histograms["itl"].count + 4
    assert seen.histograms["ttft"].count == before.histograms["ttft"].count + 1
    live.start(**ME)
    published(live, ended + 1)
    after = parse_page(client.get("/metrics").text)
    assert after.histograms["itl"].minus(before.histograms["itl"]).count == 399
    assert after.histograms["iteration_tokens"].count == pytest.approx(live.latest().tallies.step_tokens.count)


def test_the_time_to_the_first_token_begins_when_the_call_comes(client: TestClient, live: LiveEngine) -> None:
    ended, asked = ends(live), live.now()
    client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 2, **GREEDY})
    published(live, ended + 1)
    came = [r.arrival_s for r in live.requests() if r.prompt_tokens == 3 and r.output_tokens == 2]
    late = live.submit(token_ids=[5], sampling=SamplingParams(max_tokens=1), arrival_s=asked, **ME)
    published(live, ended + 2)
    record = next(r for r in live.requests() if r.request_id == late.value)
    assert asked <= max(came)
    assert record.arrival_s == asked
    assert record.ttft_s is not None
    assert record.ttft_s > max(came) - asked, "it waited since before the other call came"


def test_the_own_page_gives_a_dot_that_is_not_derived(client: TestClient, live: LiveEngine) -> None:
    ended = ends(live)
    first = parse_page(client.get("/metrics").text)
    client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 9, **GREEDY})
    published(live, ended + 1)
    interval = compare(0.0, first, 2.0, parse_page(client.get("/metrics").text))
    assert not interval.derived
    assert interval.output_tokens == 9
    assert interval.steps == pytest.approx(9)
    assert interval.ttft.count == 1
    assert interval.intensity is not None


def test_a_full_queue_is_a_429_with_retry_after_and_ends_as_it_empties(live: LiveEngine) -> None:
    held = live.limits
    live.limits = replace(held, max_waiting=1)
    assert live.pause(**ME).accepted  # nothing is admitted, so what is submitted waits
    try:
        with TestClient(Starlette(routes=routes(lambda: live))) as client:
            assert live.submit(token_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=2, ignore_eos=True), **ME).accepted
            full = client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2, **GREEDY})
            assert full.status_code == 429, full.text
            assert int(full.headers["Retry-After"]) >= 1
            error = full.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "1 requests wait already" in error["message"]
            live.start(**ME)
            wait_until(lambda: not live.latest().num_waiting, what="an empty queue")
            assert client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2, **GREEDY}).status_code == 200
    finally:
        live.start(**ME)
        live.limits = held


def test_refusals_of_size_and_of_a_missing_token_have_openais_form(live: LiveEngine) -> None:
    with TestClient(Starlette(routes=routes(lambda: live, token="s3cret"))) as client:
        nobody = client.post("/v1/completions", json={"prompt": "a"})
        big = client.post("/v1/completions", content=b" " * (5 * 2**20), headers={"Authorization": "Bearer s3cret"})
    for answer, status, kind in ((nobody, 401, "authentication_error"), (big, 413, "invalid_request_error")):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["type"] == kind
