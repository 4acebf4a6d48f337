"""One request: what was asked, how far it is, and the table of states it may pass through.

          +--------- preempt ----------+
          v                            |
WAITING -> RUNNING <- resume - PREEMPTED
   |          |                   |
   +----------+---> FINISHED / CANCELLED        (REFUSED: never entered the queue)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from core.errors import InvariantError, RefusalReason, RequestRefused


class RequestStatus(StrEnum):
    """State of a request in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REFUSED = "refused"


LEGAL_TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING, RequestStatus.CANCELLED, RequestStatus.FINISHED}),
    RequestStatus.RUNNING: frozenset({RequestStatus.PREEMPTED, RequestStatus.FINISHED, RequestStatus.CANCELLED}),
    RequestStatus.PREEMPTED: frozenset({RequestStatus.RUNNING, RequestStatus.CANCELLED, RequestStatus.FINISHED}),
    RequestStatus.FINISHED: frozenset(),
    RequestStatus.CANCELLED: frozenset(),
    RequestStatus.REFUSED: frozenset(),
}


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end token, stop token or stop string
    LENGTH = "length"  # max_tokens reached
    CAPACITY = "capacity"  # the model length or the whole pool is full
    CANCELLED = "cancelled"
    DEADLINE = "deadline"  # counted among the cancelled
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to end.

    Attributes:
        max_tokens: most output tokens, >= 1.
        min_tokens: no end token and no stop string before this many output tokens.
        temperature: 0 is greedy; values below 1e-5 act as greedy.
        top_p: nucleus share in [0, 1]; at least one token is always kept; 1 is off.
        top_k: most candidates; 0 (or above the vocabulary) is off.
        seed: seed of this request's own random stream; None draws one from the engine's seed and the id.
        stop: strings that end the output; they are not part of it.
        stop_token_ids: tokens that end the output.
        ignore_eos: the model's end token is an ordinary token.
        logprobs: number of most likely tokens to report with each token; 0 is off.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0

    @property
    def is_greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature < 1e-5 or self.top_k == 1


def validate_sampling(request_id: str, p: SamplingParams) -> None:
    """Refuse parameters that make no sense.

    Raises:
        RequestRefused: with reason BAD_SAMPLING and the field, the value found and the valid range.
    """

    def need(ok: bool, message: str) -> None:
        if not ok:
            raise RequestRefused(request_id, RefusalReason.BAD_SAMPLING, message)

    def whole(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def real(value: object) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

    need(whole(p.max_tokens) and p.max_tokens >= 1, f"max_tokens is {p.max_tokens!r}; ask for at least 1 output token")
    need(
        whole(p.min_tokens) and 0 <= p.min_tokens <= p.max_tokens,
        f"min_tokens is {p.min_tokens!r}; give a whole number from 0 to max_tokens ({p.max_tokens})",
    )
    need(real(p.temperature) and p.temperature >= 0, f"temperature is {p.temperature!r}; give a number of at least 0")
    need(real(p.top_p) and 0 <= p.top_p <= 1, f"top_p is {p.top_p!r}; give a number from 0 to 1")
    need(whole(p.top_k) and p.top_k >= 0, f"top_k is {p.top_k!r}; give a whole number of at least 0 (0 is off)")
    need(
        p.seed is None or (whole(p.seed) and 0 <= p.seed < 2**63),
        f"seed is {p.seed!r}; give a whole number from 0 to 2**63 - 1, or none",
    )
    need(all(isinstance(s, str) and s for s in p.stop), "stop holds an empty string; it would end every output at once")
    need(len(p.stop) <= 16, f"stop holds {len(p.stop)} strings; at most 16 are allowed")
    need(whole(p.logprobs) and 0 <= p.logprobs <= 20, f"logprobs is {p.logprobs!r}; give a whole number from 0 to 20")


@dataclass(frozen=True, slots=True)
class SLO:
    """Targets of a request, s; None is no target."""

    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(slots=True)
class StoryEvent:
    """One line of a request's life: time, step and what happened."""

    time_s: float
    step: int
    kind: str  # submitted, admitted, blocks, chunk, first_token, preempted, resumed, finished, cancelled, refused, priority
    detail: str = ""
    value: int = 0
    blocks: tuple[int, ...] = ()  # physical blocks taken: the whole table at an admission, what is added by "blocks"


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the scheduler. Only the scheduler changes one.

    `num_computed_tokens` counts the tokens whose keys and values are in the cache; the scheduler plans
    tokens until it has caught up with `num_tokens`, so chunks, prefix hits and recompute are one case.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time_s: float
    arrival_index: int = 0
    tenant: str = "default"
    priority: int = 0
    cache_salt: str | None = None
    use_prefix_cache: bool = True
    deadline_s: float | None = None
    slo: SLO = SLO()
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prefix-cache hit of the latest admission
    num_preemptions: int = 0
    num_overtaken: int = 0
    admitted_time_s: float | None = None  # first admission
    first_token_time_s: float | None = None
    finished_time_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    preempted_spans_s: list[tuple[float, float]] = field(default_factory=list)
    story: list[StoryEvent] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status in (RequestStatus.FINISHED, RequestStatus.CANCELLED, RequestStatus.REFUSED)

    def move_to(self, status: RequestStatus) -> None:
        """Change the state by the table of legal transitions.

        Raises:
            InvariantError: if the table does not allow it; the message holds the request's story.
        """
        if status not in LEGAL_TRANSITIONS[self.status]:
            lines = "\n".join(f"  step {e.step} {e.time_s:.6f} s {e.kind} {e.detail}" for e in self.story)
            raise InvariantError(f"request {self.request_id} cannot go from {self.status} to {status}; its story:\n{lines}")
        self.status = status
