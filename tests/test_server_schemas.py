"""Bodies of completion calls: what is read, and what each refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from core.server.schemas import ApiError, parse_call


def test_a_completion_call_is_read_whole() -> None:
    body = {"model": "m", "prompt": "Hello", "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"max_tokens": 7, "min_tokens": 2, "temperature": 0, "top_p": 0.9, "top_k": -1, "seed": 3, "stop": "\n"}
    body |= {"logprobs": 2, "user": "team-a", "priority": -1, "ignore_eos": True}
    call = parse_call(body, chat=False)
    assert call.prompts == ("Hello",)
    assert call.sampling.max_tokens == 7
    assert call.sampling.top_k == 0, "-1 is off, as in vLLM"
    assert (call.sampling.seed, call.sampling.stop, call.sampling.ignore_eos, call.sampling.min_tokens) == (3, ("\n",), True, 2)
    assert (call.n, call.stream, call.include_usage, call.logprobs) == (2, True, True, 2)
    assert (call.tenant, call.priority) == ("team-a", -1)


def test_prompts_may_be_texts_or_token_ids() -> None:
    assert parse_call({"prompt": [1, 2, 3]}, chat=False).prompts == ((1, 2, 3),)
    assert parse_call({"prompt": ["a", "b"]}, chat=False).prompts == ("a", "b")
    assert parse_call({"prompt": [[1], [2, 3]]}, chat=False).prompts == ((1,), (2, 3))


def test_a_chat_call_reads_text_parts_and_the_new_length_field() -> None:
    body = {
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        "max_completion_tokens": 5,
        "logprobs": True,
        "top_logprobs": 3,
    }
    call = parse_call(body, chat=True)
    assert call.messages == ({"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"})
    assert (call.sampling.max_tokens, call.logprobs, call.sampling.logprobs) == (5, 3, 3)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": 5}, "prompt", "a text"),
        ({"prompt": []}, "prompt", "a text"),
        ({"prompt": ["a", 5]}, "prompt", "cannot be read"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "from 1"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature", "a number"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "a number"),
        ({"prompt": "a", "n": 0}, "n", "from 1"),
        ({"prompt": "a", "n": True}, "n", "from 1"),
        ({"prompt": "a", "stop": [""]}, "stop", "none empty"),
        ({"prompt": "a", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "a", "min_tokens": 9, "max_tokens": 5}, "min_tokens", "from 0 to 5"),
        ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
        ({"prompt": "a", "presence_penalty": 1}, "presence_penalty", "not supported"),
    ],
)
def test_refusals_name_the_field(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        parse_call(body, chat=False)
    assert caught.value.status == 400
    assert caught.value.body()["error"]["param"] == param


def test_a_body_that_is_no_object_and_messages_without_a_role() -> None:
    with pytest.raises(ApiError, match="an object is needed"):
        parse_call([1], chat=False)
    with pytest.raises(ApiError, match="message 0 needs a role"):
        parse_call({"messages": [{"content": "x"}]}, chat=True)
    with pytest.raises(ApiError, match="at least one message"):
        parse_call({"messages": []}, chat=True)
