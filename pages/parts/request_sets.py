"""The sets as rows: running, waiting, preempted and ended requests, the three limits of a step, and a chosen request.

token budget [decode|prefill|....]   seats [######....]   KV blocks [live|cached|..]      which of them binds
running: [prompt ####|output ==|left ...]        waiting: prompt, age, why        preempted, ended
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from core.charts import formats
from core.outputs import BoundBy
from core.snapshot import EngineSnapshot, RequestView
from pages.parts import engine_access
from pages.parts.element import LiveElement, trigger

KEY = "request_sets"
CHOSEN = "request"
MAX_WAITING = 30
MAX_ENDED = 12
MAX_TAIL = 240
_element = LiveElement("request_sets")


def row_of(row: RequestView, note: str = "") -> list[Any]:
    """One request as the browser's program reads it; see assets/components/request_sets.js for the order."""
    return [
        row.request_id,
        row.tenant,
        row.hue,
        row.prompt_tokens,
        row.computed_tokens,
        row.cached_tokens,
        row.output_tokens,
        row.max_tokens,
        row.scheduled_tokens,
        row.is_prefill,
        len(row.block_ids),
        formats.short_span(row.age_s),
        row.num_preemptions,
        note,
        row.source == "prompt",
    ]


def limits(snapshot: EngineSnapshot) -> list[dict[str, Any]]:
    """The three limits of a step as gauges, and which one binds."""
    config, pool, record = snapshot.config.scheduler, snapshot.pool, snapshot.step_record
    busy = snapshot.num_running > 0
    bound = record.bound_by if record and busy else ""
    prefill, decode = (record.prefill_tokens, record.decode_tokens) if record and busy else (0, 0)
    padding = record.padded_tokens if record and busy else 0
    budget, seats = config.max_num_batched_tokens, config.max_num_seqs
    used = prefill + decode + padding
    seated = record.num_running if record and busy else snapshot.num_running
    tokens = f"{decode} decode + {prefill} prefill" + (f" + {padding} padding" if padding else "")
    return [
        {
            "name": "Token budget",
            "binds": bound == BoundBy.BUDGET.value,
            "text": f"{tokens} of {formats.count(budget)}",
            "parts": _shares(("decode", decode), ("prefill", prefill), ("padding", padding), total=max(budget, used)),
        },
        {
            "name": "Seats",
            "binds": bound == BoundBy.SEATS.value,
            "text": f"{formats.count(seated)} of {formats.count(seats)} max_num_seqs",
            "parts": _shares(("live", seated), total=max(seats, seated)),
        },
        {
            "name": "KV blocks",
            "binds": bound == BoundBy.MEMORY.value,
            "text": f"{formats.count(pool.live)} live + {formats.count(pool.cached)} cached of {formats.count(pool.total)}",
            "parts": _shares(("live", pool.live), ("cached", pool.cached), total=pool.total),
        },
    ]


def _shares(*parts: tuple[str, int], total: int) -> list[tuple[str, float]]:
    whole = max(total, 1)
    used = sum(amount for _, amount in parts)
    return [*((kind, amount / whole) for kind, amount in parts), ("idle", max(whole - used, 0) / whole)]


def head_of_queue(snapshot: EngineSnapshot) -> str:
    """Why the first request that was looked at was not admitted; empty if nothing waits."""
    if not snapshot.num_waiting + snapshot.num_preempted:
        return ""
    if not snapshot.passed_over:
        return "admitted at the next step boundary" if snapshot.state == "running" else ""
    head = snapshot.passed_over[0]
    return f"Head of the queue: {head.request_id}, {head.detail}"


def find(snapshot: EngineSnapshot, request_id: str | None) -> RequestView | None:
    """The row of a request in any set of the picture."""
    if request_id is None:
        return None
    rows = (*snapshot.running, *snapshot.preempted, *snapshot.waiting, *snapshot.ended)
    return next((row for row in rows if row.request_id == request_id), None)


def _detail(row: RequestView | None) -> dict[str, Any] | None:
    if row is None:
        return None
    facts = [
        row.status + (f" ({row.finish_reason})" if row.finish_reason else ""),
        f"tenant {row.tenant}",
        f"priority {row.priority}",
        f"{row.prompt_tokens} prompt tokens, {row.cached_tokens} from the prefix cache",
        f"{row.output_tokens} of {row.max_tokens} output tokens",
        f"{len(row.block_ids)} blocks",
        f"preempted {row.num_preemptions} times",
        f"age {formats.seconds(row.age_s)}",
        *([row.why] if row.why else []),
    ]
    alive = row.status in ("waiting", "running", "preempted")
    return {"id": row.request_id, "facts": "  ·  ".join(facts), "tail": row.text_tail[-MAX_TAIL:], "alive": alive}


