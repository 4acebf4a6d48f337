"""Who has changed what: the audit list of the engine as a table, newest first.

when         who            command    what                        outcome
12 s ago     this session   configure  scheduler: max_num_seqs ... accepted
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.charts import formats
from core.control import LOCAL, AuditEntry
from pages.parts import engine_access, frame, ticker

SHOWN = 40
REFRESH_S = 2.0
_WORDS = {"acquire": "took control", "release": "gave control back", "configure": "changed settings", "step": "one step"}


def who(session_id: str, mine: str) -> str:
    """A session by the first letters of its id; ids are random, so nobody can use one that is shown in part."""
    if session_id == LOCAL:
        return "an API client or this process"
    return "this session" if session_id == mine else f"session {session_id[:4]}"


def audit_rows(entries: Sequence[AuditEntry], now_s: float, mine: str) -> list[tuple[str, str, str, str, str]]:
    """(when, who, command, outcome, what) of the newest entries."""
    return [
        (
            f"{formats.seconds(max(now_s - e.time_s, 0.0))} ago",
            who(e.session_id, mine),
            _WORDS.get(e.command, e.command),
            e.outcome,
            " · ".join(part for part in (e.detail, e.message) if part),
        )
        for e in entries[:SHOWN]
    ]


def commands() -> None:
    """The list; it refreshes by itself, slower than the page, and not at all where refresh is off."""
    rate_s = ticker.rate_s()

    @st.fragment(run_every=None if rate_s is None else max(rate_s, REFRESH_S))
    def listed() -> None:
        _list()

    listed()


def _list() -> None:
    access = engine_access.engine()
    entries = access.audit()
    frame.figure_head(
        "Who has changed what?", f"last {min(len(entries), SHOWN)} of {formats.count(len(entries))} commands kept",
        how="Everyone may watch; one session at a time has control, and what it does is kept here, refusals too.",
    )  # fmt: skip
    with st.container(key="audit_list"):
        if entries:
            rows = audit_rows(entries, engine_access.wall_clock.now(), access.session)
            frame.plain_table(("when", "who", "command", "outcome", "what"), rows, key="audit")
        else:
            frame.empty("Nobody has taken control or changed anything since the start.", key="audit", height=64)
