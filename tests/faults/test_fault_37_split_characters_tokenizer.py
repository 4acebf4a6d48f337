"""Kind: characters over several tokens arrive as replacement marks, doubled or lost; at the tokenizer's level."""

from __future__ import annotations

import pytest

from core.runtime.detokenizer import REPLACEMENT
from core.runtime.tokenizer import ByteTokenizer, LibraryTokenizer
from tests.runtime_texts import tiny_bpe

TEXTS = ("안녕 세계", "😀👩‍👩‍👧‍👦", "naïve café", "漢字 and Latin ñ", "a")
BYTE = ByteTokenizer(256, None, (0,))


def stream(tokenizer: ByteTokenizer | LibraryTokenizer, ids: list[int], prompt: tuple[int, ...] = ()) -> tuple[list[str], str]:
    detokenizer = tokenizer.new_detokenizer(prompt)
    return [detokenizer.push(i) for i in ids], detokenizer.finish()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [BYTE, tiny_bpe()], ids=["bytes", "bpe"])
def test_split_characters_arrive_whole(text: str, tokenizer: ByteTokenizer | LibraryTokenizer) -> None:
    ids = tokenizer.encode(text)
    pieces, rest = stream(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids) == text
    assert REPLACEMENT not in "".join(pieces)


@pytest.mark.parametrize("text", TEXTS[:4])
def test_an_end_in_the_middle_of_a_character(text: str) -> None:
    data = list(text.encode())
    middle = next(n for n in range(len(data) - 1, 0, -1) if data[n] & 0xC0 == 0x80)
    ids = data[:middle]
    pieces, rest = stream(BYTE, ids)
    assert REPLACEMENT not in "".join(pieces)
    assert rest == REPLACEMENT
    assert "".join(pieces) + rest == BYTE.decode(ids) == bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_that_ends_in_the_middle_of_a_character(cut: int) -> None:
    whole = list("see 😀 there".encode())
    start = whole.index(0xF0)
    prompt, output = tuple(whole[: start + cut]), whole[start + cut :]
    pieces, rest = stream(BYTE, output, prompt)
    streamed = "".join(pieces) + rest
    assert streamed == BYTE.decode(output, prompt) == "😀 there"
    assert REPLACEMENT not in streamed
    assert "see" not in streamed


def test_no_text_of_the_prompt_or_of_control_tokens_in_the_stream() -> None:
    tokenizer = tiny_bpe()
    pieces, rest = stream(tokenizer, [*tokenizer.encode("hi"), 2], tuple(tokenizer.encode("the prompt")))
    assert "".join(pieces) + rest == "hi"
