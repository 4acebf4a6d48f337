"""The engine as a library: the ten lines of the README, and every bad input with its own clear message."""

from __future__ import annotations

import math
from typing import Any

import pytest

from core.config import EngineConfig
from core.errors import ConfigError, RefusalReason, RequestRefused
from core.factory import create_engine, with_overrides
from core.model_spec import TINY, ModelSpec
from core.request import SLO, FinishReason, SamplingParams
from tests.engine_cases import scripted_engine


def test_the_ten_lines() -> None:
    engine = create_engine(model="tiny", clock="step", dtype="float32")
    first = engine.add_request("Once upon a time", SamplingParams(max_tokens=8, ignore_eos=True))
    second = engine.add_request([72, 105], SamplingParams(max_tokens=500, temperature=0.8, seed=1, ignore_eos=True))
    for _ in range(4):
        for event in engine.step():
            assert event.request_id in (first, second)
    engine.cancel(second)
    engine.run_until_idle()
    picture = engine.snapshot()
    engine.check_invariants()
    assert (first, second) == ("r-000001", "r-000002")
    assert (picture.totals.finished, picture.totals.cancelled, picture.pool.live) == (1, 1, 0)
    assert picture.info is not None
    assert picture.info.kind == "measured"
    engine.close()
    engine.close()


def test_generate_returns_answers_in_order() -> None:
    engine = create_engine(model="tiny", clock="step", dtype="float32")
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    answers = engine.generate(["one", "two two", [3, 3, 3]], sampling)
    assert [a.request_id for a in answers] == ["r-000001", "r-000002", "r-000003"]
    assert [len(a.token_ids) for a in answers] == [6, 6, 6]
    assert all(a.finish_reason is FinishReason.LENGTH for a in answers)
    assert engine.tokenizer is not None
    assert [a.text for a in answers] == [engine.tokenizer.decode(a.token_ids) for a in answers]
    alone = create_engine(model="tiny", clock="step", dtype="float32").generate(["two two"], sampling)
    assert alone[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize("executor", ["inprocess", "simulated"])
def test_the_same_calls_on_either_executor(executor: str) -> None:
    engine = create_engine(model="tiny", clock="step", dtype="float32", executor=executor)
    ids = engine.add_requests([[1, 2, 3], [4] * 40], SamplingParams(max_tokens=5, ignore_eos=True))
    events = engine.run_until_idle()
    assert sorted(e.request_id for e in events if e.kind == "finished") == ids
    picture = engine.snapshot()
    assert picture.totals.output_tokens == 10
    assert picture.info is not None
    assert picture.info.kind == ("predicted" if executor == "simulated" else "measured")
    assert all(r.kind == picture.info.kind and r.duration_s > 0 and r.flops > 0 for r in engine.records)
    engine.check_invariants()
    engine.close()


def test_a_simulated_engine_runs_on_virtual_time() -> None:
    engine = create_engine(model="tiny", executor="simulated")
    assert engine.config.clock == "virtual"
    engine.generate([[1, 2]], SamplingParams(max_tokens=4, ignore_eos=True))
    assert engine.clock.now() == pytest.approx(sum(r.duration_s for r in engine.records))


def test_knobs_by_name_reach_their_part() -> None:
    config = with_overrides(EngineConfig(), {"model": "tiny", "max_num_seqs": 3, "block_size": 8, "seed": 5})
    assert (config.model, config.scheduler.max_num_seqs, config.cache.block_size, config.seed) == ("tiny", 3, 8, 5)
    with pytest.raises(ConfigError, match="unknown knob max_seqs"):
        with_overrides(EngineConfig(), {"max_seqs": 3})
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        with_overrides(EngineConfig(), {"max_num_seqs": 0})
    with pytest.raises(ConfigError, match="num_swap_blocks is 0"):
        with_overrides(EngineConfig(), {"preemption_mode": "swap"})


def test_a_synthetic_model_of_any_geometry() -> None:
    spec = ModelSpec("made up", 300, 32, 64, 1, 2, 1, 16, max_model_len=64, eos_token_ids=(0,))
    engine = create_engine(model="synthetic", spec=spec, clock="step", dtype="float32", num_blocks=16)
    assert engine.info.spec == spec
    assert len(engine.generate([[299, 5]], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids) == 3
    with pytest.raises(RequestRefused, match="300"):
        engine.add_request([300])


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 4, **fields})


