"""Text from tokens, one at a time: never half a character, never part of a stop string that may still complete.

    token -> bytes -> [incremental UTF-8] -> text -> [stop scanner: holds back what may become a stop string] -> stream

The joined stream equals the decoded output, cut before the first stop string. Replacement marks stand only for bytes
that are no character in any continuation.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

REPLACEMENT = "�"


class Detokenizer(Protocol):
    """Incremental text of one request's output."""

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes, possibly none."""
        ...

    def finish(self) -> str:
        """Return what is left; bytes that never became a character come out as one replacement mark."""
        ...


class ByteVocabulary:
    """Bytes of each token id, and the text of those that are whole characters by themselves.

    Args:
        token_bytes: bytes of each token id; empty for control tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.token_bytes = token_bytes

    def __len__(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def texts(self) -> list[str | None]:
        """Text of each token id; None where its bytes begin or end within a character."""
        return [_whole_text(data) for data in self.token_bytes]

    def tail(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of the last tokens, enough for an unfinished character."""
        table = self.token_bytes
        return b"".join(table[t] for t in token_ids[-4:] if 0 <= t < len(table))


def _whole_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class ByteDetokenizer:
    """For vocabularies whose tokens are byte strings.

    Between two characters the text of most tokens is known beforehand (`ByteVocabulary.texts`); the decoder is asked
    only where a character lies across tokens.

    Args:
        vocabulary: the tokens; a plain list of their bytes will do.
        prompt_tail: bytes at the end of the prompt that are an unfinished character. A character that begins there and
            ends in the output belongs to the stream; if the output does not finish it, nothing of it is shown.

    Attributes:
        is_between: True between two characters; the next text is then that of its token alone, where it has one.
    """

    __slots__ = ("_decoder", "_owes_prompt", "is_between", "vocabulary")

    def __init__(self, vocabulary: ByteVocabulary | Sequence[bytes], prompt_tail: bytes = b"") -> None:
        self.vocabulary = vocabulary if isinstance(vocabulary, ByteVocabulary) else ByteVocabulary(vocabulary)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        owed = unfinished_tail(prompt_tail)
        self._owes_prompt = bool(owed)
        self.is_between = not owed
        self._decoder.decode(owed)

    def push(self, token_id: int) -> str:
        table = self.vocabulary.token_bytes
        text = self._clean(self._decoder.decode(table[token_id] if 0 <= token_id < len(table) else b""))
        self.is_between = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        self.is_between = True
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        if text and self._owes_prompt:
            self._owes_prompt = False
            if text[0] == REPLACEMENT:
                return text[1:]
        return text


class WindowDetokenizer:
    """For vocabularies that can only be decoded as a list (sentencepiece with byte fallback).

    Decodes a short window of the latest tokens before and after each new one and emits the difference, unless it ends
    in a replacement mark, which a later token may still turn into a character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._known = 0  # tokens at the start of the window whose text is out already

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._known :]
        self._known = len(self._window)
        return after[len(before) :]

    def finish(self) -> str:
        before, after = self._texts()
        self._window, self._known = [], 0
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._window[: self._known]), self._decode(self._window)


class StopScanner:
    """Finds the first of several strings in a stream and holds back what may be its beginning.

    Args:
        stops: strings that end the output; none of them is part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Return the text that is safe to show. After a match `found` is the stop string and nothing more comes.

        Args:
            armed: False passes everything through unlooked at (below min_tokens); a stop string that begins there
                does not count.
        """
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        if not armed:
            return self.flush()
        hits = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if hits:
            place, self.found = min(hits)
            shown, self._held = self._held[:place], ""
            return shown
        keep = self._possible_beginning()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """Return what was held back (the output ended without completing a stop string)."""
        shown, self._held = self._held, ""
        return shown

    def _possible_beginning(self) -> int:
        longest = min(max(len(s) for s in self._stops) - 1, len(self._held))
        for size in range(longest, 0, -1):
            tail = self._held[-size:]
            if any(s.startswith(tail) for s in self._stops):
                return size
        return 0


class TextStream:
    """The visible text of one request: detokenizer and stop scanner in a row.

    Args:
        detokenizer: fresh, of this request.
        stops: strings that end the output.
        min_tokens: stop strings count only in text of later tokens than this many.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._min_tokens = min_tokens
        self._pushed = 0

    @property
    def detokenizer(self) -> Detokenizer:
        """The first half."""
        return self._detokenizer

    @property
    def stopped(self) -> bool:
        """True once a stop string is complete."""
        return self._scanner.found is not None

    def push(self, token_id: int) -> str:
        """Take the next output token and return the text to show now."""
        self._pushed += 1
        return self._scanner.push(self._detokenizer.push(token_id), armed=self._pushed >= self._min_tokens)

    def finish(self) -> str:
        """Return the rest of the text; empty after a stop string."""
        rest = self._scanner.push(self._detokenizer.finish(), armed=self._pushed >= self._min_tokens)
        return rest + self._scanner.flush()


def unfinished_tail(data: bytes) -> bytes:
    """Return the bytes at the end of `data` that begin a UTF-8 character without ending it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    pending: bytes = decoder.getstate()[0]
    return pending
