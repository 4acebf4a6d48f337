"""The decision of a step in words: who joined, who was passed over and why, who lost its blocks for whom.

Plain sentences from a snapshot; every number in them is the scheduler's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.outputs import BoundBy, Preemption
from core.snapshot import EngineSnapshot

MAX_NAMED = 6

_BOUND = {
    BoundBy.LOAD.value: "Nothing bounds the batch: every request that is here runs in it.",
    BoundBy.SEATS.value: "Seats bound the batch: max_num_seqs requests run and others wait.",
    BoundBy.MEMORY.value: "KV memory bounds the batch: the next request finds too few blocks.",
    BoundBy.BUDGET.value: "The token budget bounds the step: max_num_batched_tokens are planned.",
    BoundBy.QUOTA.value: "A tenant's quota bounds the batch: its next request must wait for its own tenant.",
    BoundBy.POLICY.value: "The batch policy bounds the batch: it admits nobody into this step.",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One part of a decision: a heading of a few words and its detail."""

    head: str
    detail: str


def names(ids: Sequence[str]) -> str:
    """ids as a list in words, the rest counted."""
    shown = ", ".join(ids[:MAX_NAMED])
    more = len(ids) - MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def preemption_words(p: Preemption) -> str:
    """One preemption as a sentence without its step."""
    cost = f"{p.bytes_swapped / 2**20:.3g} MiB swapped out" if p.bytes_swapped else f"{p.tokens_lost} tokens to recompute"
    blocks = "1 block" if p.blocks_freed == 1 else f"{p.blocks_freed} blocks"
    return f"{p.victim} gave {blocks} back for {p.beneficiary or 'nobody in particular'} ({p.reason}); {cost}"


def decision_words(snapshot: EngineSnapshot) -> tuple[Statement, ...]:
    """The latest step's decision; always the same four parts, so that a page does not jump."""
    record = snapshot.step_record
    if record is None:
        return (Statement("No step yet", "The first decision follows the first request."),)
    joined = []
    if snapshot.admitted:
        joined.append(f"admitted {names(snapshot.admitted)}")
    if snapshot.resumed:
        joined.append(f"resumed {names(snapshot.resumed)}")
    here = [p for p in snapshot.preemptions if p.step == record.step]
    over = [f"{p.request_id}: {p.detail}" for p in snapshot.passed_over[:MAX_NAMED]]
    unseen = "nobody was looked at" if snapshot.num_waiting else "nobody waits"
    rows = record.prefill_requests + record.decode_requests
    tokens = record.prefill_tokens + record.decode_tokens
    return (
        Statement(
            f"{rows} rows, {tokens} of {record.budget_tokens} tokens",
            f"{record.decode_requests} decode with one token each, {record.prefill_requests} prefill with"
            f" {record.prefill_tokens}. {_BOUND.get(record.bound_by, '')}".rstrip(),
        ),
        Statement("Who joined", "; ".join(joined) or "nobody"),
        Statement("Who was passed over, and why", "; ".join(over) or unseen),
        Statement("Who was preempted, for whom", "; ".join(preemption_words(p) for p in here) or "nobody"),
    )
