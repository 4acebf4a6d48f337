"""The watched servers as one table: state, scheduler, latency, limit; a row each, the sum last.

server       state    running  waiting  KV        tokens/s  tokens a step  TTFT p95  ITL p95  bound by    age
replica 0    o live   31 / 32  84       ####. 97  412       33.1           1.2 s     41 ms    KV memory   0.4 s
replica 1    x slow   -        -        -         -         -              -         -        -           12 s
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from core.attach.fleet import ANSWERING, Summary, summarise
from core.attach.scraper import TargetState
from core.charts import formats
from pages.parts import save_as

_STATES = {
    "live": ("●", "bs-live"),
    "restarted": ("↻", "bs-warn"),
    "connecting": ("○", ""),
    "slow": ("◔", "bs-warn"),
    "unreachable": ("✕", "bs-bad"),
    "wrong page": ("?", "bs-bad"),
}
HEAD = (
    ("server", ""),
    ("state", ""),
    ("running", "n"),
    ("waiting", "n"),
    ("KV usage", ""),
    ("output tok/s", "n"),
    ("tokens a step", "n"),
    ("TTFT p95", "n"),
    ("ITL p95", "n"),
    ("prefix hits", "n"),
    ("preempted", "n"),
    ("bound by", ""),
    ("scraped", "n"),
)


def _bar(usage: float | None) -> str:
    if usage is None:
        return formats.NONE
    return f'<i class="bs-bar"><b style="width:{100 * usage:.1f}%"></b></i><em>{html.escape(formats.percent(usage))}</em>'


def _figures(seen: Summary, seats: int | None, inferred: bool) -> list[str]:
    of = f" / {seats}{'*' if inferred else ''}" if seats else ""
    return [
        f"{formats.quantity(seen.running)}{of}",
        formats.quantity(seen.waiting),
        _bar(seen.kv_usage),
        formats.figures(seen.output_tokens_per_s),
        formats.figures(seen.tokens_per_step),
        formats.seconds(seen.ttft.p95),
        formats.seconds(seen.itl.p95),
        formats.percent(seen.prefix_hit_rate),
        formats.quantity(seen.preemptions),
        html.escape(seen.bound_by or formats.NONE),
    ]


def _row(name: str, title: str, state: str, figures: Sequence[str], age: str, tag: str = "td", row: str = "") -> str:
    cells = [html.escape(name), state, *figures, age]
    classes = [c for _, c in HEAD]
    inside = "".join(f'<{tag} class="{c}">{cell}</{tag}>' for c, cell in zip(classes, cells, strict=True))
    return f'<tr class="{row}" title="{html.escape(title)}">{inside}</tr>'


def table_html(states: Sequence[TargetState], now_s: float, chosen: str | None = None) -> str:
    """The table as HTML; every text of a server is escaped."""
    rows = []
    for s in states:
        sign, tone = _STATES.get(s.status, ("", ""))
        state = f'<span class="{tone}">{sign} {html.escape(s.status)}</span>'
        age = formats.seconds(max(now_s - s.scraped_s, 0.0)) if s.scraped_s is not None else formats.NONE
        seen = summarise([s], now_s)
        model = s.page.model if s.page else ""
        title = s.message or f"{s.address} · {s.page.engine if s.page else ''} · {model}"
        row = "bs-chosen" if s.name == chosen else ""
        rows.append(_row(s.name, title, state, _figures(seen, s.seats, s.seats_inferred), age, row=row))
    foot = ""
    if len(states) > 1:
        total = summarise(states, now_s)
        known = any(s.seats_inferred for s in states if s.status in ANSWERING)
        state = f"{total.answering} of {total.replicas} answer"
        foot = f"<tfoot>{_row('all', 'sum of those that answer', state, _figures(total, total.seats, known), '', 'th')}</tfoot>"
    head = "".join(f'<th scope="col" class="{c}">{html.escape(label)}</th>' for label, c in HEAD)
    return f'<div class="bs-servers"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>{foot}</table></div>'


def table_rows(states: Sequence[TargetState], now_s: float) -> pd.DataFrame:
    """The same rows for a file, every number as a number; times in seconds, shares from 0 to 1."""
    rows = []
    for s in states:
        seen = summarise([s], now_s)
        rows.append(
            {
                "server": s.name,
                "state": s.status,
                "running": seen.running,
                "seats": s.seats,
                "waiting": seen.waiting,
                "kv_usage": seen.kv_usage,
                "output_tokens_per_s": seen.output_tokens_per_s,
                "tokens_per_step": seen.tokens_per_step,
                "ttft_p95_s": seen.ttft.p95,
                "itl_p95_s": seen.itl.p95,
                "prefix_hit_rate": seen.prefix_hit_rate,
                "preemptions": seen.preemptions,
                "bound_by": seen.bound_by,
                "scraped_s_ago": None if s.scraped_s is None else max(now_s - s.scraped_s, 0.0),
            }
        )
    return pd.DataFrame(rows)


def server_table(states: Sequence[TargetState], now_s: float, chosen: str | None) -> None:
    """Draw the table, and a sentence for each server that does not answer as it should."""
    save_as.table("servers", lambda: table_rows(states, now_s))
    st.html(table_html(states, now_s, chosen))
    troubled = [s for s in states if s.status not in ("live", "connecting")]
    lines = "".join(f"<li>{html.escape(s.name)}: {html.escape(s.message)}</li>" for s in troubled[:6])
    more = f"<li>and {len(troubled) - 6} more</li>" if len(troubled) > 6 else ""
    words = "<p>* seats inferred from the batch at which requests were seen to wait</p>"
    note = words if any(s.seats_inferred for s in states) else ""
    st.html(f'<div class="bs-troubled"><ul>{lines}{more}</ul>{note}</div>')
