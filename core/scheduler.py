"""The scheduler: decides each step anew, and books what came of it.

    add_request -> WAITING --+                      +-> SchedulerOutput -> executor -> ModelRunnerOutput --+
                             +--> schedule(now) ----+                                                      |
    abort, set_config ... ---+    running first,                     update_from_output(now) <-------------+
    (between two steps)           then waiting                       tokens, prefix index, ends -> events

There is no prefill or decode phase: each request is given tokens until `num_computed_tokens` has caught up with
`num_tokens`, so chunks, prefix hits and recompute need no special case. The scheduler reads no clock, draws no
random number and touches no tensor: the same calls give the same outputs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import compress

from core.admission_pass import admit_waiting
from core.config import AdmissionMoment, CacheConfig, SchedulerConfig, check_pair
from core.errors import ConfigError, InvariantError, RequestRefused, UnknownRequest
from core.fixed_batch import plan_fixed
from core.invariants import check_laws
from core.kv_cache_manager import resets_pool
from core.outputs import BoundBy, ModelRunnerOutput, RequestEvent, SchedulerOutput
from core.prefill_first import plan_prefill_first
from core.prefix_hash import QuickChain
from core.reclaim import reclaim
from core.request import FinishReason, Request, RequestStatus
from core.request_checks import check_request
from core.running_pass import decode_budget, plan_catching_up, plan_decodes
from core.scheduler_readout import SchedulerReadout
from core.scheduler_state import SchedulerState
from core.settings_change import change_cache, change_config, lose_kv
from core.step_plan import Flight, StepPlan
from core.step_quiet import apply_quietly
from core.step_update import TextRows, TextStop, apply_step


class Scheduler(SchedulerReadout):
    """The state machine of all live requests over one paged KV cache.

    Args:
        max_model_len: most prompt and output tokens of a request.
        vocab_size: bound of token ids; None accepts any.
        eos_token_ids: tokens that end an output unless the request ignores them.
        seed: source of the sampling seeds of requests that bring none.
        kv_bytes_per_token: for the bytes of a swap in preemption records.

    Attributes:
        text_stop: called for each new token with (request, token id) before the length checks; True ends the
            request with STOP. It is called for every token, so that it can keep a decoder's state.
        text_rows: the same for the decoding rows of a step at once, and what each may show; see `step_update.apply_step`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        max_model_len: int,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        kv_bytes_per_token: float = 0.0,
    ) -> None:
        check_pair(config, cache)
        self._state = SchedulerState(
            config,
            cache,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=tuple(eos_token_ids),
            seed=seed,
            kv_bytes_per_token=kv_bytes_per_token,
        )
        self.text_stop: TextStop | None = None
        self.text_rows: TextRows | None = None
        self._deadlines: list[tuple[float, int, Request]] = []
        self._flight: Flight | None = None
        self._plan: StepPlan | None = None

    def pop_ended(self) -> list[Request]:
        """Requests that ended or were refused since the last call, oldest first.

        One that a decision ended is kept back until its ending event has been handed out.
        """
        state = self._state
        untold = state.pending.untold_ends()
        ended, state.ended = state.ended, []
        if not untold:
            return ended
        waits = [r.request_id in untold and r.status is not RequestStatus.REFUSED for r in ended]
        state.ended = list(compress(ended, waits))
        return [r for r, wait in zip(ended, waits, strict=True) if not wait]

    def next_wakeup(self, now: float) -> float | None:
        """Earliest time at which something can change without a step: a deadline, or a tenant's token bucket.

        For an engine that got an empty step: a virtual clock may jump there. None if nothing is due.
        """
        times = [t for t in (self._state.ledger.next_ready_s(now),) if t is not None]
        while self._deadlines and self._deadlines[0][2].is_finished:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return min(times) if times else None

    # -- commands, between two steps ---------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Check a request and put it into the queue.

        Raises:
            RequestRefused: if it can never run, the id is in use or the queue is full. The request is then
                REFUSED and handed out by `pop_ended`.
        """
        state = self._state
        request.prompt_token_ids = tuple(request.prompt_token_ids)
        try:
            check_request(request, state)
        except RequestRefused as refusal:
            state.counters.submitted += 1
            state.counters.refused += 1
            request.status = RequestStatus.REFUSED
            request.finish_reason = FinishReason.REFUSED
            request.finished_time_s = request.arrival_time_s
            state.tell(request, request.arrival_time_s, "refused", str(refusal))
            state.ended.append(request)
            raise
        state.counters.submitted += 1
        request.arrival_index = state.num_arrivals
        state.num_arrivals += 1
        state.enqueue(request, request.arrival_time_s)
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (request.deadline_s, request.arrival_index, request))

    def abort(self, request_id: str, now: float, reason: FinishReason = FinishReason.CANCELLED) -> RequestEvent:
        """End a request in whatever state it is; its blocks and its id are free at once.

        A request that a decision ended (deadline, capacity) frees its id when its ending event is handed out.

        Raises:
            UnknownRequest: if no live request has this id.
        """
        request = self._live(request_id)
        self._tell()
        return self._state.end(request, RequestStatus.CANCELLED, reason, now)

    def set_priority(self, request_id: str, priority: int, now: float) -> None:
        """Change the priority of a live request (lower runs first).

        Raises:
            UnknownRequest: if no live request has this id.
            ConfigError: if `priority` is not a whole number.
        """
        request = self._live(request_id)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ConfigError(f"priority is {priority!r}; give a whole number (lower runs first)")
        self._tell()
        old, request.priority = request.priority, priority
        if request_id in self._state.queue:
            self._state.queue.rekey(request)
        self._state.tell(request, now, "priority", f"{old} to {priority}", priority)

    def set_config(self, config: SchedulerConfig, now: float) -> list[RequestEvent]:
        """Change the knobs; running requests beyond a new limit are preempted, the most junior first.

        Returns all events since the last call, as do `set_cache`, `forget_kv` and `update_from_output`.

        Raises:
            ConfigError: if the settings make no sense with the cache, or would leave a live request that can
                never run again; nothing has changed then.
        """
        self._tell()
        return self._after_untold(change_config(self._state, config, now))

    def set_cache(self, cache: CacheConfig, now: float) -> list[RequestEvent]:
        """Change the cache. Another size empties the pool: running requests are preempted and recomputed.

        A live request that can never fit the new pool ends with FinishReason.CAPACITY. A change of eviction
        policy or of prefix caching touches no running request.

        Raises:
            ConfigError: if the settings make no sense with the scheduler's; nothing has changed then.
        """
        check_pair(self.config, cache)
        if resets_pool(self.cache, cache):
            self._drop_flight()
        return self._after_untold(change_cache(self._state, cache, now))

    def forget_kv(self, now: float) -> list[RequestEvent]:
        """The executor lost all keys and values: running requests are preempted, every cached block is forgotten.

        A decision that was not booked yet is dropped; whom it ended has ended, and is told of here.
        """
        self._drop_flight()
        return self._after_untold(lose_kv(self._state, now, "the executor lost its memory"))

    def forget_preemptions(self) -> None:
        """Leave out of the next decision what was preempted before it: a new beginning is not told of the old one."""
        self._state.pending.preemptions.clear()

    # -- a step ------------------------------------------------------------------------------------------

    def schedule(self, now: float, *, hold_late: bool = False) -> SchedulerOutput:
        """Decide the next step.

        Args:
            hold_late: under AdmissionMoment.BETWEEN_LAUNCHES leave the requests that arrived since the latest decision
                to `late_join`, which must follow, so that the caller can prepare the shape decided without them.

        Raises:
            InvariantError: if the previous decision was neither booked nor dropped.
        """
        state = self._state
        if self._flight is not None:
            raise InvariantError(f"step {state.step} was decided and not booked; call update_from_output or forget_kv first")
        state.step += 1
        state.kv.swap.settle()
        if self._deadlines:
            self._expire(now)
        plan = StepPlan(state, now)
        if state.batch_rule.fixed:
            plan_fixed(state, plan)
        else:
            between = state.config.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES
            self._decide(plan, known_only=between)
            if between and not hold_late:
                self._join_late(plan)
        return self._launch(plan)

    def late_join(self, now: float) -> SchedulerOutput | None:
        """Let requests that arrived after the decision into the batch that is about to run.

        For AdmissionMoment.BETWEEN_LAUNCHES: an engine may read its command queue once more between `schedule`
        and `execute_model`. Returns the amended decision, which replaces the first; None if nothing changed.
        """
        plan, flight = self._plan, self._flight
        state = self._state
        if plan is None or flight is None or state.batch_rule.fixed:
            return None
        if state.config.admission_moment is not AdmissionMoment.BETWEEN_LAUNCHES:
            return None
        plan.reopen(now)
        self._join_late(plan)
        output = self._launch(plan)
        return output if output != flight.output else None

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
    ) -> list[RequestEvent]:
        """Book the result of the latest decision; return all events since the last call.

        Raises:
            InvariantError: if `scheduler_output` is not the latest decision.
            ExecutorError: if the tokens do not belong to the rows that sample.
        """
        flight = self._flight
        if flight is None or flight.output.step != scheduler_output.step:
            raise InvariantError(f"step {scheduler_output.step} is not the decision that waits to be booked")
        state = self._state
        self._tell()
        booked = apply_step(state, flight, runner_output, now, self.text_stop, self.text_rows)
        self._flight = self._plan = None
        return self._after_untold(booked)

    def tell_no_stories(self) -> None:
        """For a simulation: no stories, quick names for blocks, no checks of fields; steps are booked by `update_quietly`."""
        self._state.tells_stories = self._state.checks_fields = False
        self._state.kv.chain_kind = QuickChain

    def update_quietly(self, sampled: Sequence[int], now: float) -> None:
        """Book the latest decision without events: the state afterwards is that of `update_from_output`.

        Args:
            sampled: the token of each row that samples, in row order.

        Raises:
            InvariantError: if no decision waits to be booked, or a request has tokens that end it.
        """
        flight = self._flight
        if flight is None:
            raise InvariantError("no decision waits to be booked")
        self._tell()
        apply_quietly(self._state, flight, sampled, now)
        self._flight = self._plan = None
        self._state.pending.events.clear()

    def check_invariants(self) -> None:
        """Check the conservation laws.

        Raises:
            InvariantError: with the story of the request concerned.
        """
        check_laws(self._state, self._flight.output if self._flight else None)

    # -- parts -------------------------------------------------------------------------------------------

    def _decide(self, plan: StepPlan, *, known_only: bool) -> None:
        state = self._state
        if state.may_reclaim:
            reclaim(state, plan, known_only=known_only)
        if state.batch_rule.prefill_first:
            plan_prefill_first(state, plan, known_only=known_only)
            return
        plan_decodes(state, plan, decode_budget(state, plan))
        if state.catching_up:
            plan_catching_up(state, plan, plan.budget)
        admit_waiting(state, plan, known_only=known_only)

    def _join_late(self, plan: StepPlan) -> None:
        """Admit into a batch whose shape was decided, and count the shapes that this invalidates."""
        state = self._state
        if not plan.late_joins:
            plan.decided_rows = plan.num_rows()
        plan.passed_over.clear()
        plan.bound, plan.full_batch = BoundBy.LOAD, False
        known = len(plan.admitted), len(plan.resumed)
        admit_waiting(state, plan)
        late = (*plan.admitted[known[0] :], *plan.resumed[known[1] :])
        if late and plan.decided_rows:
            state.counters.invalidated_shapes += not plan.late_joins
        state.counters.late_joins += len(late)
        plan.late_joins += late

    def _launch(self, plan: StepPlan) -> SchedulerOutput:
        state = self._state
        flight = plan.build()
        if flight.all_decodes:
            state.all_rows_step = state.step
        else:
            state.stamp_rows(flight.decodes)
        state.stamp_rows(flight.entries)
        state.boundary_arrivals = state.num_arrivals
        self._flight, self._plan = flight, plan
        return flight.output

    def _tell(self) -> None:
        """Bring the stories up to the decision under way, before anything else is told."""
        if self._plan is not None:
            self._plan.tell()

    def _after_untold(self, events: list[RequestEvent]) -> list[RequestEvent]:
        """Events behind those that waited: all since the last call, in the order in which they came about."""
        told = self._state.pending.take_events()
        told += events
        return told

    def _drop_flight(self) -> None:
        self._tell()
        if self._plan is not None:
            self._state.pending.preemptions[:0] = self._plan.preemptions
        self._flight = self._plan = None

    def _expire(self, now: float) -> None:
        """End requests whose deadline has come."""
        state, heap = self._state, self._deadlines
        while heap and heap[0][0] <= now:
            _, _, request = heapq.heappop(heap)
            if not request.is_finished:
                message = f"its deadline was {request.deadline_s} s"
                event = state.end(request, RequestStatus.CANCELLED, FinishReason.DEADLINE, now, message)
                state.pending.events.append(event)

    def _live(self, request_id: str) -> Request:
        request = self._state.requests.get(request_id)
        if request is None:
            raise UnknownRequest(f"no live request has the id {request_id!r}")
        return request
