"""What comes in: prompts as text or ids, one or many, made into `Submit` commands or refused with the reason.

Checks that need nothing but the arguments are made here; those that need the pool, the queue or the model's
limits are the scheduler's. A list of requests is taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.engine_commands import Submit
from core.errors import RefusalReason, RequestRefused
from core.output_processor import TextCodec
from core.request import Request, SamplingParams

Prompt = str | Sequence[int]
PROMPT_SHOWN_CHARACTERS = 40


def refuse(request_id: str, reason: RefusalReason, message: str) -> RequestRefused:
    """The exception of a refusal."""
    return RequestRefused(request_id, reason, message)


def token_ids_of(request_id: str, prompt: Prompt, tokenizer: TextCodec | None) -> tuple[int, ...]:
    """Prompt tokens of text or ids.

    Raises:
        RequestRefused: for an empty text, text without a tokenizer, or ids that are not whole numbers.
    """
    return _encode(request_id, prompt, tokenizer) if isinstance(prompt, str) else _checked_ids(request_id, prompt)


def _encode(request_id: str, text: str, tokenizer: TextCodec | None) -> tuple[int, ...]:
    if not text:
        raise refuse(request_id, RefusalReason.EMPTY_PROMPT, "the prompt is an empty text; give at least one character")
    if tokenizer is None:
        shown = text[:PROMPT_SHOWN_CHARACTERS]
        raise refuse(
            request_id,
            RefusalReason.BAD_FIELD,
            f"the prompt is text ({shown!r}) but this engine has no tokenizer; give token ids",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refuse(
            request_id,
            RefusalReason.BAD_FIELD,
            f"the prompt is not valid Unicode: half a surrogate pair at character {error.start}; send well-formed text",
        ) from None
    return tuple(tokenizer.encode(text))


def _checked_ids(request_id: str, prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        raise refuse(
            request_id, RefusalReason.BAD_FIELD, f"the prompt is a {type(prompt).__name__}; give text or a list of token ids"
        )
    bad = next((t for t in prompt if not isinstance(t, int) or isinstance(t, bool)), None)
    if bad is not None:
        raise refuse(request_id, RefusalReason.BAD_TOKEN, f"the prompt holds {bad!r}; token ids are whole numbers")
    return tuple(prompt)


def check_fields(command: Submit, tokenizer: TextCodec | None) -> None:
    """Refuse fields of the wrong kind, and stop strings where no text will ever come.

    Raises:
        RequestRefused: naming the field and what was found.
    """

    def need(ok: bool, reason: RefusalReason, message: str) -> None:
        if not ok:
            raise refuse(command.request_id, reason, message)

    bad = RefusalReason.BAD_FIELD
    need(isinstance(command.request_id, str) and bool(command.request_id), bad, "the request id is empty or not text")
    need(isinstance(command.tenant, str) and bool(command.tenant), bad, f"tenant is {command.tenant!r}; give a name")
    whole = isinstance(command.priority, int) and not isinstance(command.priority, bool)
    need(whole, bad, f"priority is {command.priority!r}; give a whole number (lower is better)")
    for name, value in (("slo.ttft_s", command.slo.ttft_s), ("slo.itl_s", command.slo.itl_s)):
        need(value is None or value > 0, bad, f"{name} is {value!r}; give a number of seconds above 0, or none")
    sampling: object = command.sampling
    found = type(sampling).__name__
    need(isinstance(sampling, SamplingParams), RefusalReason.BAD_SAMPLING, f"sampling is a {found}; give SamplingParams")
    need(
        tokenizer is not None or not command.sampling.stop,
        RefusalReason.BAD_SAMPLING,
        "stop strings need text, but this engine has no tokenizer; use stop_token_ids",
    )


def submission(command: Submit, prompt: Prompt, tokenizer: TextCodec | None) -> Submit:
    """A submission with its prompt as token ids, checked as far as the arguments alone allow.

    Raises:
        RequestRefused: naming the field and what was found.
    """
    check_fields(command, tokenizer)
    return replace(command, prompt_token_ids=token_ids_of(command.request_id, prompt, tokenizer))


def request_of(command: Submit, now_s: float) -> Request:
    """The scheduler's request of a submission."""
    return Request(
        request_id=command.request_id,
        prompt_token_ids=command.prompt_token_ids,
        sampling=command.sampling,
        arrival_time_s=now_s if command.arrival_time_s is None else command.arrival_time_s,
        tenant=command.tenant,
        priority=command.priority,
        cache_salt=command.cache_salt,
        use_prefix_cache=command.use_prefix_cache,
        deadline_s=command.deadline_s,
        slo=command.slo,
    )


def spread(name: str, values: object, count: int) -> list[Any]:
    """One value for each of `count` prompts: a list of that length as it is, anything else repeated.

    Raises:
        RequestRefused: for a list of another length; no prompt is ever dropped.
    """
    if isinstance(values, (list, tuple)):
        if len(values) != count:
            raise refuse(
                "",
                RefusalReason.BAD_FIELD,
                f"{count} prompts came with {len(values)} values of {name}; give one for each prompt, or a single one for all",
            )
        return list(values)
    return [values] * count
