"""One step while it is being decided; `build` freezes it into a SchedulerOutput.

    decode columns (all rows, or the chosen ones)  ++  entries (rows with a token count of their own)

A row enters the plan only after it has its blocks; a victim leaves it at once, so that no request is both
scheduled and preempted in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import add

from core.outputs import BoundBy, NewRequestData, PassedOver, Preemption, RequestEvent, SchedulerOutput
from core.request import Request, RequestStatus
from core.scheduler_state import SchedulerState, Track
from core.slots import by_slots
from core.story_words import block_words

MAX_PASSED_OVER = 16


@dataclass(slots=True)
class Flight:
    """A decision under way, with its rows as the scheduler knows them: decodes, then entries, in row order.

    Attributes:
        all_decodes: every decoding row is among them.
    """

    output: SchedulerOutput
    decodes: list[Request]
    decode_tracks: list[Track]
    entries: list[Request]
    entry_tracks: list[Track]
    all_decodes: bool


class StepPlan:
    """A decision in the making.

    Attributes:
        budget: tokens of the step that are not given away yet.
        reserve_blocks: available blocks that decodes of this step will take, so prompts must leave them.
        chosen: decoding rows to run; None runs all of them.
        entries, entry_tokens, entry_prefill: rows outside the decode columns, their query tokens, whether those are
            prompt (or recomputed) tokens.
        grown: blocks appended in this step to tables that the runner holds.
        fresh: ids admitted in this step; they are no victims in it.
        losses: (victim, reason, blocks it held, what becomes of its KV, computed tokens), not told yet.
        joins: (request, resumed, tokens it found in the cache, whether they were swapped in), not told yet.
        growth_told: `grown` is in the stories already.
        stalled: running requests that got no block and wait with what they hold.
        took_back: a running request lost its seat or its blocks in this step.
        decided_rows, late_joins: see SchedulerOutput.
    """

    __slots__ = (
        "admitted",
        "bound",
        "budget",
        "chosen",
        "decided_rows",
        "entries",
        "entry_prefill",
        "entry_tokens",
        "fresh",
        "full_batch",
        "grown",
        "growth_told",
        "joins",
        "late_joins",
        "losses",
        "new_requests",
        "now",
        "padded",
        "passed_over",
        "preemptions",
        "released",
        "reserve_blocks",
        "resumed",
        "settled",
        "stalled",
        "state",
        "swap_in",
        "swap_out",
        "took_back",
    )

    def __init__(self, state: SchedulerState, now: float) -> None:
        self.state = state
        self.now = now
        self.budget = state.config.max_num_batched_tokens
        self.reserve_blocks = 0
        self.chosen: list[Request] | None = None
        self.entries: list[Request] = []
        self.entry_tokens: list[int] = []
        self.entry_prefill: list[bool] = []
        self.settled = 0
        self.grown: dict[str, tuple[int, ...]] = {}
        self.fresh: set[str] = set()
        self.growth_told = False
        self.losses: list[tuple[Request, str, tuple[int, ...], str, int]] = []
        self.joins: list[tuple[Request, bool, int, bool]] = []
        self.stalled: set[str] = set()
        self.took_back = False
        self.new_requests: list[NewRequestData] = []
        self.swap_in: list[tuple[int, int]] = []
        self.admitted: list[str] = []
        self.resumed: list[str] = []
        self.passed_over: list[PassedOver] = []
        self.bound = BoundBy.LOAD
        self.full_batch = False
        self.padded = (0, 0, 0)
        self.decided_rows = 0
        self.late_joins: tuple[str, ...] = ()
        self.preemptions: list[Preemption] = []
        self.swap_out: list[tuple[int, int]] = []
        self.released: list[str] = []

    def run(self, request: Request, tokens: int, is_prefill: bool = True) -> None:
        """Give a row its query tokens."""
        self.entries.append(request)
        self.entry_tokens.append(tokens)
        self.entry_prefill.append(is_prefill)
        self.budget -= tokens

    def run_fresh(self, requests: list[Request], tokens: list[int]) -> None:
        """`run` for rows that were just admitted, whose tokens are booked already."""
        self.entries += requests
        self.entry_tokens += tokens
        self.entry_prefill += [True] * len(requests)
        self.budget -= sum(tokens)
        self.settled = len(self.entries)

    def drop(self, request: Request) -> None:
        """Take a victim out of the step."""
        self.grown.pop(request.request_id, None)
        self.stalled.discard(request.request_id)
        if self.chosen is not None and request in self.chosen:
            self.chosen.remove(request)
            self.budget += 1
        if request in self.entries:
            at = self.entries.index(request)
            self.budget += self.entry_tokens[at]
            self._delete_entry(at)

    def pass_over(self, request: Request, bound: BoundBy, detail: str) -> None:
        """Note a waiting request that was looked at and not admitted."""
        if len(self.passed_over) < MAX_PASSED_OVER:
            self.passed_over.append(_passed_over(request.request_id, bound, detail))
        track = self.state.tracks.get(request.request_id)
        if track is not None:
            track.why = detail

    def settle_entries(self) -> None:
        """Book the tokens of the entries that were added since the last call."""
        for at in range(self.settled, len(self.entries)):
            request = self.entries[at]
            track = self.state.tracks[request.request_id]
            start = request.num_computed_tokens
            end = start + self.entry_tokens[at]
            known = max(track.high_water_tokens, start)
            if end > known:
                track.account.charge(end - known)
                track.high_water_tokens = end
            if known > start:
                self.state.counters.recomputed_tokens += min(known, end) - start
        self.settled = len(self.entries)

    def settle_decodes(self) -> None:
        """Book one token for each decoding row that runs."""
        if self.chosen is None:
            for account in self.state.ledger.accounts.values():
                account.charge(account.decode_rows)
            return
        tracks = self.state.tracks
        for request in self.chosen:
            tracks[request.request_id].account.charge(1)

    def tell(self) -> None:
        """Write the stories of who joined, grew and lost blocks: off the critical path, once the step is on its way."""
        state, now = self.state, self.now
        if not state.tells_stories:
            self.losses.clear()
            self.joins.clear()
            return
        for victim, why, held, fate, computed in self.losses:
            state.tell(victim, now, "preempted", f"{why}; {block_words(held)}; {fate}", computed)
        self.losses.clear()
        for request, resumed, start, swapped in self.joins:
            kind = "resumed" if resumed else "admitted"
            table = state.kv.block_ids(request.request_id)
            found = f"; {start} tokens {'swapped in' if swapped else 'from the prefix cache'}" if start else ""
            state.tell(request, now, kind, block_words(table) + found, start, table)
            state.pending.events.append(RequestEvent(request.request_id, kind, now, state.step))
        self.joins.clear()
        if not self.growth_told:
            self.growth_told = True
            for request_id, new in self.grown.items():
                grower = state.requests.get(request_id)
                if grower is not None:
                    state.tell(grower, now, "blocks", f"{block_words(new)} added", len(new), new)

    def num_rows(self) -> int:
        """Rows planned so far."""
        return (len(self.state.rows) if self.chosen is None else len(self.chosen)) + len(self.entries)

    def build(self) -> Flight:
        """Freeze the step."""
        state = self.state
        if self.chosen is None:
            (decodes, tracks), ids, contexts = state.rows.lend(), state.rows.ids, state.rows.contexts
        else:
            decodes = self.chosen.copy()
            tracks = [state.tracks[r.request_id] for r in decodes]
            ids = tuple([r.request_id for r in decodes])
            contexts = tuple([r.num_computed_tokens for r in decodes])
        scheduled, samples, is_prefill = _decode_columns(len(decodes))
        entries = self.entries.copy()
        if entries:
            starts = [r.num_computed_tokens for r in entries]
            ids += tuple([r.request_id for r in entries])
            scheduled += tuple(self.entry_tokens)
            contexts += tuple(starts)
            ends = map(add, starts, self.entry_tokens)
            samples += tuple([end == r.num_tokens for end, r in zip(ends, entries, strict=True)])
            is_prefill += tuple(self.entry_prefill)
        self._absorb()
        output = _freeze(
            state.step,
            ids,
            scheduled,
            contexts,
            samples,
            is_prefill,
            tuple(self.new_requests),
            tuple(self.grown.items()),
            tuple(self.released),
            tuple(self.swap_out),
            tuple(self.swap_in),
            (),  # copy_blocks
            *self.padded,
            tuple(self.admitted),
            tuple(self.resumed),
            tuple(self.preemptions),
            tuple(self.passed_over),
            state.num_waiting,
            state.num_running,
            self.bound,
            self.full_batch,
            self.decided_rows,
            self.late_joins,
        )
        entry_tracks = [state.tracks[r.request_id] for r in entries]
        return Flight(output, decodes, tracks, entries, entry_tracks, self.chosen is None)

    def reopen(self, now: float) -> None:
        """Go on with a decision that was built already: rows that were cancelled since leave it."""
        self.now = now
        if self.chosen is not None:
            self.chosen = [r for r in self.chosen if r.status is RequestStatus.RUNNING]
        for at in reversed(range(len(self.entries))):
            if self.entries[at].status is not RequestStatus.RUNNING:
                self._delete_entry(at)
        live = {r.request_id for r in self.state.running()}  # an id that was cancelled may wait again already
        self.grown = {request_id: new for request_id, new in self.grown.items() if request_id in live}
        self.stalled &= live
        self.new_requests = [new for new in self.new_requests if new.request_id in live]
        self.admitted = [request_id for request_id in self.admitted if request_id in live]
        self.resumed = [request_id for request_id in self.resumed if request_id in live]

    def clear_entries(self) -> None:
        """Take all entries out again: a fixed batch gives its rows their tokens by columns."""
        self.entries.clear()
        self.entry_tokens.clear()
        self.entry_prefill.clear()
        self.settled = 0

    def _delete_entry(self, at: int) -> None:
        self.settled -= at < self.settled
        del self.entries[at], self.entry_tokens[at], self.entry_prefill[at]

    def _absorb(self) -> None:
        """Take over what happened since the previous decision and during this one."""
        pending = self.state.pending
        if pending.released:
            self.released += pending.released
            pending.released = []
        if pending.preemptions:
            self.preemptions += pending.preemptions
            pending.preemptions = []
        if pending.swap_out:
            self.swap_out += pending.swap_out
            pending.swap_out = []


@lru_cache(maxsize=1024)
def _decode_columns(count: int) -> tuple[tuple[int, ...], tuple[bool, ...], tuple[bool, ...]]:
    """num_scheduled_tokens, samples and is_prefill of `count` decoding rows."""
    return (1,) * count, (True,) * count, (False,) * count


_freeze = by_slots(SchedulerOutput)
_passed_over = by_slots(PassedOver)
