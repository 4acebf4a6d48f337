"""POST /v1/completions and /v1/chat/completions: calls become requests, tokens become answers or events.

    body -> parse_call -> n requests for each prompt -> streams -> one JSON answer, or server-sent events

A client that goes away cancels its requests; their blocks come back at the next step boundary. Nothing here waits
in the event loop: submissions run in a thread, tokens wake the loop through a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from core.commands import CommandResult
from core.control import LOCAL
from core.errors import BatchscopeError, ControlRefused, RefusalReason, RequestRefused, UnknownRequest
from core.request import SamplingParams
from core.server.answers import Answer, EventStream, api_error, delta, event, finish_reason, logprobs_of
from core.server.following import disconnected, pieces_of
from core.server.schemas import ApiError, CompletionCall, parse_call
from core.snapshot import EngineSnapshot
from core.streams import RequestStream, StreamPiece

MAX_BODY_BYTES = 4 * 2**20
RETRY_AFTER_S = 2
SUBMIT_WAIT_S = 60.0
"""How long a submission waits for the end of a step; commands are taken at step boundaries, paused or not."""


class ServingEngine(Protocol):
    """What the server needs of the live engine; see `core.live.LiveEngine`."""

    def latest(self) -> EngineSnapshot: ...

    def now(self) -> float: ...

    def submit(
        self,
        text: str | None = None,
        *,
        session_id: str,
        chat: Sequence[Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        sampling: SamplingParams | None = None,
        tenant: str = "default",
        priority: int = 0,
        source: str = "prompt",
        wait_s: float = SUBMIT_WAIT_S,
        arrival_s: float | None = None,
    ) -> CommandResult: ...

    def cancel(self, request_id: str, *, session_id: str) -> CommandResult: ...

    def stream(self, request_id: str) -> RequestStream: ...


@dataclass
class _Choice:
    """One request of a call: its place among the choices, how far it was sent, and its size."""

    index: int
    request_id: str
    stream: RequestStream
    cursor: int = 0
    tokens: int = 0


def check_model(asked: str, served: str) -> None:
    """Raise ApiError 404 for a model that is not the one served; no name is any model."""
    if asked and asked != served:
        message = f"the model {asked!r} does not exist here; this server serves {served!r}"
        raise ApiError(404, message, kind="invalid_request_error", param="model", code="model_not_found")


def _refused(error: BatchscopeError) -> ApiError:
    """An engine's refusal in OpenAI's form: 429 where waiting helps, 400 where it does not."""
    if isinstance(error, RequestRefused) and error.reason is RefusalReason.QUEUE_FULL:
        return ApiError(429, str(error), kind="rate_limit_error", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, ControlRefused) and error.is_temporary:
        return ApiError(429, str(error), kind="rate_limit_error", retry_after_s=RETRY_AFTER_S)
    return ApiError(400, str(error))


async def read_json(request: Request) -> Any:
    """The body as JSON, never more than `MAX_BODY_BYTES` of it in memory.

    Raises:
        ApiError: 413 for a body that is too large, 400 for one that is no JSON.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB; shorten the prompt")
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON ({type(error).__name__}); send an object") from error


