"""Prompts of this session and their answers: what was sent, how far it is, and the text so far as plain text.

p4f2-3   running · 41 of 128 tokens · TTFT 120 ms · 31.0 tok/s · 6 blocks                       [cancel]
Continuous batching lets requests join and leave ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from core.charts import formats
from core.errors import UnknownRequest
from core.request import SamplingParams
from core.snapshot import EngineSnapshot, RequestView
from core.streams import RequestStream
from pages.parts import frame
from pages.parts.engine_access import Access, Answer, engine
from pages.parts.request_sets import find

_SENT = "prompts_sent"
_COUNT = "prompts_count"
MAX_KEPT = 64
MAX_SHOWN = 6
MAX_AT_ONCE = 32
TEXT_PX = 132


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt as it was sent; `refusal` is not empty if it was not accepted."""

    request_id: str
    text: str
    max_tokens: int
    refusal: str = ""


def sent() -> list[Sent]:
    """Prompts of this session, newest first."""
    prompts: list[Sent] = st.session_state.setdefault(_SENT, [])
    return prompts


def split_prompts(text: str, *, by_line: bool, copies: int) -> list[str]:
    """The prompts in a box of text: the whole, or each line that is not empty; each `copies` times."""
    found = [line.strip() for line in text.splitlines() if line.strip()] if by_line else [text]
    return [prompt for prompt in found for _ in range(copies)]


def send(prompts: Sequence[str], sampling: SamplingParams, *, chat: bool, priority: int = 0) -> list[Sent]:
    """Submit prompts at once and remember them; a refused one is kept with the reason."""
    access = engine()
    outcome = []
    for text in prompts[:MAX_AT_ONCE]:
        number = st.session_state[_COUNT] = st.session_state.get(_COUNT, 0) + 1
        request_id = f"p{access.session[:4]}-{number}"
        answer: Answer = access.submit(text, sampling, chat=chat, request_id=request_id, priority=priority)
        outcome.append(Sent(request_id, text, sampling.max_tokens, "" if answer.ok else answer.message))
    st.session_state[_SENT] = [*reversed(outcome), *sent()][:MAX_KEPT]
    return outcome


def state_line(prompt: Sent, stream: RequestStream | None, row: RequestView | None) -> str:
    """One line on a request: state, tokens, latency, rate, blocks."""
    if prompt.refusal:
        return "refused"
    if stream is None:
        return "waits for the next step boundary"
    words = [_state(stream, row), f"{formats.count(stream.num_tokens)} of {formats.count(prompt.max_tokens)} tokens"]
    if row is not None and row.first_token_s is not None:
        words.append(f"TTFT {formats.seconds(row.first_token_s - row.arrival_s)}")
    pieces, _ = stream.since(0)
    if len(pieces) > 1 and pieces[-1].time_s > pieces[0].time_s:
        words.append(formats.rate((len(pieces) - 1) / (pieces[-1].time_s - pieces[0].time_s), "tok"))
    if row is not None and row.block_ids:
        words.append(f"{len(row.block_ids)} blocks")
    if row is not None and row.num_preemptions:
        words.append(f"preempted {row.num_preemptions} times")
    if row is not None and row.status in ("waiting", "preempted") and row.why:
        words.append(row.why)
    return " · ".join(words)


def _state(stream: RequestStream, row: RequestView | None) -> str:
    if stream.end is not None:
        return f"{stream.end.kind} ({stream.end.reason})" if stream.end.reason != stream.end.kind else stream.end.kind
    return row.status if row is not None else "queued"


def answers(snapshot: EngineSnapshot, access: Access) -> None:
    """Draw the newest answers in slots of fixed height."""
    prompts = sent()
    if not prompts:
        frame.empty("No prompt was sent in this session yet. Its answer appears here, token by token.", key="answers", height=180)
        return
    for prompt in prompts[:MAX_SHOWN]:
        _answer(prompt, snapshot, access)
    if len(prompts) > MAX_SHOWN:
        st.caption(f"{len(prompts) - MAX_SHOWN} older answers are not shown.")


def _answer(prompt: Sent, snapshot: EngineSnapshot, access: Access) -> None:
    try:
        stream = None if prompt.refusal else access.stream(prompt.request_id)
    except UnknownRequest:
        stream = None
    row = find(snapshot, prompt.request_id)
    with st.container(border=True, key=f"answer_{prompt.request_id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{frame.plain(prompt.request_id)}** {frame.plain(state_line(prompt, stream, row))}", width="stretch")
            alive = stream is not None and stream.end is None
            if st.button("Cancel", key=f"cancel_{prompt.request_id}", disabled=not alive, type="tertiary"):
                answer = access.cancel(prompt.request_id)
                if not answer.ok:
                    st.toast(frame.plain(answer.message), icon=":material/block:")
        st.text(f"› {prompt.text}")
        with st.container(height=TEXT_PX, border=False, autoscroll=True, key=f"text_{prompt.request_id}"):
            st.text(prompt.refusal or (stream.text if stream is not None else "") or "…")
