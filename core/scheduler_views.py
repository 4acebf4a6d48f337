"""The scheduler's sets as the immutable rows and columns that a snapshot holds."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

import numpy as np

from core.kv_cache_manager import BlockTable
from core.scheduler_state import SchedulerState
from core.snapshot import BlockMapView, TenantView

LIVE, CACHED, SHARED = 1, 2, 4
_MAX_U16 = 65_535


def tenant_views(state: SchedulerState) -> tuple[TenantView, ...]:
    """Each tenant by name; `share` is its part of all tokens served so far."""
    accounts = state.ledger.accounts
    total = sum(a.served_tokens for a in accounts.values())
    live = state.kv.live_by_tenant
    return tuple(
        TenantView(
            name=name,
            weight=account.settings.weight,
            running=account.running,
            waiting=account.queued,
            live_blocks=live.get(name, 0),
            served_tokens=account.served_tokens,
            share=account.served_tokens / total if total else 0.0,
            virtual_time=account.virtual_time,
        )
        for name, account in sorted(accounts.items())
    )


def block_map(state: SchedulerState) -> BlockMapView:
    """All physical blocks, one entry each; O(blocks + table entries), in columns.

    The age of a live block is that of its owner's latest step, because attention reads the whole context.
    """
    kv, step = state.kv, state.step
    pool, size = kv.pool, kv.block_size
    count = pool.num_blocks
    held, cached, stamps = pool.columns()
    owner, used = np.zeros(count, "<u2"), np.zeros(count, np.int64)
    tables = list(kv.all_tables())
    decoding = set(state.rows.ids)
    lengths = np.fromiter((len(t.block_ids) for t in tables), np.int64, len(tables))
    total = int(lengths.sum())
    if total:
        blocks = np.fromiter(chain.from_iterable([t.block_ids for t in tables]), np.int64, total)
        place = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # logical, within its table
        tokens = np.fromiter((t.num_used_tokens for t in tables), np.int64, len(tables))
        slots = np.clip(np.repeat(tokens, lengths) - place * size, 0, size)
        numbers = np.minimum(np.arange(1, len(tables) + 1), _MAX_U16)
        owner[blocks[::-1]] = np.repeat(numbers, lengths)[::-1]  # the last to write is the first that holds the block
        np.maximum.at(used, blocks, slots)
        latest = np.fromiter((_latest_step(t, state.all_rows_step, decoding) for t in tables), np.int64, len(tables))
        filled = slots > 0
        np.maximum.at(stamps, blocks[filled], np.repeat(latest, lengths)[filled])
    is_live, is_cached = held > 0, cached != 0
    fill = used * 255 // size
    fill[is_cached & ~is_live] = 255
    return BlockMapView(
        num_blocks=count,
        block_size=size,
        owners=tuple([t.request.request_id for t in tables]),
        owner=owner.tobytes(),
        fill=fill.astype(np.uint8).tobytes(),
        refs=np.minimum(held, 255).astype(np.uint8).tobytes(),
        flags=(LIVE * is_live + CACHED * is_cached + SHARED * (held > 1)).astype(np.uint8).tobytes(),
        last_use=np.clip(step - stamps, 0, _MAX_U16).astype("<u2").tobytes(),
    )


def _latest_step(table: BlockTable, all_rows_step: int, decoding: Collection[str]) -> int:
    """The latest step that ran the owner: rows that decode are noted all at once."""
    return max(table.last_step, all_rows_step) if table.request.request_id in decoding else table.last_step
