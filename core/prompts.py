"""Where the tokens of a generated prompt come from: the project's own text, or random ids.

    text     a window of the tokenised text that begins at a sentence; wraps round at the end
    question chat opening + filler text + question + chat closing, exactly as long as asked for
    random   uniform token ids, for loads in which the content does not matter

Every source is immutable and takes the random generator as an argument.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from core.errors import ConfigError

PROMPTS_FILE = Path(__file__).resolve().parent.parent / "assets" / "prompts.txt"
QUESTION_MARKER = "=== questions ==="


class PromptSource(Protocol):
    """Makes prompts of an exact length."""

    def cut(self, rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
        """Return `num_tokens` token ids that are drawn with `rng`."""
        ...

    def prefix(self, index: int, num_tokens: int) -> tuple[int, ...]:
        """Return the shared prefix number `index`; the same arguments give the same ids, other indexes other ids."""
        ...


class RandomPrompts:
    """Uniform token ids from `low` (keeps off the special tokens at the start) to vocab_size - 1.

    Raises:
        ConfigError: if that range is empty.
    """

    def __init__(self, vocab_size: int, low: int = 3) -> None:
        if not 0 <= low < vocab_size:
            raise ConfigError(f"random prompts need a token id from {low} to {vocab_size - 1}, an empty range")
        self._low = low
        self._high = vocab_size

    def cut(self, rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
        return tuple(rng.integers(self._low, self._high, size=num_tokens).tolist())

    def prefix(self, index: int, num_tokens: int) -> tuple[int, ...]:
        return self.cut(np.random.default_rng([index, num_tokens]), num_tokens)


class StandInPrompts:
    """Prompts for simulations, in which no model reads the ids: a window of fixed random ids behind one drawn first id.

    A prefix cache finds what it would find with random prompts, nothing but the shared prefixes: two windows begin with
    the same block with a likelihood of 2**-43. The first id may lie beyond any vocabulary. A prompt costs one draw.
    """

    _ring: tuple[int, ...] = tuple(np.random.default_rng(0).integers(3, 32_000, size=1 << 14).tolist())

    def cut(self, rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
        drawn = int(rng.bit_generator.random_raw())
        return self._window(drawn & 0x7FFFFFFF, (drawn >> 31) & 0xFFF, num_tokens)

    def prefix(self, index: int, num_tokens: int) -> tuple[int, ...]:
        return self._window(index, index * 7919 % len(self._ring), num_tokens)

    def _window(self, first: int, start: int, num_tokens: int) -> tuple[int, ...]:
        ring, stop = self._ring, start + num_tokens - 1
        if stop > len(ring):
            ring = ring * (stop // len(ring) + 1)
        return (first, *ring[start:stop])


class TextPrompts:
    """Windows of a tokenised text, or chat prompts round a question.

    Args:
        sentences: token ids of each sentence of the text, in order.
        questions: token ids of each question; empty for plain text windows.
        chat_open, chat_close: token ids that the chat template puts round a user's message.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        questions: Sequence[Sequence[int]] = (),
        chat_open: Sequence[int] = (),
        chat_close: Sequence[int] = (),
    ) -> None:
        self._starts: list[int] = []
        self._ids: list[int] = []
        for sentence in sentences:
            if sentence:
                self._starts.append(len(self._ids))
                self._ids.extend(sentence)
        if not self._ids:
            raise ConfigError("the text for prompts has no token; give a text file with at least one sentence")
        self._questions = tuple(tuple(q) for q in questions if q)
        self._open = tuple(chat_open)
        self._close = tuple(chat_close)

    def _window(self, start: int, num_tokens: int) -> list[int]:
        ids = self._ids[start : start + num_tokens]
        while len(ids) < num_tokens:
            ids.extend(self._ids[: num_tokens - len(ids)])
        return ids

    def cut(self, rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
        start = self._starts[int(rng.integers(len(self._starts)))]
        if self._questions:
            question = self._questions[int(rng.integers(len(self._questions)))]
            room = num_tokens - len(self._open) - len(question) - len(self._close)
            if room >= 0:
                return (*self._open, *self._window(start, room), *question, *self._close)
        return tuple(self._window(start, num_tokens))

    def prefix(self, index: int, num_tokens: int) -> tuple[int, ...]:
        # Spread the prefixes over the text: neighbours would share their first block only by accident.
        at = bisect_left(self._starts, (index * 7919) % len(self._ids)) % len(self._starts)
        return tuple(self._window(self._starts[at], num_tokens))


def split_text(text: str) -> tuple[list[str], list[str]]:
    """Split the prompt file into sentences of prose and questions (one a line below the marker)."""
    prose, _, tail = text.partition(QUESTION_MARKER)
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", prose) if s.strip()]
    return sentences, [line.strip() for line in tail.splitlines() if line.strip()]


def chat_frame(encode: Callable[[str], Sequence[int]], chat: Callable[[str], Sequence[int]]) -> tuple[list[int], list[int]]:
    """Find what a chat template puts before and after a user's message; both are empty if that cannot be told apart.

    Args:
        encode: text to token ids, without special tokens.
        chat: a user's message to the whole prompt.
    """
    mark = list(encode("Q:7"))
    whole = list(chat("Q:7"))
    for at in range(len(whole) - len(mark) + 1):
        if mark and whole[at : at + len(mark)] == mark:
            return whole[:at], whole[at + len(mark) :]
    return [], []


def text_prompts(
    encode: Callable[[str], Sequence[int]],
    text: str | None = None,
    *,
    with_questions: bool = True,
    chat_open: Sequence[int] = (),
    chat_close: Sequence[int] = (),
) -> TextPrompts:
    """Tokenise a prompt text (the project's own by default).

    Args:
        encode: text to token ids, without special tokens.

    Raises:
        ConfigError: if the file is missing or holds no text.
    """
    if text is None:
        if not PROMPTS_FILE.is_file():
            raise ConfigError(f"the text for prompts is missing: {PROMPTS_FILE}")
        text = PROMPTS_FILE.read_text(encoding="utf-8")
    sentences, questions = split_text(text)
    return TextPrompts(
        [encode(f"{s} ") for s in sentences],
        [encode(q) for q in questions] if with_questions else (),
        chat_open,
        chat_close,
    )