class Completions:
    """The two calls.

    Args:
        engine: the live engine.
        ids: makes the ids of answers; a counter by default.
        unix_time: seconds since 1970 for `created`.
    """

    def __init__(
        self, engine: ServingEngine, *, ids: Callable[[], str] | None = None, unix_time: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        counter = itertools.count(1)
        self._ids = ids or (lambda: f"cmpl-{next(counter):08d}")
        self._unix_time = unix_time

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._serve(request, chat=False)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._serve(request, chat=True)

    async def _serve(self, request: Request, *, chat: bool) -> Response:
        try:
            arrival_s = self._arrival_s()
            call = parse_call(await read_json(request), chat=chat)
            info = self._engine.latest().info
            if info is None or arrival_s is None:
                raise ApiError(503, "the model is still loading; try again shortly", kind="server_error", retry_after_s=5)
            check_model(call.model, info.model_label)
            choices = await self._submit_all(call, arrival_s)
        except ApiError as error:
            return api_error(error)
        answer = Answer(call, ("chat" if chat else "") + self._ids(), int(self._unix_time()), call.model or info.model_label)
        if call.stream:
            return EventStream(self._events(answer, choices), lambda: self._cancel(choices))
        return await self._whole(request, answer, choices)

    def _arrival_s(self) -> float | None:
        """When a call came: reading it, tokenizing and the way to the engine's thread are part of its TTFT."""
        try:
            return self._engine.now()
        except ControlRefused:
            return None

    async def _submit_all(self, call: CompletionCall, arrival_s: float) -> list[_Choice]:
        """Submit every choice, or none: a refusal cancels those before it.

        Raises:
            ApiError: for the first refusal.
        """
        prompts: list[dict[str, Any]] = [{"chat": call.messages}] if call.chat else []
        prompts += [{"text": p} if isinstance(p, str) else {"token_ids": p} for p in call.prompts]
        choices: list[_Choice] = []
        for index, (prompt, copy) in enumerate(itertools.product(prompts, range(call.n))):
            sampling = call.sampling
            if sampling.seed is not None and copy:
                sampling = dataclasses.replace(sampling, seed=sampling.seed + copy)
            try:
                request_id = await run_in_threadpool(self._submit_one, prompt, sampling, call, arrival_s)
            except BatchscopeError as error:
                await self._cancel(choices)
                raise (error if isinstance(error, ApiError) else _refused(error)) from error
            choices.append(_Choice(index, request_id, self._engine.stream(request_id)))
        return choices

    def _submit_one(self, prompt: dict[str, Any], sampling: SamplingParams, call: CompletionCall, arrival_s: float) -> str:
        result = self._engine.submit(
            **prompt,
            session_id=LOCAL,
            sampling=sampling,
            tenant=call.tenant,
            priority=call.priority,
            source="api",
            wait_s=SUBMIT_WAIT_S,
            arrival_s=arrival_s,
        )
        if result.accepted:
            return str(result.value)
        if isinstance(result.value, BatchscopeError):
            raise result.value
        waiting = result.outcome.value == "waiting"
        words = f"no step ended within {SUBMIT_WAIT_S:.0f} s" if waiting else result.message
        raise ApiError(503, words, kind="server_error", retry_after_s=RETRY_AFTER_S)

    async def _cancel(self, choices: Sequence[_Choice]) -> None:
        for choice in choices:
            if choice.stream.end is None:
                await run_in_threadpool(self._cancel_one, choice.request_id)

    def _cancel_one(self, request_id: str) -> None:
        """Cancel; a request that ended meanwhile is no error."""
        with contextlib.suppress(UnknownRequest):
            self._engine.cancel(request_id, session_id=LOCAL)

    # -- answers -------------------------------------------------------------------------------------------

    async def _whole(self, request: Request, answer: Answer, choices: list[_Choice]) -> Response:
        """Wait for every choice; a client that leaves before cancels them."""
        everything = asyncio.ensure_future(self._wait_all(choices))
        gone = asyncio.ensure_future(disconnected(request))
        try:
            done, _ = await asyncio.wait({everything, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not everything.done():
                everything.cancel()
            await asyncio.shield(self._cancel(choices))
        if everything not in done:
            return Response(status_code=499)
        everything.result()
        failed = [c.stream.end for c in choices if c.stream.end is not None and c.stream.end.kind == "refused"]
        if failed:
            return api_error(ApiError(400, failed[0].message))
        bodies = [self._whole_choice(answer, c) for c in choices]
        return JSONResponse(answer.frame(bodies, await self._usage(answer.call, choices)))

    async def _wait_all(self, choices: Sequence[_Choice]) -> None:
        for choice in choices:
            async for _ in pieces_of(choice.stream):
                pass

    def _whole_choice(self, answer: Answer, choice: _Choice) -> dict[str, Any]:
        pieces, _ = choice.stream.since(0)
        text = "".join(p.text for p in pieces)
        choice.tokens = sum(p.token_id is not None for p in pieces)
        body: dict[str, Any] = {"index": choice.index, "finish_reason": finish_reason(choice.stream)}
        body["logprobs"] = logprobs_of(answer.call, pieces)
        if answer.call.chat:
            body["message"] = {"role": "assistant", "content": text}
        else:
            prompt = answer.call.prompts[choice.index // answer.call.n]
            body["text"] = (prompt if answer.call.echo and isinstance(prompt, str) else "") + text
        return body

    async def _events(self, answer: Answer, choices: list[_Choice]) -> AsyncIterator[str]:
        """Server-sent events of all choices as they come; a chat's role goes out with its first token, as vLLM's does.

        One event a token, the last one with the reason of the end: clients count events as tokens.
        """
        inbox: asyncio.Queue[tuple[_Choice, list[StreamPiece], bool]] = asyncio.Queue()

        async def forward(choice: _Choice) -> None:
            async for pieces, is_end in pieces_of(choice.stream):
                await inbox.put((choice, pieces, is_end))

        tasks = [asyncio.ensure_future(forward(c)) for c in choices]
        try:
            begun: set[int] = set()
            left = len(choices)
            while left:
                choice, pieces, is_end = await inbox.get()
                if answer.call.chat and choice.index not in begun:
                    begun.add(choice.index)
                    yield event(answer.frame([delta(answer, choice.index, {"role": "assistant", "content": ""}, None, None)]))
                left -= is_end
                for piece in pieces:
                    choice.tokens += piece.token_id is not None
                    content = {"content": piece.text} if answer.call.chat else piece.text
                    reason = finish_reason(choice.stream) if is_end and piece is pieces[-1] else None
                    logprobs = logprobs_of(answer.call, [piece])
                    yield event(answer.frame([delta(answer, choice.index, content, reason, logprobs)]))
                if is_end and not pieces:
                    empty = {} if answer.call.chat else ""
                    yield event(answer.frame([delta(answer, choice.index, empty, finish_reason(choice.stream), None)]))
            if answer.call.include_usage:
                yield event(answer.frame([], await self._usage(answer.call, choices)))
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()

    async def _usage(self, call: CompletionCall, choices: Sequence[_Choice]) -> dict[str, int]:
        """Token counts; a prompt that was asked n times counts once, as OpenAI counts it."""
        prompt = 0
        for choice in choices[:: call.n]:
            prompt += choice.stream.num_prompt_tokens
        output = sum(c.tokens for c in choices)
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
