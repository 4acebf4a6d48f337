"""Text from tokens, one at a time: never half a character, never part of a stop string that may still complete.

    token -> bytes -> [incremental UTF-8] -> text -> [stop scanner: holds back what may become a stop string] -> stream

The joined stream equals the decoded output, cut before the first stop string. Replacement marks stand only for bytes
that are no character in any continuation.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
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


class ByteDetokenizer:
    """For vocabularies whose tokens are byte strings.

    Args:
        token_bytes: bytes of each token id; empty for control tokens.
        prompt_tail: bytes at the end of the prompt that are an unfinished character. A character that begins there and
            ends in the output belongs to the stream; if the output does not finish it, nothing of it is shown.
    """

    def __init__(self, token_bytes: Sequence[bytes], prompt_tail: bytes = b"") -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._owes_prompt = bool(unfinished_tail(prompt_tail))
        self._decoder.decode(unfinished_tail(prompt_tail))

    def push(self, token_id: int) -> str:
        table = self._token_bytes
        return self._clean(self._decoder.decode(table[token_id] if 0 <= token_id < len(table) else b""))

    def finish(self) -> str:
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
