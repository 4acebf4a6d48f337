"""What the scheduler knows, and the few doors through which it changes.

    WAITING / PREEMPTED  in `queue`
    RUNNING              in `rows` (decoding: one token a step) or in `catching_up` (more than one token to compute)

Every other module of the scheduler reads this state and changes it only by the methods here, so the gauges,
the lists and the request's own status can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter

from core.config import AdmissionMoment, AdmissionPolicy, CacheConfig, QueuePolicy, SchedulerConfig
from core.decode_rows import DecodeRows
from core.fixed_rows import FixedBatch
from core.kv_cache_manager import KVCacheManager
from core.outputs import Preemption, RequestEvent
from core.policies.batching import BATCH_RULES
from core.policies.memory import ADMISSION_RULES, VICTIM_RULES
from core.policies.queue_order import QUEUE_ORDERS, Key, QueueOrder
from core.request import FinishReason, Request, RequestStatus, StoryEvent
from core.story_words import block_words
from core.tenant_ledger import Account, TenantLedger
from core.waiting_queue import WaitingQueue

_NO_TOKENS: frozenset[int] = frozenset()


@dataclass(slots=True)
class Counters:
    """Counts since the start; they never fall. The names are those of `core.snapshot.Totals`."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    recomputed_tokens: int = 0
    late_joins: int = 0
    invalidated_shapes: int = 0


@dataclass(slots=True)
class Track:
    """What the scheduler keeps of a live request beside the request itself.

    Attributes:
        stop_ids: tokens that end the output.
        ends_at: computed tokens of the step in which its last token comes, by max_tokens or the model's length.
        high_water_tokens: most tokens that were ever computed; what lies below is a recompute.
        preempted_at_s: start of the present preemption.
    """

    account: Account
    sampling_seed: int
    stop_ids: frozenset[int]
    max_tokens: int
    ends_at: int = 0
    high_water_tokens: int = 0
    preempted_at_s: float = 0.0
    why: str = ""


@dataclass(slots=True)
class HeadMemo:
    """The price of a head of the queue that had no hit and was refused for memory.

    While the same settings, pool and head stand, a budget does not cut its first chunk and its first block is
    still not cached, the price is the same, and a long queue costs a step nothing.
    """

    request: Request
    first_key: bytes | None
    tokens: int
    blocks: int
    config: SchedulerConfig
    kv: KVCacheManager


@dataclass(slots=True)
class Pending:
    """What happened outside a decision and goes out with the next one."""

    events: list[RequestEvent] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def take_events(self) -> list[RequestEvent]:
        """Hand out the events that wait."""
        events, self.events = self.events, []
        return events

    def untold_ends(self) -> set[str]:
        """Ids of requests that have ended and whose ending event waits: nobody else may have them yet."""
        return {e.request_id for e in self.events if e.finish_reason is not None}


