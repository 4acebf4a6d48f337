"""Which requests can be served at all: checked at submission, and again for every waiting request when a setting changes.

    prompt + 1      <= model length               room for one output token
    blocks(prompt)  <= pool, tenant's quota       blocks(prompt + max_tokens) where that is reserved
    prompt          <= token budget               where a prompt runs whole

A request that passes runs to its end in bounded time once it is the oldest; one that fails is refused at once
with both numbers, so nothing waits for ever.
"""

from __future__ import annotations

import math
from typing import Protocol

from core.config import AdmissionPolicy, CacheConfig, SchedulerConfig
from core.errors import RefusalReason, RequestRefused
from core.policies.batching import BATCH_RULES
from core.policies.memory import worst_case_tokens
from core.request import Request, RequestStatus, validate_sampling

_PRIORITY_RANGE = 1_000_000_000
_MAX_TOKEN_ID = 2**31 - 1


class Pending(Protocol):
    """What is not told yet."""

    def untold_ends(self) -> set[str]: ...


class Engine(Protocol):
    """What the checks need to know of the scheduler's state."""

    config: SchedulerConfig
    cache: CacheConfig
    requests: dict[str, Request]
    max_model_len: int
    vocab_size: int | None
    checks_fields: bool

    @property
    def pending(self) -> Pending: ...

    @property
    def num_waiting(self) -> int: ...


def check_request(request: Request, engine: Engine) -> None:
    """Refuse a request that makes no sense, whose id is in use, that can never run or that finds the queue full.

    Raises:
        RequestRefused: with the numbers found and the limits.
    """
    if engine.checks_fields:
        check_fields(request, engine.vocab_size)
    rid = request.request_id
    twin = engine.requests.get(rid)
    if twin is not None:
        message = f"the id {rid} belongs to a request that is {twin.status}; use another id or cancel that one first"
        raise RequestRefused(rid, RefusalReason.DUPLICATE_ID, message)
    if rid in engine.pending.untold_ends():
        message = f"the id {rid} belongs to a request that ends in this very step; use another id or submit it after the step"
        raise RequestRefused(rid, RefusalReason.DUPLICATE_ID, message)
    found = never_fits(request, engine.config, engine.cache, engine.max_model_len)
    if found is not None:
        raise RequestRefused(rid, found[0], f"request {rid}: {found[1]}")
    limit = engine.config.max_waiting
    if engine.num_waiting >= limit:
        message = f"{engine.num_waiting} requests wait already, the limit is max_waiting = {limit}"
        raise RequestRefused(rid, RefusalReason.QUEUE_FULL, message)


def check_fields(request: Request, vocab_size: int | None) -> None:
    """Refuse a request whose own fields make no sense.

    Raises:
        RequestRefused: naming the field, the value found and the valid range.
    """
    rid = request.request_id

    def need(ok: bool, reason: RefusalReason, message: str) -> None:
        if not ok:
            raise RequestRefused(rid if isinstance(rid, str) else repr(rid), reason, message)

    field = RefusalReason.BAD_FIELD
    need(isinstance(rid, str) and bool(rid), field, f"request_id is {rid!r}; give a string that is not empty")
    prompt = request.prompt_token_ids
    need(len(prompt) > 0, RefusalReason.EMPTY_PROMPT, "the prompt is empty; give at least 1 token")
    odd = next((t for t in prompt if type(t) is not int), None) if set(map(type, prompt)) != {int} else None
    need(odd is None, RefusalReason.BAD_TOKEN, f"the prompt holds {odd!r}; token ids are whole numbers")
    top = _MAX_TOKEN_ID if vocab_size is None else vocab_size - 1
    for token in (min(prompt), max(prompt)):
        need(0 <= token <= top, RefusalReason.BAD_TOKEN, f"the prompt holds token {token}; valid ids are 0 to {top}")
    need(isinstance(request.tenant, str) and bool(request.tenant), field, f"tenant is {request.tenant!r}; give a name")
    whole = isinstance(request.priority, int) and not isinstance(request.priority, bool)
    limit = _PRIORITY_RANGE
    need(
        whole and -limit <= request.priority <= limit,
        field,
        f"priority is {request.priority!r}; give a whole number from {-limit} to {limit} (lower runs first)",
    )
    salt = request.cache_salt
    need(salt is None or isinstance(salt, str), field, f"cache_salt is {salt!r}; give a string or none")
    need(_is_time(request.arrival_time_s), field, f"arrival_time_s is {request.arrival_time_s!r}; give a time in seconds")
    deadline = request.deadline_s
    need(deadline is None or _is_time(deadline), field, f"deadline_s is {deadline!r}; give a time in seconds, or none")
    for name, value in (("ttft_s", request.slo.ttft_s), ("itl_s", request.slo.itl_s)):
        need(value is None or (_is_time(value) and value > 0), field, f"SLO {name} is {value!r}; give seconds above 0, or none")
    validate_sampling(request.request_id, request.sampling)


def never_fits(
    request: Request, config: SchedulerConfig, cache: CacheConfig, max_model_len: int
) -> tuple[RefusalReason, str] | None:
    """Why a request can never run under these settings, with need and capacity; None if it can."""
    prompt = request.num_prompt_tokens
    size = cache.block_size
    rule = BATCH_RULES[config.batch_policy]
    if prompt >= max_model_len:
        return (
            RefusalReason.PROMPT_TOO_LONG,
            f"the prompt has {prompt} tokens and the model's length is {max_model_len}, of which 1 is kept for the output",
        )
    reserved = config.admission_policy is AdmissionPolicy.RESERVE or rule.fixed
    tokens = worst_case_tokens(request, max_model_len) if reserved else prompt
    blocks = -(-tokens // size)
    what = f"{prompt} prompt tokens + max_tokens, {tokens} in all, are reserved" if reserved else f"{prompt} prompt tokens"
    if blocks > cache.num_blocks:
        return (
            RefusalReason.POOL_TOO_SMALL,
            f"needs {blocks} blocks of {size} tokens ({what}), the pool has {cache.num_blocks}",
        )
    quota = config.tenant(request.tenant).max_blocks
    if quota is not None and blocks > quota:
        return (RefusalReason.QUOTA, f"needs {blocks} blocks ({what}), the quota of tenant {request.tenant} is {quota}")
    fresh = request.status is RequestStatus.WAITING
    if fresh and not rule.splits_prompts(config) and prompt > config.max_num_batched_tokens:
        return (
            RefusalReason.BUDGET_TOO_SMALL,
            f"the prompt has {prompt} tokens and runs whole under these settings, but a step's budget is"
            f" {config.max_num_batched_tokens}; turn chunked prefill on or raise max_num_batched_tokens",
        )
    return None


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
