"""Prompt: type a prompt, choose how to sample, and watch the answer while its row moves through the sets."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.records import StepRecord
from core.request import SamplingParams
from core.snapshot import EngineSnapshot
from pages.parts import frame, ticker
from pages.parts.answers import MAX_AT_ONCE, answers, send, split_prompts
from pages.parts.engine_access import engine
from pages.parts.request_sets import request_sets

EXAMPLE = "Explain in two sentences why a GPU serves many requests at once almost as fast as one."


def sampling_of(
    max_tokens: int, temperature: float, top_p: float, top_k: int, seed: int | None, stop: str, ignore_eos: bool
) -> SamplingParams:
    """Parameters as typed; the engine refuses what makes no sense, in its own words."""
    strings = tuple(s for s in stop.replace("\\n", "\n").split("|") if s)
    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=strings, ignore_eos=ignore_eos
    )


def _form(locked: bool) -> None:
    with st.form("prompt_form", border=False, enter_to_submit=False):
        text = st.text_area("Prompt", EXAMPLE, height=110, key="prompt_text", max_chars=100_000)
        a, b, c, d = st.columns(4)
        max_tokens = a.number_input("max_tokens", value=128, step=16, help="Most output tokens.")
        temperature = b.number_input("temperature", value=0.7, step=0.1, format="%g", help="0 is greedy.")
        top_p = c.number_input("top_p", value=0.95, step=0.05, format="%g", help="Nucleus share; 1 is off.")
        top_k = d.number_input("top_k", value=0, step=10, help="Most candidates; 0 is off.")
        a, b, c, d = st.columns(4)
        seed = a.number_input(
            "seed", value=None, step=1, placeholder="none", help="Same seed, same tokens, whatever runs beside it."
        )
        stop = b.text_input("stop", placeholder="e.g. \\n\\n", help="Strings that end the output, parted by |.")
        copies = c.number_input("copies", value=1, min_value=1, max_value=MAX_AT_ONCE, step=1, help="Send the prompt so often.")
        priority = d.number_input("priority", value=0, step=1, help="Lower is better; read by the priority queue only.")
        with st.container(horizontal=True, vertical_alignment="center"):
            chat = st.checkbox("Chat template", value=True, help="As one turn of a conversation, or as it stands.")
            by_line = st.checkbox("A request a line", help="Send each line as a request of its own.")
            ignore_eos = st.checkbox("Ignore the end token")
        if st.form_submit_button("Send", type="primary", icon=":material/send:", disabled=locked):
            sampling = sampling_of(
                int(max_tokens), temperature, top_p, int(top_k), None if seed is None else int(seed), stop, ignore_eos
            )
            send(split_prompts(text, by_line=by_line, copies=int(copies)), sampling, chat=chat, priority=int(priority))


def render(snapshot: EngineSnapshot, history: Sequence[StepRecord]) -> None:
    """Draw the page from one picture."""
    access = engine()
    left, right = st.columns([0.42, 0.58], gap="medium")
    with left:
        _form(locked=not access.is_controller or snapshot.state in ("starting", "failed", "stopped"))
        answers(snapshot, access)
    with right:
        request_sets(snapshot)
        st.caption("Requests of this page are underlined in the sets. Choose one to see its facts.")
    frame.footer()


ticker.live("What becomes of my prompt?", render, history_steps=1)
