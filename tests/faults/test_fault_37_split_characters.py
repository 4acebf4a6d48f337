"""Fault 37: characters spread over several tokens arrive as replacement marks, doubled or lost; the prompt is streamed."""

from __future__ import annotations

import pytest

from core.request import SamplingParams
from tests.engine_cases import scripted_engine, texts_of, tokens_of

TEXTS = ["한국어 텍스트", "😀👩‍👩‍👧 emoji", "naïve café – Ångström", "混合 mixed 文字 text", "plain"]
MARK = "�"


@pytest.mark.parametrize("text", TEXTS)
def test_the_joined_stream_is_the_decoded_output(text: str) -> None:
    output = list(text.encode())
    engine = scripted_engine({"a": output})
    engine.add_request("the prompt", SamplingParams(max_tokens=len(output)), request_id="a")
    events = engine.run_until_idle()
    assert texts_of(events)["a"] == text
    assert tokens_of(events)["a"] == output
    assert not any(MARK in e.text for e in events)


@pytest.mark.parametrize("text", TEXTS[:4])
def test_an_output_that_ends_within_a_character_has_one_mark_at_the_very_end(text: str) -> None:
    whole = text.encode()
    cut = next(n for n in range(len(whole) - 1, 0, -1) if MARK in whole[:n].decode(errors="replace"))
    engine = scripted_engine({"a": list(whole[:cut])})
    engine.add_request("the prompt", SamplingParams(max_tokens=cut), request_id="a")
    events = engine.run_until_idle()
    assert texts_of(events)["a"] == whole[:cut].decode(errors="replace")
    assert [e.kind for e in events if MARK in e.text] == ["finished"]
    assert engine.tokenizer is not None
    assert texts_of(events)["a"] == engine.tokenizer.decode(list(whole[:cut]))


def test_a_prompt_that_ends_within_a_character_is_not_streamed() -> None:
    character = "é".encode()
    engine = scripted_engine({"a": [character[1], ord("x")]})
    engine.add_request([ord("c"), character[0]], SamplingParams(max_tokens=2), request_id="a")
    events = engine.run_until_idle()
    assert engine.tokenizer is not None
    assert texts_of(events)["a"] == engine.tokenizer.decode([character[1], ord("x")], [ord("c"), character[0]])
    assert "c" not in texts_of(events)["a"]
    assert MARK not in texts_of(events)["a"]


def test_the_text_of_a_cancelled_request_is_complete_up_to_its_last_token() -> None:
    output = list("한국".encode())
    engine = scripted_engine({"a": output})
    engine.add_request("p", SamplingParams(max_tokens=len(output)), request_id="a")
    events = [e for _ in range(4) for e in engine.step()]
    engine.cancel("a")
    events += engine.step()
    assert events[-1].kind == "cancelled"
    assert texts_of(events)["a"] == bytes(output[:4]).decode(errors="replace")
