"""What runs in one step, as columns, and the sums that its cost depends on.

A row with q query tokens and c tokens already cached reads c + q KV slots and attends to
q*c + q*(q+1)/2 of them (causal, the token itself included, the masked half not counted).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

from core.outputs import SchedulerOutput
from core.slots import by_slots


@dataclass(frozen=True, slots=True)
class StepSums:
    """What the cost of a step depends on, summed over its rows.

    Attributes:
        rows: rows of the batch.
        query_tokens: tokens run through the layers.
        sampled: rows whose logits are computed.
        context_tokens: KV slots read, sum over rows.
        attended_tokens: sum over query tokens of the keys that each attends to.
    """

    rows: int
    query_tokens: int
    sampled: int
    context_tokens: int
    attended_tokens: int


_sums = by_slots(StepSums)
NO_WORK = StepSums(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class StepComposition:
    """One step as columns: entry i of each tuple is row i.

    Attributes:
        query_tokens: tokens of the row run in this step, >= 1.
        context_before: tokens of the row already in the KV cache.
        samples: True where the row's logits are computed.
        padded_rows, padded_width, padded_context: shape that a fixed batch really runs; 0 if not padded.
        swap_bytes: bytes between device and host memory.
        copy_bytes: bytes of block copies on the device (each is read and written).
    """

    query_tokens: tuple[int, ...] = ()
    context_before: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()
    padded_rows: int = 0
    padded_width: int = 0
    padded_context: int = 0
    swap_bytes: float = 0.0
    copy_bytes: float = 0.0

    @classmethod
    def from_scheduler_output(cls, output: SchedulerOutput, block_bytes: float = 0.0) -> StepComposition:
        """Read a decision; `block_bytes` is the size of one KV block over all layers."""
        return cls(
            query_tokens=output.num_scheduled_tokens,
            context_before=output.num_computed_tokens,
            samples=output.samples,
            padded_rows=output.padded_rows,
            padded_width=output.padded_width,
            padded_context=output.padded_context,
            swap_bytes=(len(output.swap_in) + len(output.swap_out)) * block_bytes,
            copy_bytes=len(output.copy_blocks) * block_bytes,
        )

    @classmethod
    def decode(cls, contexts: tuple[int, ...]) -> StepComposition:
        """A step of one token a row; `contexts` are tokens already cached."""
        rows = len(contexts)
        return cls((1,) * rows, contexts, (True,) * rows)

    @classmethod
    def prefill(cls, tokens: int, context_before: int = 0) -> StepComposition:
        """One prompt (or its last chunk) alone in a step."""
        return cls((tokens,), (context_before,), (True,))

    def sums(self, window: int | None = None) -> StepSums:
        """Sums over the live rows; `window` is the sliding window of the attention, if any."""
        return sum_columns(self.query_tokens, self.context_before, self.samples, window)

    def padded_sums(self, window: int | None = None) -> StepSums:
        """Sums over what really runs: the padded rectangle of a fixed batch, else the live rows."""
        rows, width = self.padded_rows, self.padded_width
        if not rows:
            return self.sums(window)
        context = max(self.padded_context, width)
        read = context if window is None else min(context, window + width - 1)
        sampled = rows if any(self.samples) else 0
        return StepSums(rows, rows * width, sampled, rows * read, rows * attended_tokens(width, context - width, window))


def sum_columns(
    queries: tuple[int, ...], before: tuple[int, ...], samples: tuple[bool, ...], window: int | None = None
) -> StepSums:
    """Sums over the rows of a step: query tokens, tokens cached before it, and which rows sample."""
    rows = len(queries)
    total = sum(queries)
    sampled = sum(samples)
    if window is not None:
        pairs = tuple(zip(queries, before, strict=True))
        read = sum(min(q + c, window + q - 1) for q, c in pairs)
        return StepSums(rows, total, sampled, read, sum(attended_tokens(q, c, window) for q, c in pairs))
    cached = sum(before)
    if total == rows:  # decode only: every row attends to what it reads
        return _sums(rows, total, sampled, cached + rows, cached + rows)
    triangle = (sum(map(mul, queries, queries)) + total) // 2
    return StepSums(rows, total, sampled, cached + total, sum(map(mul, queries, before)) + triangle)


def attended_tokens(query_tokens: int, context_before: int, window: int | None = None) -> int:
    """Sum over t = 1..query_tokens of min(context_before + t, window): the keys that a causal row attends to."""
    q, c = query_tokens, context_before
    if window is None or c + q <= window:
        return q * c + q * (q + 1) // 2
    growing = max(window - c, 0)  # query tokens whose context is still inside the window
    return growing * c + growing * (growing + 1) // 2 + (q - growing) * window
