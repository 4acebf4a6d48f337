"""What crosses the walls in one step: the decision, the result, and the events that follow.

`SchedulerOutput` is columns, not rows: column i of every tuple belongs to request_ids[i]. A steady decode
batch then costs a few tuple builds instead of an object for each request. It is immutable, compares by
value (a replay must give equal ones) and pickles small, because the worker process is fed with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from core.request import FinishReason, SamplingParams


class BoundBy(StrEnum):
    """What kept the batch from being larger in a step."""

    LOAD = "load"  # nothing waits: every request is in the batch
    SEATS = "seats"  # max_num_seqs
    MEMORY = "KV memory"  # free blocks
    BUDGET = "token budget"  # max_num_batched_tokens
    QUOTA = "quota"  # a tenant's quota
    POLICY = "batch policy"  # e.g. the fixed batch is still held, or a decode-only step


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """All that the runner must know of a request that enters or re-enters the batch.

    Attributes:
        token_ids: prompt and output tokens so far (the output part is not empty after a preemption).
        num_prompt_tokens: how many of them are the prompt.
        block_ids: physical blocks, logical order; includes prefix hits.
        sampling_seed: the seed of the request's random stream (always set).
        resumed_by_swap: its KV comes back through `swap_in`, nothing is recomputed.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    sampling_seed: int
    resumed_by_swap: bool = False


@dataclass(frozen=True, slots=True)
class Preemption:
    """One request lost its blocks so that another could go on."""

    step: int
    victim: str
    beneficiary: str
    blocks_freed: int
    tokens_lost: int  # tokens to recompute; 0 under swap
    bytes_swapped: int
    reason: str  # "memory", "priority", "fair share", "pool change", ...


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A waiting request that was looked at and not admitted, with the cause in words."""

    request_id: str
    bound_by: BoundBy
    detail: str  # e.g. "needs 12 blocks, 4 free"


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's decision.

    Attributes:
        request_ids: the rows of the batch, in the order in which they run.
        num_scheduled_tokens: query tokens of each row, >= 1.
        num_computed_tokens: tokens of each row already in the cache, before this step.
        samples: True where the row's context is complete after this step, so a token is sampled.
        is_prefill: True where the row runs prompt (or recomputed) tokens rather than one decode token.
        new_requests: full data of rows that the runner does not hold.
        new_block_ids: blocks appended to the tables of rows that the runner holds already.
        released_ids: requests whose state the runner may drop (finished, cancelled or preempted). Dropped before
            `new_requests` is read: an id may be released and come back in one step.
        swap_out, swap_in: block copies (device block, host block), (host block, device block), before the forward
            pass and in this order: a device block that is swapped out may be filled by a copy in of the same step.
        copy_blocks: device to device copies (source, destination), before the forward pass.
        padded_rows, padded_width: shape that a fixed batch really runs (rows x query tokens); 0 if not padded.
            Rows beyond request_ids are finished requests that the batch still holds.
        padded_context: KV slots that the fixed batch touches for each row; 0 if not padded.
        admitted, resumed: ids that joined in this step.
        preemptions, passed_over: see those classes (passed_over: at most 16 entries).
        num_waiting, num_running: after the decision.
        bound_by: what kept the batch from being larger.
        full_batch: True if requests waited and the batch was at its memory-determined maximum.
        decided_rows, late_joins: under AdmissionMoment.BETWEEN_LAUNCHES the rows of the shape that was decided, and
            the ids that joined after that; a graph captured for the decided shape is invalid if any did. Else 0 and ().
    """

    step: int
    request_ids: tuple[str, ...] = ()
    num_scheduled_tokens: tuple[int, ...] = ()
    num_computed_tokens: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()
    is_prefill: tuple[bool, ...] = ()
    new_requests: tuple[NewRequestData, ...] = ()
    new_block_ids: tuple[tuple[str, tuple[int, ...]], ...] = ()
    released_ids: tuple[str, ...] = ()
    swap_out: tuple[tuple[int, int], ...] = ()
    swap_in: tuple[tuple[int, int], ...] = ()
    copy_blocks: tuple[tuple[int, int], ...] = ()
    padded_rows: int = 0
    padded_width: int = 0
    padded_context: int = 0
    admitted: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    num_waiting: int = 0
    num_running: int = 0
    bound_by: BoundBy = BoundBy.LOAD
    full_batch: bool = False
    decided_rows: int = 0
    late_joins: tuple[str, ...] = ()

    @property
    def total_tokens(self) -> int:
        """Query tokens of the step, padding not counted."""
        return sum(self.num_scheduled_tokens)


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Log-probabilities of one sampled token and of the most likely ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds that the executor spent, measured or predicted.

    `transfer_s` is the time on the pipe of a worker process (0 in process); `discarded_s` went into preparing a batch
    that was void before it could be launched, because requests joined after its shape was decided.
    """

    prepare_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    transfer_s: float = 0.0
    discarded_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """One step's result.

    Attributes:
        sampled: (request id, token id) for each row with samples=True, in row order.
        logprobs: as `sampled`, for the requests that asked for them.
        graph: "" where there are no graphs, or how the step was launched: "eager" (a step that has no captured shape),
            "graph hit 32" (replayed), "graph miss 32" (ran by operations and was captured for the next one), "graph miss".
    """

    step: int
    sampled: tuple[tuple[str, int], ...] = ()
    timing: StepTiming = StepTiming()
    logprobs: tuple[tuple[str, TopLogprobs], ...] = ()
    graph: str = ""


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """Something that happened to one request; the engine streams these."""

    request_id: str
    kind: str  # "token", "finished", "cancelled", "refused", "preempted", "resumed", "admitted"
    time_s: float
    step: int
    token_id: int | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    message: str = ""
    logprobs: TopLogprobs | None = field(default=None, compare=False)