class SchedulerState:
    """Sets, queue, ledger, memory and counters of one scheduler."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        max_model_len: int,
        vocab_size: int | None,
        eos_token_ids: tuple[int, ...],
        seed: int,
        kv_bytes_per_token: float,
    ) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self.kv_bytes_per_token = kv_bytes_per_token
        self.cache = cache
        self.kv = KVCacheManager(cache, kv_bytes_per_token)
        self.step = 0
        self.tells_stories = True  # False in a simulation: nobody reads them
        self.checks_fields = True  # False in a simulation, which makes its requests from a checked load
        self.num_arrivals = 0
        self.boundary_arrivals = 0  # arrivals before the latest decision
        self.requests: dict[str, Request] = {}
        self.tracks: dict[str, Track] = {}
        self.rows: DecodeRows[Track] = DecodeRows()
        self.catching_up: list[Request] = []
        self.num_running = 0  # requests that hold a seat: rows and catching_up
        self.preempted: dict[str, Request] = {}
        self.fixed: FixedBatch | None = None
        self.ended: list[Request] = []
        self.counters = Counters()
        self.pending = Pending()
        self.all_rows_step = 0
        self.head_memo: HeadMemo | None = None
        self.low_water: dict[str, int] = {}  # counters at the latest check
        self.ledger = TenantLedger(config)
        self.config = config
        self.queue = self._new_queue(QUEUE_ORDERS[config.queue_policy])
        self.adopt(config, 0.0)

    def adopt(self, config: SchedulerConfig, now: float) -> None:
        """Take over a checked configuration: policy objects, accounts, and the queue in its new order."""
        waiting = sorted(self.queue.requests(), key=lambda r: r.arrival_index)
        self.config = config
        self.order = QUEUE_ORDERS[config.queue_policy]
        self.batch_rule = BATCH_RULES[config.batch_policy]
        self.admission_rule = ADMISSION_RULES[config.admission_policy]
        self.victim_rule = VICTIM_RULES[config.victim_policy]
        self.may_reclaim = self.order.by_tenant or (config.preemptive_priority and self.order.value is QueuePolicy.PRIORITY)
        self.ledger.configure(config, now)
        self.is_plain = not (self.order.by_tenant or self.order.by_prefix or self.ledger.has_quotas or config.lookahead) and (
            self.batch_rule.splits_prompts(config)
            and not self.batch_rule.fixed
            and config.admission_policy is AdmissionPolicy.ON_DEMAND
            and config.admission_moment is AdmissionMoment.STEP_BOUNDARY
        )
        self.queue = self._new_queue(self.order)
        for request in waiting:
            self.queue.push(request)

    @property
    def num_waiting(self) -> int:
        """Requests that were never admitted."""
        return len(self.queue) - len(self.preempted)

    def running(self) -> list[Request]:
        """Requests that hold a seat: decoding rows first."""
        return [*self.rows.requests, *self.catching_up]

    def rank(self, request: Request) -> Key:
        """Seniority; the smallest of the running requests is never a victim."""
        return self.order.rank(request, self.config)

    def by_seniority(self, requests: Iterable[Request]) -> list[Request]:
        """The most senior first."""
        field = self.order.rank_field
        return sorted(requests, key=attrgetter(field) if field else self.rank)

    def senior(self) -> Request | None:
        """The most senior running request: it advances, whatever happens to the others."""
        field = self.order.rank_field
        return min(self.running(), key=attrgetter(field) if field else self.rank, default=None)

    # -- the doors ---------------------------------------------------------------------------------------

    def enqueue(self, request: Request, now: float) -> None:
        """A checked request enters the queue."""
        request_id = request.request_id
        self.requests[request_id] = request
        self.ledger.arrive(request.tenant, now)
        params = request.sampling
        eos = _NO_TOKENS if params.ignore_eos else self.eos_token_ids
        self.tracks[request_id] = Track(
            account=self.ledger.account(request.tenant),
            sampling_seed=params.seed if params.seed is not None else derive_seed(self.seed, request_id),
            stop_ids=eos.union(params.stop_token_ids) if params.stop_token_ids else eos,
            max_tokens=params.max_tokens,
            ends_at=min(request.num_prompt_tokens + params.max_tokens, self.max_model_len) - 1,
        )
        self.queue.push(request)
        self.kv.prepare(request)
        self.tell(request, now, "submitted", f"{request.num_prompt_tokens} prompt tokens", request.num_prompt_tokens)

    def seat(self, request: Request, now: float) -> bool:
        """A queued request takes a seat (its table exists already); True if it was preempted before."""
        track = self.tracks[request.request_id]
        self.queue.remove(request)
        resumed = self.preempted.pop(request.request_id, None) is not None
        request.move_to(RequestStatus.RUNNING)
        if request.admitted_time_s is None:
            request.admitted_time_s = now
        if resumed:
            request.preempted_spans_s.append((track.preempted_at_s, now))
        track.account.queued -= 1
        track.account.running += 1
        self.catching_up.append(request)
        self.num_running += 1
        return resumed

    def seat_new(self, request: Request, track: Track, now: float) -> None:
        """As `seat` for one that was never admitted and has left the queue."""
        request.move_to(RequestStatus.RUNNING)
        request.admitted_time_s = now
        request.num_cached_tokens = request.num_computed_tokens = 0
        track.why = ""
        account = track.account
        account.queued -= 1
        account.running += 1
        self.catching_up.append(request)
        self.num_running += 1

    def caught_up(self, request: Request) -> None:
        """A running request has one token left to compute: from now on it decodes."""
        self.catching_up.remove(request)
        track = self.tracks[request.request_id]
        self.rows.add(request, track, self.kv.tables[request.request_id])
        track.account.decode_rows += 1

    def unseat(self, request: Request) -> None:
        """A running request loses its seat; its blocks and its status are the caller's business."""
        account = self.tracks[request.request_id].account
        if self.rows.remove(request):
            account.decode_rows -= 1
        else:
            self.catching_up.remove(request)
        account.running -= 1
        self.num_running -= 1
        self.pending.released.append(request.request_id)

    def end(self, request: Request, status: RequestStatus, reason: FinishReason, now: float, message: str = "") -> RequestEvent:
        """A live request ends in whatever state it is; every block goes back (or stays with its fixed batch)."""
        request_id = request.request_id
        track = self.tracks[request_id]
        held = self.kv.block_ids(request_id) if self.tells_stories else ()
        if request.status is RequestStatus.RUNNING:
            self.unseat(request)
            if self.fixed is not None and self.fixed.holds(request):
                self.kv.hold(request_id)
            else:
                self.kv.release(request_id, self.step)
        else:
            self.queue.remove(request)
            track.account.queued -= 1
            if self.preempted.pop(request_id, None) is not None:
                request.preempted_spans_s.append((track.preempted_at_s, now))
        request.move_to(status)
        request.finish_reason = reason
        request.finished_time_s = now
        cancelled = status is RequestStatus.CANCELLED
        if self.tells_stories:
            detail = f"{reason}; {request.num_output_tokens} output tokens; {block_words(held)}"
            self.tell(request, now, str(status), f"{detail}; {message}" if message else detail, request.num_output_tokens)
        if cancelled:
            self.counters.cancelled += 1
        else:
            self.counters.finished += 1
        self.kv.forget(request_id)
        del self.requests[request_id], self.tracks[request_id]
        self.ledger.leave(track.account)
        self.ended.append(request)
        if self.fixed is not None and not self.fixed.num_live:
            self.close_fixed()
        kind = "cancelled" if cancelled else "finished"
        return RequestEvent(request_id, kind, now, self.step, finish_reason=reason, message=message)

    def close_fixed(self) -> None:
        """End the fixed batch: held blocks go back, members that still run go on as ordinary requests."""
        self.kv.release_held(self.step)
        self.fixed = None

    def stamp_rows(self, rows: list[Request]) -> None:
        """Note who runs in this step, for the age of blocks (`all_rows_step` does so for all decoding rows at once)."""
        step, tables = self.step, self.kv.tables
        for request in rows:
            table = tables.get(request.request_id)
            if table is not None:
                table.last_step = step

    def tell(
        self, request: Request, now: float, kind: str, detail: str = "", value: int = 0, blocks: tuple[int, ...] = ()
    ) -> None:
        """Add a line to the request's story."""
        if self.tells_stories:
            request.story.append(StoryEvent(now, self.step, kind, detail, value, blocks))

    def _new_queue(self, order: QueueOrder) -> WaitingQueue:
        return WaitingQueue(
            order,
            self.config,
            grouped=order.by_tenant or self.ledger.has_quotas,
            virtual_time=self.ledger.virtual_time,
            match_tokens=self._matched_tokens,  # a method, so that a copy of this state asks its own pool
        )

    def _matched_tokens(self, request: Request) -> int:
        return len(self.kv.match(request)) * self.kv.block_size


def derive_seed(seed: int, request_id: str) -> int:
    """Seed of a request without one of its own: 63 bits of BLAKE2b over the engine's seed and the id."""
    raw = seed.to_bytes(8, "little") + request_id.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") >> 1
