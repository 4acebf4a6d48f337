"""The scheduler's sets as the immutable rows and columns that a snapshot holds."""

from __future__ import annotations

import sys
from array import array

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
    """All physical blocks, one entry each; O(blocks + table entries).

    The age of a live block is that of its owner's latest step, because attention reads the whole context.
    """
    kv, step = state.kv, state.step
    pool, size = kv.pool, kv.block_size
    count = pool.num_blocks
    owner, age = array("H", bytes(2 * count)), array("H", bytes(2 * count))
    fill, refs, flags = bytearray(count), bytearray(count), bytearray(count)
    stamps = list(pool.last_use)
    names: list[str] = []
    decoding = set(state.rows.ids)
    for table in kv.all_tables():
        request_id = table.request.request_id
        names.append(request_id)
        index = min(len(names), _MAX_U16)
        left = table.num_used_tokens
        latest = max(table.last_step, state.all_rows_step) if request_id in decoding else table.last_step
        for block_id in table.block_ids:
            if owner[block_id] == 0:
                owner[block_id] = index
            used = min(max(left, 0), size)
            fill[block_id] = max(fill[block_id], used * 255 // size)
            left -= size
            if used:
                stamps[block_id] = max(stamps[block_id], latest)
    for block_id in range(count):
        held = pool.ref_count(block_id)
        cached = pool.is_cached(block_id)
        refs[block_id] = min(held, 255)
        flags[block_id] = LIVE * (held > 0) | CACHED * cached | SHARED * (held > 1)
        if cached and not held:
            fill[block_id] = 255
        age[block_id] = min(max(step - stamps[block_id], 0), _MAX_U16)
    if sys.byteorder == "big":
        owner.byteswap()
        age.byteswap()
    return BlockMapView(
        num_blocks=count,
        block_size=size,
        owners=tuple(names),
        owner=owner.tobytes(),
        fill=bytes(fill),
        refs=bytes(refs),
        flags=bytes(flags),
        last_use=age.tobytes(),
    )
