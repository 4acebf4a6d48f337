"""Scheduler: the decision of the last step in words, the policies behind it, and each tenant's share.

decision in words | tenants' shares      figures      late joins and shapes      preemptions      policies, tenants, audit
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from core.charts import formats, shares
from core.config import AdmissionMoment
from core.decision_words import decision_words
from core.launch_shapes import shape_changes, shape_figures
from core.records import StepRecord
from core.snapshot import EngineSnapshot
from pages.parts import audit, frame, policies, ticker
from pages.parts.facts import facts, moment

SHOWN_CHANGES = 50


def _shares(snapshot: EngineSnapshot) -> None:
    frame.figure_head(
        "Does each tenant get its share?",
        moment(snapshot),
        how="Bar: share of the tokens served. Tick: share that the tenant's weight entitles it to.",
    )
    if not snapshot.tenants:
        frame.empty("No tenant has been served yet.", key="shares", height=190)
        return
    frame.chart(
        shares.shares_frame(snapshot.tenants),
        shares.shares_spec(frame.theme()),
        key="tenant_shares",
        alt="Share of the tokens served by tenant, beside the share that its weight entitles it to",
    )


def _figures(snapshot: EngineSnapshot) -> None:
    jain = snapshot.jain_index
    scheduler = snapshot.config.scheduler
    record = snapshot.step_record
    decide = formats.seconds(record.schedule_s) if record else formats.NONE
    facts(
        (
            ("Jain's index", formats.figures(jain), "1 is an even share by weight"),
            ("Seats", f"{snapshot.num_running} of {scheduler.max_num_seqs}", "running of max_num_seqs"),
            ("Waiting", formats.count(snapshot.num_waiting), "in the queue"),
            (
                "Preempted",
                formats.count(snapshot.num_preempted),
                f"{formats.count(snapshot.totals.preemptions)} preemptions so far",
            ),
            ("Decision", decide, "of the last step"),
        )
    )


def _shapes(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Under the experiment: which shapes late joins made void."""
    between = snapshot.config.scheduler.admission_moment is AdmissionMoment.BETWEEN_LAUNCHES
    figures = shape_figures(history)
    if not between and not figures.joined:
        return
    frame.figure_head(
        "Was the step launched in the shape in which it was decided?",
        frame.span_of(history),
        how="A request that joins between two launches voids the batch prepared for the decided rows; a captured graph is void"
        " where the next captured size (1, 2, 4, 8, then every 8 rows) differs as well.",
    )
    facts(
        (
            ("Joined late", formats.percent(figures.joined / figures.steps if figures.steps else None), "of the steps shown"),
            ("Void shapes", formats.count(figures.void), "decided for at least one row"),
            ("Captured size changed", formats.count(figures.resized), "of the void shapes"),
            ("Prepared in vain", formats.seconds(figures.discarded_s), "in the steps shown"),
        )
    )
    changes = shape_changes(history)[-SHOWN_CHANGES:][::-1]
    if not changes:
        frame.empty("No request joined late in the steps shown.", key="shapes", height=150)
        return
    rows = [
        {
            "step": c.step,
            "joined": c.joined,
            "decided rows": c.decided_rows,
            "launched rows": c.launched_rows,
            "captured size": " to ".join(dict.fromkeys((str(c.decided_size), str(c.launched_size)))),
            "prepared in vain (ms)": round(c.discarded_s * 1e3, 3),
        }
        for c in changes
    ]
    height = 36 * (min(len(rows), 6) + 1)
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=height, key="shape_table")


def _preemptions(snapshot: EngineSnapshot) -> None:
    frame.figure_head(
        "Who lost blocks for whom?", "newest first", how="Each line is one preemption: what it freed and what it will cost."
    )
    if not snapshot.preemptions:
        frame.empty("No request has been preempted since the start.", key="preemptions", height=64)
        return
    rows = [
        {
            "step": p.step,
            "victim": p.victim,
            "for": p.beneficiary or "nobody",
            "reason": p.reason,
            "blocks freed": p.blocks_freed,
            "tokens to recompute": p.tokens_lost,
            "swapped out (MiB)": round(p.bytes_swapped / 2**20, 2),
        }
        for p in snapshot.preemptions
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, height=260, key="preemption_table")


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw what follows the engine; the pickers are drawn after it and do not tick."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        frame.figure_head("What was decided in the last step?", moment(snapshot), how="The scheduler's own reasons.")
        with st.container(height=260, border=False, key="decision"):
            frame.numbered([(s.head, s.detail) for s in decision_words(snapshot)])
    with right:
        _shares(snapshot)
    _figures(snapshot)
    _shapes(snapshot, history)
    _preemptions(snapshot)


ticker.live("Why does the batch look like this?", render)
frame.figure_head("Which policies decide?", "applied at the next step boundary", how="Each takes effect while requests run.")
policies.pickers()
frame.figure_head("Tenants", "weights and quotas", how="An empty quota is no limit. A tenant that is not listed has weight 1.")
policies.tenants()
audit.commands()
frame.footer()
