"""Conservation laws above the scheduler's own, checked after each step where the debug switch is on.

submitted = waiting + running + preempted + finished + cancelled + refused
tokens planned <= budget,  rows <= seats,  at most one output token a row, only where one was planned
counters never fall,  gauges are never negative,  nothing is live when nothing runs
something advances within a bounded number of steps, or the decision says why not
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from core.errors import InvariantError
from core.outputs import RequestEvent, SchedulerOutput
from core.snapshot import PoolCounts, Totals

MAX_SILENT_STEPS = 1000
"""Steps without a single token, while requests wait and no cause is given, after which the engine counts as stuck."""


def _law(ok: bool, message: str) -> None:
    if not ok:
        raise InvariantError(message)


class EngineLaws:
    """Remembers what it must compare with."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._silent_steps = 0

    def on_step(self, output: SchedulerOutput, events: Iterable[RequestEvent], *, budget_tokens: int, max_num_seqs: int) -> None:
        """Check one step.

        Raises:
            InvariantError: naming the law and the numbers.
        """
        ids = output.request_ids
        rows = len(ids)
        for name in ("num_scheduled_tokens", "num_computed_tokens", "samples", "is_prefill"):
            _law(len(getattr(output, name)) == rows, f"step {output.step}: column {name} does not have {rows} entries")
        _law(len(set(ids)) == rows, f"step {output.step}: a request is scheduled twice in {ids}")
        _law(all(n >= 1 for n in output.num_scheduled_tokens), f"step {output.step}: a row was given no token")
        total = output.total_tokens
        _law(total <= budget_tokens, f"step {output.step}: {total} tokens planned above the budget of {budget_tokens}")
        _law(rows <= max_num_seqs, f"step {output.step}: {rows} rows on {max_num_seqs} seats")
        both = {p.victim for p in output.preemptions if p.step == output.step} & set(ids)
        _law(not both, f"step {output.step}: {sorted(both)} both scheduled and preempted")
        sampling = {request_id for request_id, samples in zip(ids, output.samples, strict=True) if samples}
        tokens = [e.request_id for e in events if e.kind == "token"]
        _law(len(set(tokens)) == len(tokens), f"step {output.step}: a request got two tokens")
        extra = set(tokens) - sampling
        _law(not extra, f"step {output.step}: {sorted(extra)} got a token that was not planned")
        self._silent_steps = 0 if rows or output.passed_over else self._silent_steps + 1
        _law(
            self._silent_steps <= MAX_SILENT_STEPS,
            f"step {output.step}: nothing has run for {self._silent_steps} steps, {output.num_waiting} requests wait"
            " and the scheduler does not say why",
        )

    def on_books(self, totals: Totals, waiting: int, running: int, preempted: int, pool: PoolCounts) -> None:
        """Check the totals against the sets.

        Raises:
            InvariantError: naming the law and the numbers.
        """
        live = waiting + running + preempted
        ended = totals.finished + totals.cancelled + totals.refused
        _law(
            totals.submitted == live + ended,
            f"{totals.submitted} submitted, but {waiting} waiting + {running} running + {preempted} preempted"
            f" + {totals.finished} finished + {totals.cancelled} cancelled + {totals.refused} refused",
        )
        _law(
            min(waiting, running, preempted) >= 0, f"negative gauge: {waiting} waiting, {running} running, {preempted} preempted"
        )
        for field in fields(Totals):
            before, now = getattr(self._totals, field.name), getattr(totals, field.name)
            _law(now >= before, f"total {field.name} fell from {before} to {now}")
        self._totals = totals
        _law(
            min(pool.live, pool.cached, pool.free) >= 0 and pool.live + pool.cached + pool.free == pool.total,
            f"{pool.live} live + {pool.cached} cached + {pool.free} free blocks are not {pool.total}",
        )
        _law(0.0 <= pool.usage <= 1.0, f"pool usage is {pool.usage}")
        _law(live > 0 or pool.live == 0, f"nothing is running, but {pool.live} blocks are live")

    def reset(self) -> None:
        """Totals start at zero again."""
        self._totals = Totals()
        self._silent_steps = 0
