"""A step's index arrays in one device tensor, filled by one copy from a host tensor of the same layout.

    int32 words   [ width | slots (int64) | token ids | positions | query start | context | decode rows | tiles | tables ]
                    meta    tokens          tokens      tokens      rows + 1      rows      rows          tiles   rows x width

Every array keeps its address for the lifetime of the object, so a captured graph finds each step's values where it
found the first ones. Only what lies before the end of the tables in use is copied; the tables are packed with the row
length `width` of the step, which kernels read from the meta words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from core.runtime.backend import Int32, StepBatch

_META = 4
_ALIGN = 4


def _aligned(words: int) -> int:
    return -(-words // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class Split:
    """Which kernel takes which part of a step.

    Attributes:
        decode_rows: rows with one query token.
        tile_rows, tile_starts: for each tile of queries its row and the flat index of its first token.
    """

    decode_rows: Int32
    tile_rows: Int32
    tile_starts: Int32


def split_step(batch: StepBatch, queries_a_tile: int) -> Split:
    """Rows with one query go to the decode kernel; the others, and all rows of a padded rectangle, into tiles."""
    counts = np.diff(batch.query_start)
    tiled = np.ones(len(counts), bool) if batch.padded else counts > 1
    rows = np.flatnonzero(tiled)
    tiles = -(-counts[rows] // queries_a_tile)
    first = np.cumsum(tiles) - tiles
    place = np.arange(int(tiles.sum())) - np.repeat(first, tiles)
    starts = np.repeat(batch.query_start[:-1][rows], tiles) + place * queries_a_tile
    return Split(np.flatnonzero(~tiled).astype(np.int32), np.repeat(rows, tiles).astype(np.int32), starts.astype(np.int32))


class StepInputs:
    """Room for steps of at most the given sizes.

    Args:
        device: where kernels read.
        tokens, rows, tiles: most of each in one step.
        table_entries: most rows x width.

    Attributes:
        meta [4], token_ids [tokens], positions [tokens], query_start [rows + 1], context_lens [rows],
        decode_rows [rows], tile_rows [tiles], tile_starts [tiles], tables [table_entries]: int32 on the device.
        slots: [tokens] int64 on the device.
    """

    def __init__(self, device: torch.device, tokens: int, rows: int, tiles: int, table_entries: int) -> None:
        self.tokens, self.rows, self.tiles, self.table_entries = (_aligned(n) for n in (tokens, rows, tiles, table_entries))
        lengths = {
            "meta": _META, "slots": 2 * self.tokens, "token_ids": self.tokens, "positions": self.tokens,
            "query_start": self.rows + _ALIGN, "context_lens": self.rows, "decode_rows": self.rows,
            "tile_rows": self.tiles, "tile_starts": self.tiles, "tables": self.table_entries,
        }  # fmt: skip
        ends = np.cumsum(list(lengths.values())).tolist()
        places = {name: slice(end - length, end) for (name, length), end in zip(lengths.items(), ends, strict=True)}
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        self._at_tables = places["tables"].start
        words = self._host.numpy()
        self._parts: dict[str, Int32] = {name: words[place] for name, place in places.items() if name != "slots"}
        self._slots: npt.NDArray[np.int64] = words[places["slots"]].view(np.int64)
        on_device = {name: self._device[place] for name, place in places.items()}
        self.slots = on_device["slots"].view(torch.int64)
        self.meta, self.token_ids, self.positions = on_device["meta"], on_device["token_ids"], on_device["positions"]
        self.query_start, self.context_lens = on_device["query_start"], on_device["context_lens"]
        self.decode_rows, self.tables = on_device["decode_rows"], on_device["tables"]
        self.tile_rows, self.tile_starts = on_device["tile_rows"], on_device["tile_starts"]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Room for (tokens, rows, tiles, table entries)."""
        return self.tokens, self.rows, self.tiles, self.table_entries

    def fits(self, batch: StepBatch, tiles: int) -> bool:
        """True if a step has room here."""
        entries = batch.num_rows * batch.block_tables.shape[1]
        return (
            batch.num_tokens <= self.tokens and batch.num_rows <= self.rows and tiles <= self.tiles
            and entries <= self.table_entries
        )  # fmt: skip

    def write(self, batch: StepBatch, split: Split) -> None:
        """Take a step that `fits`.

        The host tensor is written again by the next call: whoever runs steps waits for one before it prepares another.
        """
        tokens, rows, width = batch.num_tokens, batch.num_rows, batch.block_tables.shape[1]
        parts = self._parts
        parts["meta"][0] = width
        self._slots[:tokens] = batch.slot_mapping
        parts["token_ids"][:tokens] = batch.token_ids
        parts["positions"][:tokens] = batch.positions
        parts["query_start"][: rows + 1] = batch.query_start
        parts["context_lens"][:rows] = batch.context_lens
        parts["decode_rows"][: len(split.decode_rows)] = split.decode_rows
        parts["tile_rows"][: len(split.tile_rows)] = split.tile_rows
        parts["tile_starts"][: len(split.tile_starts)] = split.tile_starts
        parts["tables"][: rows * width] = batch.block_tables.ravel()
        self._upload(rows * width)

    def write_decode(self, batch: StepBatch, rows: int, width: int, scratch_block: int, block_size: int) -> None:
        """Take a decode-only step, with padding up to `rows` rows and tables of `width` blocks a row.

        A padding row is token 0 at position 0 of the scratch block: it writes there and sees the one key it wrote.
        """
        count, used, parts = batch.num_rows, batch.block_tables.shape[1], self._parts
        parts["meta"][0] = width
        for array, values, filler in (
            (self._slots, batch.slot_mapping, scratch_block * block_size),
            (parts["token_ids"], batch.token_ids, 0),
            (parts["positions"], batch.positions, 0),
            (parts["context_lens"], batch.context_lens, 1),
        ):
            array[:count] = values
            array[count:rows] = filler
        parts["query_start"][: rows + 1] = np.arange(rows + 1)
        parts["decode_rows"][:rows] = np.arange(rows)
        table = parts["tables"][: rows * width].reshape(rows, width)
        table[:count, :used] = batch.block_tables
        table[:count, used:] = scratch_block
        table[count:] = scratch_block
        self._upload(rows * width)

    def _upload(self, table_entries: int) -> None:
        used = self._at_tables + table_entries
        self._device[:used].copy_(self._host[:used], non_blocking=True)
