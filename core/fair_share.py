"""Weighted fair shares of seats and blocks, and who has to give some back.

    share(tenant) = capacity * weight / sum of the weights of tenants with a request in the engine

A tenant takes from another only while it stays within its own share and the other is above its share, so two
tenants can never take the same block from each other in turn.
"""

from __future__ import annotations

from core.request import Request
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan


def share_of(state: SchedulerState, tenant: str, capacity: float) -> float:
    """The tenant's weighted share of `capacity` among the tenants that have a request in the engine."""
    accounts = [a for a in state.ledger.accounts.values() if a.is_active]
    total = sum(a.settings.weight for a in accounts)
    weight = state.ledger.account(tenant).settings.weight
    return capacity * weight / total if total else capacity


def above_share_of_blocks(state: SchedulerState) -> set[str]:
    """Tenants that hold more blocks than their share."""
    capacity = float(state.kv.num_blocks)
    return {name for name, live in state.kv.live_by_tenant.items() if live > share_of(state, name, capacity)}


def above_share_of_seats(state: SchedulerState) -> set[str]:
    """Tenants that run more requests than their share."""
    seats = float(state.config.max_num_seqs)
    return {name for name, a in state.ledger.accounts.items() if a.running > share_of(state, name, seats)}


def growth_candidates(state: SchedulerState, plan: StepPlan, needer: Request, blocks: int) -> list[Request]:
    """Running requests that may lose blocks so that a running one can grow.

    Within its share a tenant takes from those above theirs (never from the most senior request), or else from
    juniors; above its share it takes from its own juniors only. The most senior request may take from anyone.
    """
    senior = state.senior()
    others = [r for r in state.running() if r is not needer and r is not senior and r.request_id not in plan.fresh]
    above = above_share_of_blocks(state) - {needer.tenant}
    rich = [r for r in others if r.tenant in above]
    if needer is senior:
        return rich or others
    live = state.kv.live_by_tenant.get(needer.tenant, 0)
    if live + blocks <= share_of(state, needer.tenant, float(state.kv.num_blocks)):
        return rich or [r for r in others if r.arrival_index > needer.arrival_index]
    return [r for r in others if r.tenant == needer.tenant and r.arrival_index > needer.arrival_index]
