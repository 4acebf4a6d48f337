"""From token ids to text that may be shown, for all live requests.

    token -> TextStream (incremental detokenizer, stop strings) -> text of the "token" event
    end   -> rest of the text                                   -> text of the ending event

Law: the joined texts of a request's events are its decoded output, cut before a stop string. A token of
stop_token_ids ends the output, is counted as output and has no text (as the model's end token, a control token).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from core.outputs import RequestEvent
from core.request import Request
from core.runtime.detokenizer import Detokenizer, TextStream

TAIL_CHARACTERS = 160
ENDING_EVENTS = frozenset({"finished", "cancelled", "refused"})


class TextCodec(Protocol):
    """What the engine needs of a tokenizer; `core.runtime.tokenizer` has the real ones."""

    def encode(self, text: str) -> list[int]:
        """Prompt tokens of a text; control tokens spelled out in it stay text."""
        ...

    def decode(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        """Text of output tokens."""
        ...

    def new_detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental decoder for one request's output."""
        ...


class _LiveText:
    """The text of one live request: what is ready to go, and the tail that has gone."""

    __slots__ = ("min_tokens", "pushed", "ready", "silent_ids", "stream", "tail")

    def __init__(self, stream: TextStream, silent_ids: frozenset[int], min_tokens: int) -> None:
        self.stream = stream
        self.silent_ids = silent_ids
        self.min_tokens = min_tokens
        self.pushed = 0
        self.ready = ""
        self.tail = ""

    def take(self) -> str:
        text, self.ready = self.ready, ""
        if text:
            self.tail = (self.tail + text)[-TAIL_CHARACTERS:]
        return text


class OutputProcessor:
    """Text of all live requests.

    Args:
        tokenizer: None for an engine that knows only token ids; every text is then empty.
    """

    def __init__(self, tokenizer: TextCodec | None) -> None:
        self.tokenizer = tokenizer
        self._live: dict[str, _LiveText] = {}

    def add(self, request: Request) -> None:
        """Begin the text of a request."""
        if self.tokenizer is None:
            return
        sampling = request.sampling
        stream = TextStream(self.tokenizer.new_detokenizer(request.prompt_token_ids), sampling.stop, sampling.min_tokens)
        self._live[request.request_id] = _LiveText(stream, frozenset(sampling.stop_token_ids), sampling.min_tokens)

    def text_stop(self, request: Request, token_id: int) -> bool:
        """The scheduler's question for each new token: does it complete a stop string?"""
        live = self._live.get(request.request_id)
        if live is None:
            return False
        live.pushed += 1
        if token_id in live.silent_ids and live.pushed >= live.min_tokens:
            return False
        text = live.stream.push(token_id)
        if text:
            live.ready += text
        return live.stream.stopped

    def tail(self, request_id: str) -> str:
        """The last characters that were streamed, at most 160."""
        live = self._live.get(request_id)
        return live.tail if live is not None else ""

    def process(self, events: Iterable[RequestEvent]) -> None:
        """Fill in the texts of events. Call `forget` for ended requests once their tail was read."""
        for event in events:
            live = self._live.get(event.request_id)
            if live is not None:
                text = ""
                if event.kind == "token":
                    text = live.take()
                elif event.kind in ENDING_EVENTS:
                    live.ready += live.stream.finish()
                    text = live.take()
                if text:
                    # The step's own fresh object, not yet shown to anyone; a copy would cost as much as all the rest here.
                    object.__setattr__(event, "text", text)

    def forget(self, request_id: str) -> None:
        """Drop the text of an ended request."""
        self._live.pop(request_id, None)
