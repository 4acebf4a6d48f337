"""Answers in OpenAI's form: the object round the choices, events, log-probabilities, errors; nothing here decides anything.

choices -> Answer.frame -> one JSON object, or server-sent events that end with [DONE]
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from core.server.schemas import ApiError, CompletionCall
from core.streams import RequestStream, StreamPiece


@dataclass(frozen=True)
class Answer:
    """What all parts of one answer share."""

    call: CompletionCall
    id: str
    created: int
    model: str

    @property
    def kind(self) -> str:
        if not self.call.chat:
            return "text_completion"
        return "chat.completion.chunk" if self.call.stream else "chat.completion"

    def frame(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        """The object round the choices."""
        body: dict[str, Any] = {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage
        return body


def api_error(error: ApiError) -> JSONResponse:
    """The error as an HTTP answer."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


class EventStream(StreamingResponse):
    """Server-sent events; `on_close` runs however the answer ends, even if the client left before its first event."""

    def __init__(self, events: AsyncIterator[str], on_close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, then close."""
        try:
            await super().__call__(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            await asyncio.shield(self._on_close())


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n"


def finish_reason(stream: RequestStream) -> str | None:
    """OpenAI knows stop and length; an end for lack of room is a length, too."""
    if stream.end is None:
        return None
    return {"stop": "stop", "length": "length", "capacity": "length"}.get(stream.end.reason, stream.end.reason)


def delta(answer: Answer, index: int, content: Any, reason: str | None, logprobs: Any) -> dict[str, Any]:
    """One choice of a streamed part: its new text, or its end."""
    body: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": logprobs}
    body["delta" if answer.call.chat else "text"] = content
    return body


def logprobs_of(call: CompletionCall, pieces: Sequence[StreamPiece]) -> dict[str, Any] | None:
    """Log-probabilities in the form of the call; tokens are named "token_id:N", which no text can be mistaken for."""
    if call.logprobs is None:
        return None
    found = [(p, p.logprobs) for p in pieces if p.logprobs is not None]
    most = call.logprobs
    if call.chat:
        content = [
            {
                "token": p.text,
                "logprob": lp.logprob,
                "bytes": list(p.text.encode()),
                "top_logprobs": [{"token": f"token_id:{t}", "logprob": v, "bytes": None} for t, v in lp.top[:most]],
            }
            for p, lp in found
        ]
        return {"content": content}
    offsets = list(itertools.accumulate((len(p.text) for p, _ in found), initial=0))[: len(found)]
    return {
        "tokens": [p.text for p, _ in found],
        "token_logprobs": [lp.logprob for _, lp in found],
        "top_logprobs": [{f"token_id:{t}": v for t, v in lp.top[:most]} for _, lp in found],
        "text_offset": offsets,
    }
