"""Answers on their way to readers: one bounded, append-only list of pieces for each followed request.

    engine thread: append, then swap the end mark, then wake   |   readers: copy from their own cursor, no lock

A reader that wants to be woken registers a callback that must not block (`Event.set`,
`loop.call_soon_threadsafe`). A slow or dead reader costs the engine nothing and misses nothing, because it
comes back with its cursor. The number of pieces of a request is bounded by its max_tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from core.errors import UnknownRequest
from core.outputs import RequestEvent, TopLogprobs

_ENDS = ("finished", "cancelled", "refused")


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One token as the reader gets it; `text` may be empty while a character is incomplete."""

    token_id: int | None
    text: str
    time_s: float
    logprobs: TopLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How the answer ended: kind is "finished", "cancelled" or "refused"; reason as in FinishReason."""

    kind: str
    reason: str
    message: str
    time_s: float


class RequestStream:
    """The answer to one request; written by the engine's thread, read by any."""

    def __init__(self, request_id: str, num_prompt_tokens: int = 0) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self._pieces: list[StreamPiece] = []
        self._end: StreamEnd | None = None
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def end(self) -> StreamEnd | None:
        """None while more may come."""
        return self._end

    @property
    def num_tokens(self) -> int:
        return sum(p.token_id is not None for p in self._pieces[:])

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join([p.text for p in self._pieces[:]])

    def since(self, cursor: int) -> tuple[list[StreamPiece], int]:
        """Pieces from `cursor` on, and the cursor for the next call. Read `end` before: no piece follows it."""
        pieces = self._pieces[cursor:]
        return pieces, cursor + len(pieces)

    def listen(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called after each change, in the engine's thread; returns a function that ends it."""
        self._listeners = (*self._listeners, callback)

        def stop() -> None:
            self._listeners = tuple(c for c in self._listeners if c is not callback)

        return stop

    def wait(self, cursor: int, timeout_s: float) -> bool:
        """Wait in a thread of one's own until there is something after `cursor`, or an end; False if not in time."""
        changed = threading.Event()
        stop = self.listen(changed.set)
        try:
            if len(self._pieces) > cursor or self._end is not None:
                return True
            return changed.wait(timeout_s)
        finally:
            stop()

    def push(self, piece: StreamPiece, *, wake: bool = True) -> None:
        """Engine's thread only. Without `wake` readers are told later."""
        self._pieces.append(piece)
        if wake:
            self.wake()

    def finish(self, end: StreamEnd, *, wake: bool = True) -> None:
        """Engine's thread only; the first end counts."""
        if self._end is None:
            self._end = end
            if wake:
                self.wake()

    def wake(self) -> None:
        """Tell the readers. Engine's thread only."""
        for callback in self._listeners:
            callback()


class StreamHub:
    """The followed requests, at most `max_streams`: the oldest ended one makes room, a running one never does."""

    def __init__(self, max_streams: int) -> None:
        self._max = max_streams
        self._streams: dict[str, RequestStream] = {}

    def open(self, request_id: str, num_prompt_tokens: int = 0) -> RequestStream:
        """Begin to follow a request. Engine's thread only."""
        if len(self._streams) >= self._max:
            for old_id, stream in list(self._streams.items()):
                if stream.end is not None:
                    del self._streams[old_id]
                    break
        stream = RequestStream(request_id, num_prompt_tokens)
        self._streams[request_id] = stream
        return stream

    @property
    def num_open(self) -> int:
        """Followed requests that have not ended. Engine's thread only."""
        return sum(s.end is None for s in self._streams.values())

    def get(self, request_id: str) -> RequestStream:
        """The stream of a followed request.

        Raises:
            UnknownRequest: if it was never followed, or ended long ago.
        """
        stream = self._streams.get(request_id)
        if stream is None:
            raise UnknownRequest(f"no answer is kept for request {request_id}; only the latest submitted ones are")
        return stream

    def on_events(self, events: Iterable[RequestEvent]) -> None:
        """Pass the events of a step on to the followed requests, then wake their readers. Engine's thread only.

        Readers are woken once all is written, so that an answer's last token and its end are seen together.
        """
        streams = self._streams
        changed: dict[str, RequestStream] = {}
        for event in events:
            stream = streams.get(event.request_id)
            if stream is None:
                continue
            if event.kind == "token" or (event.kind in _ENDS and event.text):
                stream.push(StreamPiece(event.token_id, event.text, event.time_s, event.logprobs), wake=False)
            if event.kind in _ENDS:
                reason = event.finish_reason.value if event.finish_reason else event.kind
                stream.finish(StreamEnd(event.kind, reason, event.message, event.time_s), wake=False)
            changed[event.request_id] = stream
        for stream in changed.values():
            stream.wake()

    def end_all(self, message: str, time_s: float) -> None:
        """End every open stream, e.g. because the engine was reset. Engine's thread only."""
        for stream in self._streams.values():
            if stream.end is None:
                stream.finish(StreamEnd("cancelled", "cancelled", message, time_s))
