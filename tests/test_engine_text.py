"""Text of outputs: complete characters, no stop string, joined stream equal to the decoded output."""

from __future__ import annotations

import random

import pytest

from core.output_processor import TAIL_CHARACTERS, OutputProcessor
from core.outputs import RequestEvent
from core.request import FinishReason, Request, SamplingParams
from core.runtime.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer(256, None, (0,))


def run(output: bytes, sampling: SamplingParams, prompt: bytes = b"ask", *, per_step: int = 1) -> tuple[list[str], bool]:
    """Feed output bytes as tokens; return the streamed texts and whether a stop string ended it."""
    text = OutputProcessor(TOKENIZER)
    request = Request("r", tuple(prompt), sampling, 0.0)
    text.add(request)
    streamed, stopped = [], False
    for step, token_id in enumerate(output):
        stopped = text.text_stop(request, token_id)
        event = RequestEvent("r", "token", float(step), step, token_id)
        text.process([event])
        streamed.append(event.text)
        if stopped:
            break
    end = RequestEvent("r", "finished", 99.0, 99, finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH)
    text.process([end])
    streamed.append(end.text)
    return streamed, stopped


def test_a_stop_string_over_several_tokens_is_never_streamed() -> None:
    streamed, stopped = run(b"one two STOP three", SamplingParams(max_tokens=64, stop=("STOP",)))
    assert stopped
    assert "".join(streamed) == "one two "


def test_a_false_beginning_of_a_stop_string_is_streamed_in_the_end() -> None:
    streamed, stopped = run(b"one STO", SamplingParams(max_tokens=64, stop=("STOP",)))
    assert not stopped
    assert "".join(streamed) == "one STO"
    assert "".join(streamed[:-1]) == "one "


def test_the_first_of_several_stop_strings_counts() -> None:
    streamed, _ = run(b"a, b; c", SamplingParams(max_tokens=64, stop=(";", ", ")))
    assert "".join(streamed) == "a"


def test_min_tokens_lets_early_stop_strings_pass() -> None:
    streamed, stopped = run(b"a.b.c", SamplingParams(max_tokens=64, min_tokens=3, stop=(".",)))
    assert stopped
    assert "".join(streamed) == "a.b"


def test_a_stop_token_is_counted_and_has_no_text() -> None:
    streamed, _ = run(b"abX", SamplingParams(max_tokens=64, stop_token_ids=(ord("X"),)))
    assert "".join(streamed) == "ab"
    streamed, _ = run(b"aXb", SamplingParams(max_tokens=64, min_tokens=3, stop_token_ids=(ord("X"),)))
    assert "".join(streamed) == "aXb"  # below min_tokens it is an ordinary token


@pytest.mark.parametrize("seed", range(40))
def test_joined_stream_is_the_text_up_to_the_first_stop_string(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab가é😀 ") for _ in range(60))
    stops = tuple("".join(rng.choice("ab가é") for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(0, 2)))
    streamed, stopped = run(text.encode(), SamplingParams(max_tokens=999, stop=stops))
    cuts = [at for at in (text.find(s) for s in stops) if at >= 0]
    # The stop string that is complete first ends the output; of those complete at the same token the one that begins first.
    if cuts:
        first_end = min(text.find(s) + len(s) for s in stops if s in text)
        expected = text[: min(at for at in (text[:first_end].find(s) for s in stops) if at >= 0)]
        assert (stopped, "".join(streamed)) == (True, expected)
    else:
        assert (stopped, "".join(streamed)) == (False, text)
    assert all(not any(s in "".join(streamed[:n]) for s in stops) for n in range(len(streamed) + 1))


def test_the_tail_is_the_end_of_what_was_streamed_and_bounded() -> None:
    text = OutputProcessor(TOKENIZER)
    request = Request("r", (1,), SamplingParams(), 0.0)
    text.add(request)
    sent = ""
    for step in range(500):
        token_id = 97 + step % 26
        text.text_stop(request, token_id)
        event = RequestEvent("r", "token", 0.0, step, token_id)
        text.process([event])
        sent += event.text
    assert text.tail("r") == sent[-TAIL_CHARACTERS:]
    text.forget("r")
    assert text.tail("r") == ""


def test_without_a_tokenizer_there_is_no_text_and_no_stop() -> None:
    text = OutputProcessor(None)
    request = Request("r", (1,), SamplingParams(), 0.0)
    text.add(request)
    assert text.text_stop(request, 5) is False
    event = RequestEvent("r", "token", 0.0, 0, 5)
    text.process([event])
    assert event.text == ""
