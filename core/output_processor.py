"""From token ids to text that may be shown, for all live requests.

    token -> TextStream (incremental detokenizer, stop strings) -> text of the "token" event
    tokens of many rows -> a table of texts, where nothing lies across tokens          -> texts of their events
    end   -> rest of the text                                   -> text of the ending event

Law: the joined texts of a request's events are its decoded output, cut before a stop string. A token of
stop_token_ids ends the output, is counted as output and has no text (as the model's end token, a control token).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from core.outputs import RequestEvent
from core.request import Request
from core.runtime.detokenizer import ByteDetokenizer, Detokenizer, TextStream

TAIL_CHARACTERS = 160
SHORTEN_STEPS = 32
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
    """The text of one live request: what is ready to go, and the tail that has gone.

    Attributes:
        quick: the byte decoder, where nothing but it decides what is shown (no stop string, no token without text).
    """

    __slots__ = ("min_tokens", "pushed", "quick", "ready", "silent_ids", "stream", "tail")

    def __init__(self, stream: TextStream, silent_ids: frozenset[int], min_tokens: int, has_stops: bool) -> None:
        self.stream = stream
        self.silent_ids = silent_ids
        self.min_tokens = min_tokens
        self.pushed = 0
        self.ready = ""
        self.tail = ""
        decoder = stream.detokenizer
        self.quick = decoder if isinstance(decoder, ByteDetokenizer) and not (has_stops or silent_ids) else None

    def push(self, token_id: int) -> bool:
        """Take a token; True if it completes a stop string."""
        self.pushed += 1
        if token_id in self.silent_ids and self.pushed >= self.min_tokens:
            return False
        text = self.stream.push(token_id)
        if text:
            self.ready += text
        return self.stream.stopped

    def take(self) -> str:
        text, self.ready = self.ready, ""
        return text

    def take_with(self, token_id: int) -> tuple[str, bool]:
        stopped = self.push(token_id)
        return self.take(), stopped


class OutputProcessor:
    """Text of all live requests.

    Args:
        tokenizer: None for an engine that knows only token ids; every text is then empty.
    """

    def __init__(self, tokenizer: TextCodec | None) -> None:
        self.tokenizer = tokenizer
        self._live: dict[str, _LiveText] = {}
        self._owing: set[str] = set()  # ids with text that no event has taken yet
        self._ids: Sequence[str] = ()
        self._rows = _Rows(())  # of _ids

    def add(self, request: Request) -> None:
        """Begin the text of a request."""
        if self.tokenizer is None:
            return
        sampling = request.sampling
        stream = TextStream(self.tokenizer.new_detokenizer(request.prompt_token_ids), sampling.stop, sampling.min_tokens)
        silent_ids = frozenset(sampling.stop_token_ids)
        self._live[request.request_id] = _LiveText(stream, silent_ids, sampling.min_tokens, bool(sampling.stop))
        self._dissolve()

    def text_stop(self, request: Request, token_id: int) -> bool:
        """The scheduler's question for each new token: does it complete a stop string?"""
        live = self._live.get(request.request_id)
        if live is None:
            return False
        stopped = live.push(token_id)
        self._rows.within = None
        if live.ready:
            self._owing.add(request.request_id)
        return stopped

    def text_rows(self, request_ids: Sequence[str], token_ids: Sequence[int]) -> tuple[list[str], Sequence[int]]:
        """`text_stop` and `process` for one new token of each of many requests, each of them at most once.

        Returns the text that each may show now, and the rows that completed a stop string.
        """
        if request_ids != self._ids:
            self._settle()
            self._rows, self._ids = _Rows([self._live.get(i) for i in request_ids]), request_ids
        rows = self._rows
        table = rows.table
        texts: list[str | None]
        if 0 <= min(token_ids) <= max(token_ids) < len(table):
            texts = list(map(table.__getitem__, token_ids))
        else:
            texts = [None] * len(token_ids)
        stopped: list[int] = []
        for at in rows.to_visit(texts):
            texts[at], has_stopped = rows.push(at, token_ids[at])
            if has_stopped:
                stopped.append(at)
        rows.follow(texts)  # type: ignore[arg-type]
        return texts, stopped  # type: ignore[return-value]

    def tail(self, request_id: str) -> str:
        """The last characters that were streamed, at most 160."""
        self._settle()
        live = self._live.get(request_id)
        return live.tail if live is not None else ""

    def tails_later(self, request_ids: Sequence[str]) -> Callable[[], list[str]]:
        """`tail` of each of many requests as they are now, put together by whoever calls what this returns."""
        if request_ids == self._ids:
            return self._rows.tails_later()
        self._settle()
        tails = [live.tail if live is not None else "" for live in map(self._live.get, request_ids)]
        return partial(_itself, tails)

    @property
    def is_owing(self) -> bool:
        """True if an event will have to take text that was pushed before it."""
        return bool(self._owing)

    def process(self, events: Iterable[RequestEvent]) -> None:
        """Fill in the texts of events. Call `forget` for ended requests once their tail was read."""
        owing = self._owing
        for event in [e for e in events if e.kind in ENDING_EVENTS or e.request_id in owing]:
            live = self._live.get(event.request_id)
            if live is None:
                continue
            if event.kind in ENDING_EVENTS:
                live.ready += live.stream.finish()
            elif event.kind != "token":
                continue
            owing.discard(event.request_id)
            text = live.take()
            if text:
                self._dissolve()
                live.tail = (live.tail + text)[-TAIL_CHARACTERS:]
                # The step's own fresh object, not yet shown to anyone; a copy would cost as much as all the rest here.
                object.__setattr__(event, "text", text)

    def forget(self, request_id: str) -> None:
        """Drop the text of an ended request."""
        self._dissolve()
        self._live.pop(request_id, None)
        self._owing.discard(request_id)

    def _settle(self) -> None:
        """Write the tails of the batch back to its requests."""
        rows = self._rows
        if rows.is_ahead:
            rows.is_ahead = False
            for live, tail in zip(rows.lives, rows.tails_later()(), strict=True):
                if live is not None:
                    live.tail = tail

    def _dissolve(self) -> None:
        """Make the rows of the batch anew with the next step: one of them changes by itself."""
        self._settle()
        self._rows, self._ids = _Rows(()), ()