def _how(row: RequestView) -> str:
    return row.why if row.status == "refused" and row.why else row.finish_reason or row.status


def payload(snapshot: EngineSnapshot, chosen: str | None) -> dict[str, Any]:
    """Everything the element shows, as plain data; the size is bounded whatever the queue is."""
    waiting = snapshot.waiting[:MAX_WAITING]
    longest = max((row.prompt_tokens + row.max_tokens for row in snapshot.running), default=1)
    counts = {
        "running": snapshot.num_running,
        "waiting": snapshot.num_waiting,
        "preempted": snapshot.num_preempted,
        "ended": len(snapshot.ended),
    }
    totals = snapshot.totals
    ended = f"{formats.count(totals.finished)} finished, {formats.count(totals.cancelled)} cancelled"
    refused = f", {formats.count(totals.refused)} refused" if totals.refused else ""
    is_cut = len(waiting) == MAX_WAITING < snapshot.num_waiting  # a stream of pictures lists the queue less often than it counts
    return {
        "scale": longest,
        "counts": counts,
        "counts_text": {name: formats.count(value) for name, value in counts.items()} | {"ended": ""},
        "asides": {
            "running": f"bars to one scale, full width = {formats.tokens(longest)}" if snapshot.running else "",
            "waiting": f"first {len(waiting)} shown" if is_cut else "",
            "preempted": f"{formats.count(totals.preemptions)} preemptions in all",
            "ended": ended + refused,
        },
        "leads": {"waiting": head_of_queue(snapshot)},
        "hollow": {
            "running": "No request is running." if snapshot.state != "starting" else "The model is loading.",
            "waiting": "Nothing waits: every request is in the batch." if snapshot.running else "The queue is empty.",
            "preempted": "",
            "ended": "No request has ended yet.",
        },
        "limits": limits(snapshot),
        "rows": {
            "running": [row_of(row) for row in snapshot.running],
            "waiting": [row_of(row, row.why) for row in waiting],
            "preempted": [row_of(row, row.why) for row in snapshot.preempted[:MAX_WAITING]],
            "ended": [row_of(row, _how(row)) for row in snapshot.ended[:MAX_ENDED]],
        },
        "chosen": chosen,
        "detail": _detail(find(snapshot, chosen)),
    }


def chosen_request() -> str | None:
    """The request chosen on any page of this session, or by the address."""
    value = st.session_state.get(CHOSEN) or st.query_params.get(CHOSEN)
    return value if isinstance(value, str) else None


def keep_choice() -> None:
    """Keep the choice over a change of page: what a widget of the last page held would be dropped with it."""
    if CHOSEN in st.session_state:
        st.session_state[CHOSEN] = st.session_state[CHOSEN]


def choose(request_id: str | None) -> None:
    """Choose a request on all pages, and in the address."""
    st.session_state[CHOSEN] = request_id
    if request_id is None:
        st.query_params.pop(CHOSEN, None)
    else:
        st.query_params[CHOSEN] = request_id


def _asked(event: str) -> str | None:
    value = trigger(KEY, event)
    request = value.get("request") if isinstance(value, dict) else None
    return request if isinstance(request, str) else None


def _on_pick() -> None:
    choose(_asked("pick"))


def _on_cancel() -> None:
    request = _asked("cancel")
    if request is not None:
        answer = engine_access.engine().cancel(request)
        if not answer.ok:
            st.toast(answer.message, icon=":material/block:")


def request_sets(snapshot: EngineSnapshot) -> None:
    """Draw the sets."""
    handlers: dict[str, Callable[[], None]] = {"on_pick_change": _on_pick, "on_cancel_change": _on_cancel}
    _element.draw(payload(snapshot, chosen_request()), key=KEY, **handlers)


def table_rows(snapshot: EngineSnapshot) -> list[dict[str, Any]]:
    """The same rows for a table: every number as a number."""
    sets: Sequence[RequestView] = (*snapshot.running, *snapshot.preempted, *snapshot.waiting, *snapshot.ended)
    return [
        {
            "request": row.request_id,
            "state": row.status,
            "tenant": row.tenant,
            "priority": row.priority,
            "prompt tokens": row.prompt_tokens,
            "computed": row.computed_tokens,
            "output tokens": row.output_tokens,
            "max_tokens": row.max_tokens,
            "blocks": len(row.block_ids),
            "preempted": row.num_preemptions,
            "age (s)": round(row.age_s, 2),
            "why or how": row.why or row.finish_reason,
        }
        for row in sets
    ]
