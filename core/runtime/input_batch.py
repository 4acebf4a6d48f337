"""What the runner remembers of each request, as columns, and how a decision becomes a flat batch.

    row = one live request          token_ids[row, :num_tokens]      prompt and output so far
                                    block_tables[row, :num_blocks]   physical blocks, logical order

Rows are kept between steps; a step only gathers from them: position p of row r lies in slot
block_tables[r, p // block_size] * block_size + p % block_size. A decode step (one token in each row, all sampled) takes
a shorter way to the same batch, in which nothing is built that follows from the number of rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.errors import ExecutorError
from core.outputs import NewRequestData, SchedulerOutput
from core.request import SamplingParams
from core.runtime.backend import Int32, Int64, StepBatch


@dataclass(slots=True)
class PlannedStep:
    """A batch and the rows that get a token from it.

    Attributes:
        sample_ids: request ids of the sampled rows, row order; their logits come first in the batch.
        sample_rows: [len(sample_ids)] rows of the store.
    """

    batch: StepBatch
    sample_ids: tuple[str, ...]
    sample_rows: Int64


@dataclass(frozen=True, slots=True)
class RowCalls:
    """Compiled forms of what a decode step does with its rows; the numpy form is beside each use.

    Attributes:
        gather: (rows, starts, token_ids, num_tokens, num_blocks, block_tables, block_size, then written: token ids,
            positions, slots, contexts, tables) -> False for a row that is not ready to compute token `starts`.
        put: (rows, new int64 tokens, token_ids, num_tokens), the latter two are written -> False, and nothing is, for want
            of room.
    """

    gather: Callable[..., bool]
    put: Callable[..., bool]


class _Counted:
    """What a decode step of so many rows shares with every other of them; nobody writes to it."""

    def __init__(self, rows: int) -> None:
        self.ones, self.trues = (1,) * rows, (True,) * rows
        self.indices: Int64 = np.arange(rows)
        self.starts: Int32 = np.arange(rows + 1, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.ones)


def _is_plain(p: SamplingParams) -> bool:
    return p.is_greedy and not p.min_tokens and not p.logprobs


def _grown(array: npt.NDArray[np.generic], rows: int, columns: int | None = None) -> npt.NDArray[np.generic]:
    shape = (rows,) if columns is None else (rows, columns)
    bigger = np.zeros(shape, dtype=array.dtype)
    bigger[tuple(slice(0, n) for n in array.shape)] = array
    return bigger


def _at_least(current: int, needed: int) -> int:
    return current if needed <= current else max(needed, 2 * current)


class InputBatch:
    """Per-request state in preallocated arrays; they double when they overflow.

    Every index that a kernel will follow is checked here once, when it arrives: compiled code does not look again.

    Args:
        block_size: tokens in a block.
        scratch_block: where padding writes; blocks below it are the pool.
        vocab_size, max_model_len: limits of token ids and of positions.
    """

    def __init__(
        self, block_size: int, scratch_block: int, vocab_size: int, max_model_len: int, *, rows: int = 32, tokens: int = 512
    ) -> None:
        self.block_size = block_size
        self.scratch_block = scratch_block
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self.row_of_id: dict[str, int] = {}
        self.sampling: list[SamplingParams | None] = [None] * rows
        self.token_ids: npt.NDArray[np.int32] = np.zeros((rows, tokens), np.int32)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((rows, -(-tokens // block_size)), np.int32)
        self.num_tokens: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.num_prompt_tokens: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.num_blocks: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.seeds: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._latest_ids: tuple[str, ...] = ()
        self._latest_rows: Int64 = np.zeros(0, np.int64)
        self._special_rows: set[int] = set()  # rows that want more than the likeliest token
        self._counted = _Counted(0)
        self.calls: RowCalls | None = None  # compiled code, once there is some

    def add(self, new: NewRequestData) -> None:
        """Take a request that enters (or re-enters) the batch; one of the same id is replaced.

        Raises:
            ExecutorError: for a token or a block that does not exist.
        """
        if new.token_ids and not 0 <= min(new.token_ids) <= max(new.token_ids) < self._vocab_size:
            raise ExecutorError(
                f"request {new.request_id} holds token {max(new.token_ids)} or {min(new.token_ids)};"
                f" this model's tokens are 0 to {self._vocab_size - 1}"
            )
        self.drop((new.request_id,))
        if not self._free_rows:
            self._grow_rows()
        row = self._free_rows.pop()
        count = len(new.token_ids)
        self._reserve_tokens(count + 1)
        self.row_of_id[new.request_id] = row
        self.sampling[row] = new.sampling
        if not _is_plain(new.sampling):
            self._special_rows.add(row)
        self.seeds[row] = new.sampling_seed
        self.token_ids[row, :count] = new.token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.num_blocks[row] = 0
        self.append_blocks(new.request_id, new.block_ids)

    def append_blocks(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Append physical blocks to a request's table.

        Raises:
            ExecutorError: if the request is not held, or a block does not exist.
        """
        row = self._row(request_id)
        if block_ids and not 0 <= min(block_ids) <= max(block_ids) < self.scratch_block:
            raise ExecutorError(f"request {request_id} is given blocks {block_ids}; the pool has {self.scratch_block} blocks")
        first = int(self.num_blocks[row])
        last = first + len(block_ids)
        columns = self.block_tables.shape[1]
        if last > columns:
            self.block_tables = _grown(self.block_tables, self.block_tables.shape[0], _at_least(columns, last))  # type: ignore[assignment]
        self.block_tables[row, first:last] = block_ids
        self.num_blocks[row] = last

    def drop(self, request_ids: Sequence[str]) -> None:
        """Forget requests; ids that are not held are ignored (a request may end before it ever ran)."""
        for request_id in request_ids:
            row = self.row_of_id.pop(request_id, None)
            if row is not None:
                self.sampling[row] = None
                self._special_rows.discard(row)
                self._free_rows.append(row)
                self._latest_ids = ()

    def all_plain(self) -> bool:
        """True if every request that is held wants the likeliest token and nothing else."""
        return not self._special_rows

    def commit(self, rows: Int64, token_ids: Int64) -> None:
        """Append one sampled token to each row."""
        if not len(rows):
            return
        if self.calls is not None and self.calls.put(rows, token_ids, self.token_ids, self.num_tokens):
            return
        places = self.num_tokens[rows]
        self._reserve_tokens(int(places.max()) + 1)
        self.token_ids[rows, places] = token_ids
        self.num_tokens[rows] = places + 1

    def plan(self, step: SchedulerOutput) -> PlannedStep:
        """Turn a decision into a batch.

        Raises:
            ExecutorError: for a row that is not held, lacks tokens or blocks, or samples before its context is complete.
        """
        rows = self._rows(step.request_ids)
        starts = np.array(step.num_computed_tokens, np.int64)
        decode = self._decode(step, rows, starts)
        if decode is not None:
            return PlannedStep(decode, step.request_ids, rows)
        counts = np.array(step.num_scheduled_tokens, np.int64)
        samples = np.array(step.samples, bool)
        ends = starts + counts
        self._check(step, rows, counts, ends, samples)
        sample_ids = tuple(i for i, s in zip(step.request_ids, step.samples, strict=True) if s)
        build = self._rectangle if step.padded_rows else self._ragged
        return PlannedStep(build(step, rows, counts, starts, ends, samples), sample_ids, rows[samples])

    def _decode(self, step: SchedulerOutput, rows: Int64, starts: Int64) -> StepBatch | None:
        """The batch of a decode step; None for another step and for one that is wrong, which `_check` then explains."""
        count = self._counted
        if len(count) != len(rows):
            count = self._counted = _Counted(len(rows))
        if step.padded_rows or step.num_scheduled_tokens != count.ones or step.samples != count.trues or not count.ones:
            return None
        if self.calls is not None:
            return self._gathered(self.calls, max(step.num_computed_tokens) + 1, rows, starts, count)
        ends = starts + 1
        if not np.array_equal(ends, self.num_tokens[rows]) or (ends > self.num_blocks[rows] * self.block_size).any():
            return None
        most = int(ends.max())
        if most > self._max_model_len:
            return None
        return StepBatch(
            token_ids=self.token_ids[rows, starts],
            positions=starts.astype(np.int32),
            slot_mapping=self._slots(rows, starts),
            row_of=count.starts[:-1],
            query_start=count.starts,
            context_lens=ends.astype(np.int32),
            block_tables=self.block_tables[rows, : -(-most // self.block_size)],
            logits_indices=count.indices,
        )

    def _gathered(self, calls: RowCalls, most: int, rows: Int64, starts: Int64, count: _Counted) -> StepBatch | None:
        """As the rest of `_decode`."""
        width = -(-most // self.block_size)
        if most > self._max_model_len or most > self.token_ids.shape[1] or width > self.block_tables.shape[1]:
            return None
        size = len(rows)
        token_ids, positions, contexts = (np.empty(size, np.int32) for _ in range(3))
        slots, tables = np.empty(size, np.int64), np.empty((size, width), np.int32)
        known = self.token_ids, self.num_tokens, self.num_blocks, self.block_tables, self.block_size
        if not calls.gather(rows, starts, *known, token_ids, positions, slots, contexts, tables):
            return None
        starts_of = count.starts
        return StepBatch(token_ids, positions, slots, starts_of[:-1], starts_of, contexts, tables, count.indices)

    def _ragged(
        self, step: SchedulerOutput, rows: Int64, counts: Int64, starts: Int64, ends: Int64, samples: npt.NDArray[np.bool_]
    ) -> StepBatch:
        query_start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        row_of = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(len(row_of)) + (starts - query_start[:-1])[row_of]
        held = rows[row_of]
        width = -(-int(ends.max()) // self.block_size)
        return StepBatch(
            token_ids=self.token_ids[held, positions],
            positions=positions.astype(np.int32),
            slot_mapping=self._slots(held, positions),
            row_of=row_of.astype(np.int32),
            query_start=query_start.astype(np.int32),
            context_lens=ends.astype(np.int32),
            block_tables=np.ascontiguousarray(self.block_tables[rows, :width]),
            logits_indices=query_start[1:][samples] - 1,
        )

    def _rectangle(
        self, step: SchedulerOutput, rows: Int64, counts: Int64, starts: Int64, ends: Int64, samples: npt.NDArray[np.bool_]
    ) -> StepBatch:
        """Rows of equal width over contexts of equal length.

        Padding tokens and held rows write to slot 0 of the scratch block and sit at position 0, so that they see one
        finite key and nothing else.
        """
        height, width, context = step.padded_rows, step.padded_width, step.padded_context
        if height < len(rows) or width < counts.max() or context < ends.max():
            raise ExecutorError(
                f"step {step.step} pads to {height} rows x {width} tokens over {context} slots, less than its"
                f" {len(rows)} rows, {counts.max()} tokens and {ends.max()} slots need"
            )
        token_ids = np.zeros((height, width), np.int32)
        positions = np.zeros((height, width), np.int32)
        slots = np.full((height, width), self.scratch_block * self.block_size, np.int64)
        tables = np.full((height, -(-context // self.block_size)), self.scratch_block, np.int32)
        for index, row in enumerate(rows.tolist()):
            count, start = int(counts[index]), int(starts[index])
            places = np.arange(start, start + count)
            token_ids[index, :count] = self.token_ids[row, start : start + count]
            positions[index, :count] = places
            slots[index, :count] = self._slots(np.full(count, row), places)
            used = -(-int(ends[index]) // self.block_size)
            tables[index, :used] = self.block_tables[row, :used]
        first = np.arange(height) * width
        held = first[len(rows) :] if samples.any() else first[:0]  # a real padded batch computes logits for them too
        wanted = np.concatenate(((first[: len(rows)] + counts - 1)[samples], held))
        return StepBatch(
            token_ids=token_ids.ravel(),
            positions=positions.ravel(),
            slot_mapping=slots.ravel(),
            row_of=np.repeat(np.arange(height, dtype=np.int32), width),
            query_start=(np.arange(height + 1) * width).astype(np.int32),
            context_lens=np.full(height, context, np.int32),
            block_tables=tables,
            logits_indices=wanted,
            padded=True,
        )

    def _slots(self, rows: Int64, positions: npt.NDArray[np.int64]) -> Int64:
        blocks = self.block_tables[rows, positions // self.block_size].astype(np.int64)
        slots: Int64 = blocks * self.block_size + positions % self.block_size
        return slots

    def _check(self, step: SchedulerOutput, rows: Int64, counts: Int64, ends: Int64, samples: npt.NDArray[np.bool_]) -> None:
        known = self.num_tokens[rows]
        if ends.size and int(ends.max()) > self._max_model_len:
            raise ExecutorError(
                f"step {step.step} plans request {step.request_ids[int(ends.argmax())]} up to token {ends.max()};"
                f" positions end at {self._max_model_len}"
            )
        bad = (counts < 1) | (ends > known) | (ends > self.num_blocks[rows] * self.block_size) | (samples & (ends != known))
        if bad.any():
            at = int(np.argmax(bad))
            raise ExecutorError(
                f"step {step.step} plans request {step.request_ids[at]} up to token {ends[at]} ({counts[at]} in this step,"
                f" sampling: {bool(samples[at])}), but the runner holds {known[at]} of its tokens and"
                f" {self.num_blocks[rows[at]]} blocks of {self.block_size}"
            )

    def _rows(self, request_ids: tuple[str, ...]) -> Int64:
        if request_ids != self._latest_ids:
            self._latest_rows = np.array([self._row(i) for i in request_ids], np.int64)
            self._latest_ids = request_ids
        return self._latest_rows

    def _row(self, request_id: str) -> int:
        row = self.row_of_id.get(request_id)
        if row is None:
            raise ExecutorError(f"the runner does not hold request {request_id}; it must come as a new request first")
        return row

    def _reserve_tokens(self, columns: int) -> None:
        have = self.token_ids.shape[1]
        if columns > have:
            self.token_ids = _grown(self.token_ids, self.token_ids.shape[0], _at_least(have, columns))  # type: ignore[assignment]

    def _grow_rows(self) -> None:
        old = len(self.num_tokens)
        new = 2 * old
        self.token_ids = _grown(self.token_ids, new, self.token_ids.shape[1])  # type: ignore[assignment]
        self.block_tables = _grown(self.block_tables, new, self.block_tables.shape[1])  # type: ignore[assignment]
        for name in ("num_tokens", "num_prompt_tokens", "num_blocks", "seeds"):
            setattr(self, name, _grown(getattr(self, name), new))
        self.sampling.extend([None] * old)
        self._free_rows.extend(range(new - 1, old - 1, -1))


__all__ = ["InputBatch", "Int32", "PlannedStep"]