class _Rows:
    """The texts of the rows of a batch, kept while the same requests make it up.

    Attributes:
        lives: one a row, None for a request without text.
        table: texts of the tokens, of the vocabulary that the quick rows share; empty if there are none.
        special: rows that are not quick.
        within: quick rows that are within a character, so that their next text is not that of its token; None if each must
            be asked.
        tails, shown: of each row the tail as it was, and what the steps since then have shown; neither list is changed once
            a reader may have it. is_ahead: the tails of `lives` are older.
    """

    __slots__ = ("is_ahead", "lives", "shown", "special", "table", "tails", "within")

    def __init__(self, lives: Sequence[_LiveText | None]) -> None:
        self.lives = lives
        quick = [live.quick for live in lives if live is not None and live.quick is not None]
        shared = quick[0].vocabulary if quick else None
        self.special = [
            at for at, live in enumerate(lives) if live is None or live.quick is None or live.quick.vocabulary is not shared
        ]
        self.table: Sequence[str | None] = shared.texts if shared is not None else ()
        self.tails = [live.tail if live is not None else "" for live in lives]
        self.is_ahead = False
        self.within: set[int] | None = None
        self.shown: list[Sequence[str]] = []

    def to_visit(self, texts: Sequence[str | None]) -> Sequence[int]:
        """Rows whose decoder must see the new token, in order; `texts` are the tokens' own, None for a part of a character."""
        within = self.within
        if within is None:
            within = self.within = {
                at for at, live in enumerate(self.lives) if live is not None and live.quick and not live.quick.is_between
            }
        if None in texts:
            return sorted({at for at, text in enumerate(texts) if text is None} | within.union(self.special))
        return sorted(within.union(self.special)) if within else self.special

    def push(self, at: int, token_id: int) -> tuple[str, bool]:
        """The text that a row may show after its new token, and whether that completed a stop string."""
        live = self.lives[at]
        if live is None:
            return "", False
        quick = live.quick
        if quick is None:
            return live.take_with(token_id)
        text = quick.push(token_id)
        if self.within is not None:
            (self.within.discard if quick.is_between else self.within.add)(at)
        return text, False

    def follow(self, texts: Sequence[str]) -> None:
        """Note what a step has shown."""
        self.shown.append(texts)
        self.is_ahead = True
        if len(self.shown) >= SHORTEN_STEPS:
            self.tails, self.shown = self.tails_later()(), []

    def tails_later(self) -> Callable[[], list[str]]:
        """A call that gives the tail of each row as it is now."""
        return partial(_joined, self.tails, tuple(self.shown))


def _joined(tails: Sequence[str], shown: Sequence[Sequence[str]]) -> list[str]:
    return ["".join(parts)[-TAIL_CHARACTERS:] for parts in zip(tails, *shown, strict=True)]


def _itself(tails: list[str]) -> list[str]:
    return tails
