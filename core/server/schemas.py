"""Bodies of OpenAI's completion calls, checked field by field, and errors in OpenAI's form.

    {"error": {"message": ..., "type": "invalid_request_error", "param": "temperature", "code": null}}

Extensions: priority (lower first), ignore_eos, min_tokens, top_k, stop_token_ids. `user` is the tenant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from core.errors import BatchscopeError
from core.request import SamplingParams

MAX_N = 16
MAX_PROMPTS = 64
MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 64


class ApiError(BatchscopeError):
    """An answer other than 200, in OpenAI's form.

    Attributes:
        status: HTTP status.
        param: the field of the body that is wrong, or None.
        retry_after_s: value of Retry-After, for 429 and 503.
        code: a word for programs, e.g. "model_not_found".
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: int = 0,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class CompletionCall:
    """One call, validated.

    Attributes:
        prompts: texts or token ids, one choice group each (empty for a chat call).
        messages: role and content of a chat call (empty otherwise).
        n: choices a prompt.
        logprobs: likely tokens reported a position; None is off (0 reports the sampled token alone).
    """

    chat: bool
    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    messages: tuple[dict[str, str], ...]
    sampling: SamplingParams
    n: int
    stream: bool
    include_usage: bool
    echo: bool
    logprobs: int | None
    tenant: str
    priority: int


class _Fields:
    """Typed access to a JSON object; each refusal names the field."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ApiError(400, f"the body is a JSON {type(body).__name__}; an object is needed")
        self.body = body

    def wrong(self, name: str, wanted: str) -> ApiError:
        return ApiError(400, f"{name} is {self.body.get(name)!r}; give {wanted}", param=name)

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value

    def real(self, name: str, default: float, low: float, high: float) -> float:
        value = self.body.get(name)
        if value is None:
            return default
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
        if not ok:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 256:
            raise self.wrong(name, "a text of at most 256 characters")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.body.get(name)
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(s, str) and s for s in found) or len(found) > 16:
            raise self.wrong(name, "a text or at most 16 texts, none empty")
        return tuple(found)

    def tokens(self, name: str) -> tuple[int, ...]:
        value = self.body.get(name)
        if value is None:
            return ()
        if not _is_token_list(value):
            raise self.wrong(name, "a list of token ids")
        return tuple(value)


def _is_token_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in value)


def _prompts(fields: _Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.body.get("prompt")
    wanted = f"a text, a list of token ids, or at most {MAX_PROMPTS} of either"
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise fields.wrong("prompt", wanted)
    if _is_token_list(value):
        return (tuple(value),)
    if len(value) <= MAX_PROMPTS and all(isinstance(p, str) for p in value):
        return tuple(value)
    if len(value) <= MAX_PROMPTS and all(_is_token_list(p) for p in value):
        return tuple(tuple(p) for p in value)
    raise ApiError(400, f"prompt is a list of {len(value)} entries that cannot be read; give {wanted}", param="prompt")


def _content(value: Any) -> str | None:
    """The text of a message: a string, or the text parts of a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in value
    ):
        return "".join(p["text"] for p in value)
    return None


def _messages(fields: _Fields) -> tuple[dict[str, str], ...]:
    value = fields.body.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.wrong("messages", "a list of at least one message")
    found = []
    for i, message in enumerate(value):
        role = message.get("role") if isinstance(message, dict) else None
        content = _content(message.get("content")) if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant") or content is None:
            raise ApiError(
                400, f"message {i} needs a role (system, developer, user, assistant) and a text as content", param="messages"
            )
        found.append({"role": "system" if role == "developer" else str(role), "content": content})
    return tuple(found)


_UNSUPPORTED = ("tools", "functions", "response_format", "logit_bias", "suffix", "best_of", "audio", "modalities")


def _refuse_unsupported(fields: _Fields) -> None:
    for name in _UNSUPPORTED:
        value = fields.body.get(name)
        if value in (None, [], {}, ""):
            continue
        if name == "response_format" and value == {"type": "text"}:
            continue
        raise ApiError(400, f"{name} is not supported by this server; leave it out", param=name)
    for name in ("presence_penalty", "frequency_penalty", "min_p"):
        if fields.real(name, 0.0, -2.0, 2.0) != 0.0:
            raise ApiError(400, f"{name} is not supported by this server; leave it out or give 0", param=name)
    if fields.real("repetition_penalty", 1.0, 0.0, 10.0) != 1.0:
        raise ApiError(
            400, "repetition_penalty is not supported by this server; leave it out or give 1", param="repetition_penalty"
        )


def _logprobs(fields: _Fields, chat: bool) -> int | None:
    if not chat:
        return fields.integer("logprobs", None, 0, MAX_LOGPROBS)
    if not fields.flag("logprobs"):
        return None
    return fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)


def parse_call(body: Any, *, chat: bool) -> CompletionCall:
    """Check the body of a completion or chat call.

    Raises:
        ApiError: 400 with the field, what was found and what is allowed.
    """
    fields = _Fields(body)
    _refuse_unsupported(fields)
    limit = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = fields.integer(limit, DEFAULT_MAX_TOKENS, 1, 1_048_576) or DEFAULT_MAX_TOKENS
    logprobs = _logprobs(fields, chat)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise fields.wrong("stream_options", "an object such as {include_usage: true}")
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, 0, max_tokens) or 0,
        temperature=fields.real("temperature", 1.0, 0.0, 100.0),
        top_p=fields.real("top_p", 1.0, 0.0, 1.0),
        top_k=max(fields.integer("top_k", 0, -1, 1_048_576) or 0, 0),
        seed=fields.integer("seed", None, 0, 2**63 - 1),
        stop=fields.texts("stop"),
        stop_token_ids=fields.tokens("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=0 if logprobs is None else max(logprobs, 1),
    )
    return CompletionCall(
        chat=chat,
        model=fields.text("model", ""),
        prompts=() if chat else _prompts(fields),
        messages=_messages(fields) if chat else (),
        sampling=sampling,
        n=fields.integer("n", 1, 1, MAX_N) or 1,
        stream=fields.flag("stream"),
        include_usage=options.get("include_usage") is True,
        echo=False if chat else fields.flag("echo"),
        logprobs=logprobs,
        tenant=fields.text("user", "default") or "default",
        priority=fields.integer("priority", 0, -1_000_000, 1_000_000) or 0,
    )
