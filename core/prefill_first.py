"""Prompts before decodes: the order of a step under PREFILL_FIRST and SEPARATE.

    tokens:  running prompts, new prompts, then decodes with what is left (or none, where they are kept apart)
    blocks:  decodes first; the blocks that they are due are reserved before a prompt may take any

If the pool cannot give the decodes their blocks, memory goes to the running requests and none joins.
"""

from __future__ import annotations

from core.admission_pass import admit_waiting
from core.outputs import BoundBy
from core.running_pass import decode_budget, end_full, plan_catching_up, plan_decodes
from core.scheduler_state import SchedulerState
from core.step_plan import StepPlan


def plan_prefill_first(state: SchedulerState, plan: StepPlan, *, known_only: bool) -> None:
    """Decide a step in which prompts come first."""
    separate = state.batch_rule.separate
    end_full(state, plan)
    due = len(state.rows.due)
    if state.kv.num_available < due:
        _short_of_memory(state, plan, separate=separate)
        admit_waiting(state, plan, known_only=known_only)
        return
    plan.reserve_blocks = due
    plan_catching_up(state, plan, plan.budget)
    admit_waiting(state, plan, known_only=known_only)
    plan.reserve_blocks = 0
    if separate and plan.entries:
        plan.chosen = []
        if len(state.rows) and plan.bound is BoundBy.LOAD:
            plan.bound = BoundBy.POLICY
        return
    plan_decodes(state, plan, plan.budget)


def _short_of_memory(state: SchedulerState, plan: StepPlan, *, separate: bool) -> None:
    """Running requests only. Kept apart, the kind of step is that of the most senior request, so that it advances."""
    if separate and state.senior() in state.catching_up:
        plan_catching_up(state, plan, plan.budget)
        plan.chosen = []
        return
    plan_decodes(state, plan, decode_budget(state, plan))
    if separate:
        plan.took_back = state.num_running > 0  # no prompt in this step, unless nothing else is left
    else:
        plan_catching_up(state, plan, plan.budget)
