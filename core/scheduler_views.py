"""The scheduler's tenants as the immutable rows that a snapshot holds."""

from __future__ import annotations

from core.scheduler_state import SchedulerState
from core.snapshot import TenantView


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
