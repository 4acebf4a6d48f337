"""The scheduler's tenants as the immutable rows that a snapshot holds."""

from __future__ import annotations

from core.scheduler_state import SchedulerState
from core.slots import by_slots
from core.snapshot import TenantView


def tenant_views(state: SchedulerState) -> tuple[TenantView, ...]:
    """Each tenant by name; `share` is its part of all tokens served so far."""
    accounts = state.ledger.accounts
    total = sum([a.served_tokens for a in accounts.values()])
    live = state.kv.live_by_tenant
    return tuple(
        [
            _view(
                name,
                account.settings.weight,
                account.running,
                account.queued,
                live.get(name, 0),
                account.served_tokens,
                account.served_tokens / total if total else 0.0,
                account.virtual_time,
            )
            for name, account in sorted(accounts.items())
        ]
    )


_view = by_slots(TenantView)
