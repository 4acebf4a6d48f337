"""One step while it is being decided; `build` freezes it into a SchedulerOutput.

    decode columns (all rows, or the chosen ones)  ++  entries (rows with a token count of their own)

A row enters the plan only after it has its blocks; a victim leaves it at once, so that no request is both
scheduled and preempted in one step.
"""

from __future__ import annotations

from core.outputs import BoundBy, NewRequestData, PassedOver, Preemption, SchedulerOutput
from core.request import Request, RequestStatus
from core.scheduler_state import SchedulerState

MAX_PASSED_OVER = 16


class StepPlan:
    """A decision in the making.

    Attributes:
        budget: tokens of the step that are not given away yet.
        reserve_blocks: available blocks that decodes of this step will take, so prompts must leave them.
        chosen: decoding rows to run; None runs all of them.
        entries: (request, query tokens, is_prefill) of rows outside the decode columns.
        grown: blocks appended in this step to tables that the runner holds.
        fresh: ids admitted in this step; they are no victims in it.
        stalled: running requests that got no block and wait with what they hold.
        took_back: a running request lost its seat or its blocks in this step.
        decided_rows, late_joins: see SchedulerOutput.
    """

    __slots__ = (
        "admitted",
        "bound",
        "budget",
        "chosen",
        "computed",
        "decided_rows",
        "entries",
        "fresh",
        "full_batch",
        "grown",
        "late_joins",
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
        self.computed: list[int] | None = None
        self.entries: list[tuple[Request, int, bool]] = []
        self.settled = 0
        self.grown: dict[str, tuple[int, ...]] = {}
        self.fresh: set[str] = set()
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
        self.entries.append((request, tokens, is_prefill))
        self.budget -= tokens

    def drop(self, request: Request) -> None:
        """Take a victim out of the step."""
        self.grown.pop(request.request_id, None)
        self.stalled.discard(request.request_id)
        self.computed = None
        if self.chosen is not None and request in self.chosen:
            self.chosen.remove(request)
            self.budget += 1
        for at, (row, tokens, _) in enumerate(self.entries):
            if row is request:
                del self.entries[at]
                self.settled -= at < self.settled
                self.budget += tokens
                break

    def pass_over(self, request: Request, bound: BoundBy, detail: str) -> None:
        """Note a waiting request that was looked at and not admitted."""
        if len(self.passed_over) < MAX_PASSED_OVER:
            self.passed_over.append(PassedOver(request.request_id, bound, detail))
        track = self.state.tracks.get(request.request_id)
        if track is not None:
            track.why = detail

    def settle_entries(self) -> None:
        """Book the tokens of the entries that were added since the last call."""
        for request, tokens, _ in self.entries[self.settled :]:
            track = self.state.tracks[request.request_id]
            start = request.num_computed_tokens
            end = start + tokens
            known = max(track.high_water_tokens, start)
            if end > known:
                track.account.charge(end - known)
                track.high_water_tokens = end
            self.state.counters.recomputed_tokens += min(known, end) - start
        self.settled = len(self.entries)

    def settle_decodes(self) -> None:
        """Book one token for each decoding row that runs."""
        if self.chosen is None:
            for account in self.state.ledger.accounts.values():
                if account.decode_rows:
                    account.charge(account.decode_rows)
            return
        tracks = self.state.tracks
        for request in self.chosen:
            tracks[request.request_id].account.charge(1)

    def num_rows(self) -> int:
        """Rows planned so far."""
        decodes = self.state.rows.requests if self.chosen is None else self.chosen
        return len(decodes) + len(self.entries)

    def build(self) -> tuple[SchedulerOutput, list[Request]]:
        """Freeze the step; also return its rows as requests, in the same order."""
        state = self.state
        if self.chosen is None:
            rows, ids = state.rows.requests.copy(), tuple(state.rows.ids)
        else:
            rows = self.chosen.copy()
            ids = tuple([r.request_id for r in rows])
        computed = self.computed
        if computed is None or self.chosen is not None:
            computed = [r.num_computed_tokens for r in rows]
        count = len(rows)
        scheduled: tuple[int, ...] = (1,) * count
        samples: tuple[bool, ...] = (True,) * count
        is_prefill: tuple[bool, ...] = (False,) * count
        contexts = tuple(computed)
        entries = [e for e in self.entries if e[0].status is RequestStatus.RUNNING]
        if entries:
            rows += [r for r, _, _ in entries]
            ids += tuple([r.request_id for r, _, _ in entries])
            scheduled += tuple([n for _, n, _ in entries])
            contexts += tuple([r.num_computed_tokens for r, _, _ in entries])
            samples += tuple([r.num_computed_tokens + n == r.num_tokens for r, n, _ in entries])
            is_prefill += tuple([p for _, _, p in entries])
        self._absorb()
        padded_rows, padded_width, padded_context = self.padded
        output = SchedulerOutput(
            step=state.step,
            request_ids=ids,
            num_scheduled_tokens=scheduled,
            num_computed_tokens=contexts,
            samples=samples,
            is_prefill=is_prefill,
            new_requests=tuple(self.new_requests),
            new_block_ids=tuple(self.grown.items()),
            released_ids=tuple(self.released),
            swap_out=tuple(self.swap_out),
            swap_in=tuple(self.swap_in),
            padded_rows=padded_rows,
            padded_width=padded_width,
            padded_context=padded_context,
            admitted=tuple(self.admitted),
            resumed=tuple(self.resumed),
            preemptions=tuple(self.preemptions),
            passed_over=tuple(self.passed_over),
            num_waiting=state.num_waiting,
            num_running=state.num_running,
            bound_by=self.bound,
            full_batch=self.full_batch,
            decided_rows=self.decided_rows,
            late_joins=self.late_joins,
        )
        return output, rows

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