REFUSALS: dict[str, tuple[Any, SamplingParams, dict[str, Any], RefusalReason, str]] = {
    "empty text": ("", sampling(), {}, RefusalReason.EMPTY_PROMPT, "empty"),
    "no tokens": ([], sampling(), {}, RefusalReason.EMPTY_PROMPT, "empty"),
    "longer than the model": ([1] * 600, sampling(), {}, RefusalReason.PROMPT_TOO_LONG, "600 tokens.* 512"),
    "longer than the pool": ([1] * 300, sampling(), {}, RefusalReason.POOL_TOO_SMALL, "75 blocks.* 64"),
    "no output": ([1], sampling(max_tokens=0), {}, RefusalReason.BAD_SAMPLING, "max_tokens is 0"),
    "negative output": ([1], sampling(max_tokens=-1), {}, RefusalReason.BAD_SAMPLING, "max_tokens is -1"),
    "temperature NaN": ([1], sampling(temperature=math.nan), {}, RefusalReason.BAD_SAMPLING, "temperature is nan"),
    "temperature below 0": ([1], sampling(temperature=-0.1), {}, RefusalReason.BAD_SAMPLING, "temperature is -0.1"),
    "top_p above 1": ([1], sampling(top_p=1.5), {}, RefusalReason.BAD_SAMPLING, "top_p is 1.5"),
    "top_k below 0": ([1], sampling(top_k=-3), {}, RefusalReason.BAD_SAMPLING, "top_k is -3"),
    "empty stop string": ([1], sampling(stop=("",)), {}, RefusalReason.BAD_SAMPLING, "empty string"),
    "token out of the vocabulary": ([1, 256], sampling(), {}, RefusalReason.BAD_TOKEN, "256.* 0 to 255"),
    "negative token": ([-1], sampling(), {}, RefusalReason.BAD_TOKEN, "-1"),
    "token that is no number": ([1, "x"], sampling(), {}, RefusalReason.BAD_TOKEN, "'x'"),
    "token that is a truth value": ([True], sampling(), {}, RefusalReason.BAD_TOKEN, "True"),
    "bytes": (b"text", sampling(), {}, RefusalReason.BAD_FIELD, "bytes"),
    "number": (7, sampling(), {}, RefusalReason.BAD_FIELD, "int"),
    "half a character": ("a\ud800", sampling(), {}, RefusalReason.BAD_FIELD, "surrogate"),
    "sampling of another kind": ([1], {"max_tokens": 3}, {}, RefusalReason.BAD_SAMPLING, "dict"),  # type: ignore[dict-item]
    "priority in words": ([1], sampling(), {"priority": "high"}, RefusalReason.BAD_FIELD, "'high'"),
    "no tenant": ([1], sampling(), {"tenant": ""}, RefusalReason.BAD_FIELD, "tenant"),
    "no id": ([1], sampling(), {"request_id": ""}, RefusalReason.BAD_FIELD, "id"),
    "target below 0": ([1], sampling(), {"slo": SLO(ttft_s=-1.0)}, RefusalReason.BAD_FIELD, "ttft_s"),
    "id in use": ([1], sampling(), {"request_id": "used"}, RefusalReason.DUPLICATE_ID, "used"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_with_its_own_message_and_the_engine_goes_on(case: str) -> None:
    prompt, params, fields, reason, message = REFUSALS[case]
    engine = scripted_engine()
    engine.add_request([1, 2], sampling(), request_id="used")
    with pytest.raises(RequestRefused, match=message) as refusal:
        engine.add_request(prompt, params, **fields)
    assert refusal.value.reason is reason
    picture = engine.snapshot()
    assert (picture.totals.submitted, picture.totals.refused) == (2, 1)
    row = picture.ended[0]
    assert (row.status, row.finish_reason, row.why) == ("refused", "refused", str(refusal.value))
    events = engine.run_until_idle()
    refused = [e for e in events if e.kind == "refused"]
    assert [e.message for e in refused] == [str(refusal.value)]
    assert engine.snapshot().totals.finished == 1
    assert engine.snapshot().pool.live == 0


def test_messages_of_different_faults_differ() -> None:
    assert len({message for _, _, _, _, message in REFUSALS.values()}) >= len(REFUSALS) - 1


def test_text_without_a_tokenizer_is_refused_and_so_are_stop_strings() -> None:
    engine = scripted_engine(with_text=False)
    with pytest.raises(RequestRefused, match="no tokenizer; give token ids"):
        engine.add_request("text")
    with pytest.raises(RequestRefused, match="stop_token_ids"):
        engine.add_request([1], SamplingParams(stop=("x",)))
    assert engine.generate([[1]], sampling(ignore_eos=True))[0].text == ""


def test_a_full_queue_refuses() -> None:
    engine = scripted_engine(max_waiting=2, max_num_seqs=1)
    for _ in range(2):
        engine.add_request([1], sampling())
    with pytest.raises(RequestRefused) as refusal:
        engine.add_request([1], sampling())
    assert refusal.value.reason is RefusalReason.QUEUE_FULL
    engine.run_until_idle()


def test_the_limit_of_the_model_can_be_lowered_but_not_raised() -> None:
    for asked, limit in ((32, 32), (10_000, TINY.max_model_len)):
        engine = scripted_engine(max_model_len=asked, num_blocks=1024)
        with pytest.raises(RequestRefused, match=str(limit)):
            engine.add_request([1] * limit, sampling())
        engine.add_request([1] * (limit - 1), sampling(ignore_eos=True))
        assert engine.run_until_idle()[-1].finish_reason is FinishReason.CAPACITY
