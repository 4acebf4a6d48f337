"""Activations of a step and the part of its description that changes from step to step.

items: (row, first token, tokens) with tokens * heads <= ITEM_ROWS, long contexts first so that threads end together
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from core.model_spec import ModelSpec
from core.runtime.backend import Best, StepBatch
from core.runtime.kernels.attention import ITEM_ROWS
from core.runtime.kernels.describe import MOST_SORTED, compiled_describe
from core.runtime.kernels.description import Word
from core.runtime.kernels.merge import compiled_merge
from core.runtime.kernels.pack import padded
from core.runtime.kernels.tiles import PANEL

Int32 = npt.NDArray[np.int32]
_INPUTS = (Word.NORMED, Word.ATTENDED, Word.ACTIVATED)


def attention_items(batch: StepBatch, heads: int) -> tuple[Int32, Int32, Int32]:
    """Split the batch into attention items: (row, first token, number of tokens), most work first."""
    counts = np.diff(batch.query_start)
    most = max(ITEM_ROWS // heads, 1)
    pieces = -(-counts // most)
    if len(counts) == 0 or pieces.max() <= 1:
        order = np.argsort(-batch.context_lens.astype(np.int64) * counts, kind="stable").astype(np.int32)
        return order, batch.query_start[:-1][order], counts[order].astype(np.int32)
    rows = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = batch.query_start[:-1][rows] + piece * most
    tokens = np.minimum(counts[rows] - piece * most, most)
    by_work = np.argsort(-(batch.context_lens[rows].astype(np.int64) * tokens), kind="stable")
    return rows[by_work].astype(np.int32), first[by_work].astype(np.int32), tokens[by_work].astype(np.int32)


class StepBuffers:
    """Owns the activations; they grow to the largest step seen and are reused.

    Args:
        inputs: dtype of the activations that products read.
    """

    def __init__(self, spec: ModelSpec, threads: int, inputs: torch.dtype = torch.float32) -> None:
        self._spec = spec
        self._inputs = inputs
        self._threads = threads
        self._capacity = 0
        self._logits_capacity = 0
        self._widths = {
            Word.X: spec.hidden_size,
            Word.NORMED: spec.hidden_size,
            Word.QKV: padded(spec.q_size + 2 * spec.kv_size),
            Word.ATTENDED: spec.q_size,
            Word.ACTIVATED: padded(spec.intermediate_size),
        }
        self._activations: dict[Word, torch.Tensor] = {}
        self._logits = torch.empty(0)
        self._merge = compiled_merge()
        self._best = np.zeros((threads, 0, 3, PANEL), np.float32)
        self._best_numbers = self._best.view(np.int32)
        self._describe = compiled_describe()
        self._ones, self._order = np.ones(64, np.int32), np.zeros(64, np.int32)
        self._held: tuple[object, ...] = ()

    def reserve(self, description: npt.NDArray[np.int64], tokens: int, logits: int) -> None:
        """Make room and write the addresses of the activations into the description."""
        if tokens > self._capacity:
            self._capacity = max(tokens, 2 * self._capacity, 16)
            for word, width in self._widths.items():
                dtype = self._inputs if word in _INPUTS else torch.float32
                self._activations[word] = torch.zeros(self._capacity, width, dtype=dtype)
                description[word] = self._activations[word].data_ptr()
            description[Word.QKV_STRIDE] = self._widths[Word.QKV]
            description[Word.ACTIVATED_STRIDE] = self._widths[Word.ACTIVATED]
        if logits > self._logits_capacity:
            self._logits_capacity = max(logits, 2 * self._logits_capacity)
            self._logits = torch.zeros(self._logits_capacity, padded(self._spec.vocab_size))
            description[Word.LOGITS] = self._logits.data_ptr()
            description[Word.LOGITS_STRIDE] = self._logits.shape[1]
            self._best = np.zeros((self._threads, self._logits_capacity, 3, PANEL), np.float32)
            self._best_numbers = self._best.view(np.int32)
            description[Word.BEST] = self._best.ctypes.data
            description[Word.BEST_THREAD_BYTES] = self._best.strides[0]
        self._best[:, :logits, 0] = -np.inf
        self._best[:, :logits, 2] = 0.0

    def best_tokens(self, count: int) -> Best:
        """Merge the lanes of all threads: the first of the largest logits of `count` rows, its value (NaN if one is broken)."""
        tokens, values = np.empty(count, np.int64), np.empty(count, np.float32)
        finite = self._merge(self._best, self._best_numbers, tokens, values)
        return Best(tokens, values, bool(finite))

    def write_batch(self, description: npt.NDArray[np.int64], batch: StepBatch) -> None:
        """Write counts and addresses of the batch's arrays; they are kept alive until the next step."""
        if batch.is_decode_only and not batch.padded and 0 < batch.num_rows <= MOST_SORTED:
            self._write_decode(description, batch)
        else:
            self._write_any(description, batch)
        # all KV heads of a block lie together in memory, so they are read together unless threads would go without work
        enough = int(description[Word.ITEMS]) >= 4 * self._threads
        description[Word.HEADS_A_UNIT] = self._spec.num_kv_heads if enough else 1
        description[Word.READ_ALL] = int(batch.padded)

    def _write_decode(self, description: npt.NDArray[np.int64], batch: StepBatch) -> None:
        rows = batch.num_rows
        if rows > len(self._ones):
            self._ones, self._order = np.ones(2 * rows, np.int32), np.zeros(2 * rows, np.int32)
        held = (
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.block_tables,
            batch.context_lens,
            batch.logits_indices,
        )
        self._describe(description, *held, self._order, self._ones)
        self._held = held

    def _write_any(self, description: npt.NDArray[np.int64], batch: StepBatch) -> None:
        rows, first, tokens = attention_items(batch, self._spec.num_heads)
        arrays: dict[Word, npt.NDArray[np.generic]] = {
            Word.TOKEN_IDS: np.ascontiguousarray(batch.token_ids, np.int32),
            Word.POSITIONS: np.ascontiguousarray(batch.positions, np.int32),
            Word.SLOT_MAPPING: np.ascontiguousarray(batch.slot_mapping, np.int64),
            Word.BLOCK_TABLES: np.ascontiguousarray(batch.block_tables, np.int32),
            Word.CONTEXT_LENS: np.ascontiguousarray(batch.context_lens, np.int32),
            Word.LOGITS_INDICES: np.ascontiguousarray(batch.logits_indices, np.int64),
            Word.ITEM_ROW: rows,
            Word.ITEM_FIRST: first,
            Word.ITEM_TOKENS: tokens,
        }
        for word, array in arrays.items():
            description[word] = array.__array_interface__["data"][0]
        description[Word.TOKENS] = batch.num_tokens
        description[Word.TABLE_BYTES] = arrays[Word.BLOCK_TABLES].strides[0]
        description[Word.ITEMS] = len(rows)
        description[Word.LOGITS_COUNT] = len(batch.logits_indices)
        self._held = tuple(arrays.values())

    def logits(self, count: int) -> torch.Tensor:
        """The logits of the step just run, float32 [count, vocab_size]; overwritten by the next step."""
        return self._logits[:count, : self._spec.vocab_size]
