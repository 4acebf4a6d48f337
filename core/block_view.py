"""Arithmetic on the block map: what the cells hold, what a non-paged cache would reserve, how long blocks are held.

internal fragmentation = 1 - token slots in use / (live blocks * block_size)
contiguous waste       = sum over requests of (tokens reserved at admission - tokens held now)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.records import RequestRecord
from core.snapshot import BlockMapView, RequestView

LIVE, INDEXED, SHARED = 1, 2, 4
"""Bits of `BlockMapView.flags`."""


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """The columns of a `BlockMapView` as arrays, one entry a block (views on the bytes, not copies)."""

    owner: NDArray[np.uint16]
    last_use: NDArray[np.uint16]
    fill: NDArray[np.uint8]
    refs: NDArray[np.uint8]
    flags: NDArray[np.uint8]

    @property
    def live(self) -> NDArray[np.bool_]:
        """Blocks that a block table holds."""
        held: NDArray[np.bool_] = np.not_equal(self.flags & LIVE, 0)
        return held

    @property
    def cached(self) -> NDArray[np.bool_]:
        """Blocks without an owner that the prefix index keeps for reuse."""
        kept: NDArray[np.bool_] = np.equal(self.flags & (LIVE | INDEXED), INDEXED)
        return kept

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Blocks in more than one block table."""
        several: NDArray[np.bool_] = np.not_equal(self.flags & SHARED, 0)
        return several


def columns(view: BlockMapView) -> BlockColumns:
    """Read the byte strings of a view.

    Raises:
        ValueError: if a column is not one entry a block.
    """
    widths = {"owner": 2, "last_use": 2, "fill": 1, "refs": 1, "flags": 1}
    for name, width in widths.items():
        size = len(getattr(view, name))
        if size != width * view.num_blocks:
            raise ValueError(f"column {name} of the block map has {size} bytes; {view.num_blocks} blocks need {width} each")
    return BlockColumns(
        owner=np.frombuffer(view.owner, "<u2"),
        last_use=np.frombuffer(view.last_use, "<u2"),
        fill=np.frombuffer(view.fill, np.uint8),
        refs=np.frombuffer(view.refs, np.uint8),
        flags=np.frombuffer(view.flags, np.uint8),
    )


def tokens_in_blocks(view: BlockMapView) -> NDArray[np.int64]:
    """Token slots in use of each block; exact for blocks of up to 127 tokens, else to one part in 255."""
    fill = np.frombuffer(view.fill, np.uint8).astype(np.float64)
    return np.rint(fill * (view.block_size / 255)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks by state, and token slots of the live ones."""

    live: int
    cached: int
    free: int
    shared: int
    saved: int  # blocks that sharing saves: sum over shared blocks of refs - 1
    slots_reserved: int
    slots_used: int

    @property
    def fragmentation(self) -> float:
        """Share of live token slots that hold no token, 0 to 1; 0 where nothing is live."""
        return 1.0 - self.slots_used / self.slots_reserved if self.slots_reserved else 0.0


def occupancy(view: BlockMapView) -> Occupancy:
    """Count the cells of a view."""
    c = columns(view)
    live, cached, shared = int(c.live.sum()), int(c.cached.sum()), c.shared
    return Occupancy(
        live=live,
        cached=cached,
        free=view.num_blocks - live - cached,
        shared=int(shared.sum()),
        saved=int(c.refs[shared].astype(np.int64).sum() - shared.sum()),
        slots_reserved=live * view.block_size,
        slots_used=int(tokens_in_blocks(view)[c.live].sum()),
    )


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one way of allocating would hold for the running requests, token slots."""

    label: str
    reserved_tokens: int
    used_tokens: int
    requests: int

    @property
    def wasted_tokens(self) -> int:
        """Slots reserved that hold no token."""
        return self.reserved_tokens - self.used_tokens

    @property
    def wasted_share(self) -> float:
        """Wasted / reserved, 0 to 1."""
        return self.wasted_tokens / self.reserved_tokens if self.reserved_tokens else 0.0

    def fits(self, capacity_tokens: int) -> int | None:
        """How many requests like the present ones a pool of `capacity_tokens` would hold; None if none runs."""
        if not self.requests or not self.reserved_tokens:
            return None
        return int(capacity_tokens * self.requests / self.reserved_tokens)


PAGED, ASKED, LONGEST = "paged blocks (now)", "contiguous: prompt + max_tokens", "contiguous: max_model_len"


def reservations(
    running: Sequence[RequestView], pool: Occupancy, max_model_len: int
) -> tuple[Reservation, Reservation, Reservation]:
    """The pool as it is, beside two non-paged caches that reserve one contiguous piece a request at admission.

    A contiguous cache cannot share a prefix, so each request holds its own copy of every token.
    """
    holders = [r for r in running if r.block_ids]
    held = sum(min(r.computed_tokens, max_model_len) for r in holders)
    asked = sum(max(min(r.prompt_tokens + r.max_tokens, max_model_len), r.computed_tokens) for r in holders)
    return (
        Reservation(PAGED, pool.slots_reserved, pool.slots_used, len(holders)),
        Reservation(ASKED, asked, held, len(holders)),
        Reservation(LONGEST, max_model_len * len(holders), held, len(holders)),
    )


def contiguous_runs(block_ids: Sequence[int]) -> int:
    """Into how many physically adjacent runs a block table falls; 1 would be what a non-paged cache needs."""
    return sum(1 for i, block in enumerate(block_ids) if i == 0 or block != block_ids[i - 1] + 1)


def block_holding_times(records: Iterable[RequestRecord], block_size: int, *, reserved_at_admission: bool = False) -> list[float]:
    """Seconds for which ended requests held each of their blocks, from their token times.

    A prompt block is held from admission, an output block from the token before its first slot is written; all are
    given back at the end. Requests that were preempted or never admitted are left out (their tables were rebuilt).
    """
    held: list[float] = []
    for r in records:
        if r.num_preemptions or r.queue_s is None or r.ttft_s is None or r.output_tokens < 1:
            continue
        stored = r.prompt_tokens + r.output_tokens - 1  # the last token is never written to the cache
        needs_gaps = max(stored - r.prompt_tokens, 0)
        if len(r.itl_s) < needs_gaps:
            continue
        token_s = r.ttft_s + np.concatenate(([0.0], np.cumsum(r.itl_s[:needs_gaps])))
        for first_slot in range(0, stored, block_size):
            in_prompt = reserved_at_admission or first_slot < r.prompt_tokens
            taken_s = r.queue_s if in_prompt else float(token_s[first_slot - r.prompt_tokens])
            held.append(max(r.e2e_s - taken_s, 0.0))
    return held
