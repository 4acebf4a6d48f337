"""What the engine's thread publishes and every other thread may read, without a lock.

    latest    one reference to an immutable picture, swapped
    past      earlier pictures, bounded
    history   the engine's own step history, readable from any thread
    streams   append-only answers
    audit     the last commands

Only turning text into tokens takes a lock, because the tokenizer's library has a switch that is set for each call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from core.commands import Command, CommandResult, Outcome
from core.config import EngineConfig
from core.control import LOCAL, AuditEntry, AuditLog
from core.engine import Engine
from core.errors import ControlRefused
from core.load_spec import LoadSpec, PromptKind
from core.picture_history import PictureHistory
from core.prompts import PromptSource, RandomPrompts, TextPrompts, chat_frame, text_prompts
from core.records import RequestRecord, StepRecord
from core.run_record import RunRecord
from core.snapshot import EngineSnapshot
from core.story import Story
from core.streams import StreamHub

Message = Mapping[str, str]


@runtime_checkable
class ChatCodec(Protocol):
    """What a tokenizer has beside `TextCodec` where it knows conversations."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins every prompt, or None."""
        ...

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """Prompt tokens of a conversation."""
        ...


class Board:
    """The published state of one live engine."""

    def __init__(self, config: EngineConfig, max_streams: int) -> None:
        self.streams = StreamHub(max_streams)
        self.audit = AuditLog()
        self.past = PictureHistory()
        self._engine: Engine | None = None
        self._text_lock = threading.Lock()
        self._texts: dict[PromptKind, TextPrompts] = {}
        self.latest = EngineSnapshot(0, 0.0, 0.0, "starting", config, None, progress="starting")

    # -- engine's thread -----------------------------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        """From now on readers see this engine."""
        self._texts = {}
        self._engine = engine
        self.past.clear()

    def publish(
        self,
        snapshot: EngineSnapshot | None,
        state: str,
        wall_s: float,
        *,
        message: str = "",
        progress: str = "",
        load_label: str | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        """Swap in a new picture; without one, the last is taken up again with its engine's numbers at rest.

        A picture of an engine that is gone keeps what has ended and shows nothing as live.
        """
        before = self.latest
        if snapshot is None:
            snapshot = EngineSnapshot(
                before.step, before.time_s, wall_s, state, config or before.config, before.info if state != "starting" else None,
                ended=before.ended, recent_requests=before.recent_requests, ceilings=before.ceilings,
            )  # fmt: skip
        self.latest = replace(
            snapshot,
            state=state,
            wall_time_s=wall_s,
            message=message,
            progress=progress,
            load_label=snapshot.load_label if load_label is None else load_label,
            revision=before.revision + 1,
        )
        self.past.add(self.latest)

    def audit_result(self, command: Command, result: CommandResult, wall_s: float) -> None:
        """Note what became of a command; requests that come and go through the API are traffic, not control."""
        is_traffic = command.session_id == LOCAL and command.name in ("submit", "cancel")
        if is_traffic and result.outcome is Outcome.ACCEPTED:
            return
        entry = AuditEntry(wall_s, command.session_id, command.name, command.detail, result.outcome.value, result.message)
        self.audit.add(entry)

    def prompt_source(self, spec: LoadSpec) -> PromptSource:
        """Prompts for a load on the present engine: text where it has a tokenizer, random ids otherwise."""
        engine = self.require_engine()
        if spec.prompt_kind is PromptKind.RANDOM or engine.tokenizer is None or engine.info.spec.vocab_size < 256:
            vocab_size = engine.info.spec.vocab_size
            return RandomPrompts(vocab_size, min(3, vocab_size - 1))
        if spec.prompt_kind not in self._texts:
            self._texts[spec.prompt_kind] = self._text_source(spec.prompt_kind)
        return self._texts[spec.prompt_kind]

    def _text_source(self, kind: PromptKind) -> TextPrompts:
        def plain(text: str) -> Sequence[int]:
            return self.encode(text, with_bos=False)

        if kind is PromptKind.TEXT:
            return text_prompts(plain, with_questions=False)
        chat_open, chat_close = chat_frame(plain, lambda text: self.encode_chat([{"role": "user", "content": text}]))
        return text_prompts(plain, chat_open=chat_open, chat_close=chat_close)

    # -- any thread ----------------------------------------------------------------------------------------

    def require_engine(self) -> Engine:
        """The present engine.

        Raises:
            ControlRefused: while there is none.
        """
        if self._engine is None:
            raise ControlRefused("the engine is still starting; try again in a moment", is_temporary=True)
        return self._engine

    def encode(self, text: str, *, with_bos: bool = True) -> list[int]:
        """Prompt tokens of a text; control tokens spelled out in it stay text.

        Raises:
            ControlRefused: while there is no engine, or if it knows only token ids.
        """
        tokenizer = self.require_engine().tokenizer
        if tokenizer is None:
            raise ControlRefused("this engine has no tokenizer; give token ids")
        with self._text_lock:
            ids = tokenizer.encode(text)
        bos = tokenizer.bos_token_id if isinstance(tokenizer, ChatCodec) else None
        return ids[1:] if not with_bos and bos is not None and ids[:1] == [bos] else ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Prompt tokens of a conversation through the model's chat template (errors as `encode`)."""
        tokenizer: object = self.require_engine().tokenizer
        if not isinstance(tokenizer, ChatCodec):
            raise ControlRefused("this engine has no chat template; give text or token ids")
        with self._text_lock:
            return tokenizer.apply_chat_template(messages)

    def history(self, since_step: int) -> tuple[StepRecord, ...]:
        """Records of steps after `since_step`, oldest first."""
        return self._engine.records.since(since_step) if self._engine is not None else ()

    def requests(self) -> tuple[RequestRecord, ...]:
        """Ended requests, newest first."""
        return self._engine.telemetry.requests if self._engine is not None else ()

    def run_record(self) -> RunRecord:
        """What a replay of the run so far needs.

        Raises:
            ControlRefused: while there is no engine, or if it records nothing.
        """
        recorder = self.require_engine().recorder
        if recorder is None:
            raise ControlRefused("this engine records nothing; start it with a recorder")
        return recorder.record()

    def story(self, request_id: str) -> Story | None:
        """The life of a request, live or ended not long ago; None if it is not known."""
        return self._engine.story(request_id) if self._engine is not None else None
