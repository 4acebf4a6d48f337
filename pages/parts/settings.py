"""The sidebar's settings: Load, Scheduler, Memory, Model, and who has control.

Each knob is sent when it is changed and holds from the next step boundary on. A value that makes no sense is
refused by the configuration itself, and its words are shown under the knob's group; nothing has changed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from core.lengths import LengthKind, LengthSpec
from core.load_spec import LoadSpec
from core.snapshot import EngineSnapshot
from pages.parts import frame
from pages.parts.engine_access import Access, Answer, engine
from pages.parts.knobs import LOAD, MEMORY, SCHEDULER, Knob
from pages.parts.limit import limit

_ANSWERS = "settings_answers"
MODELS = ("smollm2", "synthetic", "tiny")
DTYPES = ("bfloat16", "float32")
SPEEDS: dict[str, float | None] = {"as fast as it goes": None, "10 steps/s": 10.0, "2 steps/s": 2.0, "1 step/s": 1.0}


def settings() -> None:
    """Draw the settings; they rerun alone, not the page."""
    with st.sidebar:
        _settings()


@st.fragment
def _settings() -> None:
    access = engine()
    snapshot = access.latest()
    locked = not access.is_controller
    _control(access, locked)
    with st.expander("Load", icon=":material/input:", key="group_load", expanded=False):
        _load(access, locked)
    with st.expander("Scheduler", icon=":material/low_priority:", key="group_scheduler", expanded=False):
        _knobs(SCHEDULER, snapshot.config.scheduler, locked)
        _checks(snapshot.config.check_invariants, locked)
        _last_answer("scheduler")
    with st.expander("Memory", icon=":material/memory:", key="group_cache", expanded=False):
        _knobs(MEMORY, snapshot.config.cache, locked)
        _last_answer("cache")
    with st.expander("Model", icon=":material/deployed_code:", key="group_model", expanded=False):
        _model(snapshot, locked)


def _note(group: str, answer: Answer) -> None:
    """Keep what became of the latest change of a group, for the next drawing."""
    st.session_state.setdefault(_ANSWERS, {})[group] = answer


def _last_answer(group: str) -> None:
    answer = st.session_state.get(_ANSWERS, {}).get(group)
    if answer is not None and not answer.ok:
        st.error(frame.plain(answer.message), icon=":material/block:")


def _control(access: Access, locked: bool) -> None:
    if not locked:
        return
    if access.is_replay:
        st.caption("A replay: these are the settings of the recorded run, at the step that is shown.")
        return
    holder = access.holder or "Nobody"
    st.caption(frame.plain(f"{holder} has control; this session watches."))
    token = st.text_input("Control token", type="password", key="control_token") if access.needs_token else None
    if st.button("Take control", key="take_control", width="stretch"):
        answer = access.acquire(token)
        if answer.ok:
            st.rerun(scope="fragment")
        st.error(frame.plain(answer.message), icon=":material/block:")


def is_asked(key: str, drawn: Any, now: Any) -> bool:
    """True if a person asks for another value than the one in force when the widget was drawn, and that still is in force.

    Keys of these widgets hold the value in force, so they come and go. A browser may report one that is gone once more,
    with the refresh that was under way; Streamlit takes that for a change. It is none: nothing may be set again or back.
    """
    return bool(st.session_state.get(key, drawn) != drawn and now == drawn)


def _change(target: str, name: str, key: str, drawn: Any) -> None:
    access = engine()
    config = access.latest().config
    holder = {"scheduler": config.scheduler, "cache": config.cache, "load": access.load}[target]
    if not is_asked(key, drawn, getattr(holder, name, None)):
        return
    value: Any = st.session_state[key]
    commands = {"scheduler": access.set_scheduler, "cache": access.set_cache, "load": access.set_load}
    _note(target, commands[target](**{name: value}))


def _knobs(knobs: Sequence[Knob], config: Any, locked: bool) -> None:
    for knob in knobs:
        _widget(knob, getattr(config, knob.name), locked)


def _widget(knob: Knob, value: Any, locked: bool) -> None:
    """One knob. Its key holds the value in force, so a change made elsewhere shows up as a fresh widget."""
    key = f"knob_{knob.target}_{knob.name}_{value}"
    common: dict[str, Any] = {
        "help": knob.help,
        "disabled": locked,
        "key": key,
        "on_change": _change,
        "args": (knob.target, knob.name, key, value),
    }
    if knob.choices is not None:
        options = [str(choice) for choice in knob.choices]
        st.selectbox(knob.label, options, index=options.index(str(value)), **common)
    elif isinstance(value, bool):
        st.toggle(knob.label, value=value, **common)
    elif knob.off:
        limit(knob, value, **common)
    elif isinstance(value, int):
        st.number_input(knob.label, value=value, step=int(knob.step), **common)
    else:
        st.number_input(knob.label, value=float(value), step=float(knob.step), format="%g", **common)


def _load(access: Access, locked: bool) -> None:
    spec = access.load
    on = spec is not None
    st.toggle("Generate requests", value=on, key=f"load_on_{on}", on_change=_toggle_load, args=(f"load_on_{on}", on),
              disabled=locked, help="Off: only prompts that people type.")  # fmt: skip
    if spec is not None:
        st.caption(frame.plain(spec.label))
        _knobs([k for k in LOAD if not k.only_for or spec.process in k.only_for], spec, locked)
        _length("prompt_tokens", "Prompt tokens (median)", spec, locked)
        _length("output_tokens", "Output tokens (median)", spec, locked)
    labels = list(SPEEDS)
    now = _speed_label(access)
    st.selectbox("Speed", labels, index=labels.index(now), key=f"speed_{now}", on_change=_set_speed, args=(f"speed_{now}", now),
                 disabled=locked, help="Slow the engine down to follow single steps by eye.")  # fmt: skip
    _last_answer("load")


def _checks(on: bool, locked: bool) -> None:
    key = f"checks_{on}"
    st.toggle("Check the conservation laws", value=on, key=key, on_change=_set_checks, args=(key, on), disabled=locked,
              help="After every step: blocks, requests, tokens and counters must add up, or the engine stops and says what"
              " did not. Costs host time, so it is off unless somebody debugs.")  # fmt: skip


def _set_checks(key: str, drawn: bool) -> None:
    if is_asked(key, drawn, engine().latest().config.check_invariants):
        _note("scheduler", engine().set_checks(not drawn))


def _toggle_load(key: str, drawn: bool) -> None:
    if is_asked(key, drawn, engine().load is not None):
        _note("load", engine().set_load(on=not drawn))


def _speed_label(access: Access) -> str:
    return next((label for label, speed in SPEEDS.items() if speed == access.steps_per_s), next(iter(SPEEDS)))


def _set_speed(key: str, drawn: str) -> None:
    if is_asked(key, drawn, _speed_label(engine())):
        _note("load", engine().set_speed(SPEEDS[st.session_state[key]]))


def _middle(lengths: LengthSpec) -> int:
    return round(lengths.median) if lengths.kind is LengthKind.LOGNORMAL else (lengths.low + lengths.high) // 2


def _length(name: str, label: str, spec: LoadSpec, locked: bool) -> None:
    """The middle of a length distribution; its shape and bounds stay, widened where the middle leaves them."""
    lengths: LengthSpec = getattr(spec, name)
    middle = _middle(lengths)
    key = f"length_{name}_{middle}"
    help_text = f"Now: {lengths.label}. Lognormal, as lengths of real traffic are."
    st.number_input(
        label, value=middle, step=16, key=key, on_change=_set_length, args=(name, key, middle), disabled=locked, help=help_text
    )


def _set_length(name: str, key: str, drawn: int) -> None:
    spec = engine().load or LoadSpec()
    old: LengthSpec = getattr(spec, name)
    if not is_asked(key, drawn, _middle(old)):
        return
    middle = int(st.session_state[key])
    sigma = old.sigma if old.kind is LengthKind.LOGNORMAL else 0.6
    try:
        new = LengthSpec.lognormal(middle, sigma, max(min(old.low, middle), 1), max(old.high, 4 * middle))
    except ValueError as error:
        _note("load", Answer(False, str(error)))
        return
    _note("load", engine().set_load(**{name: new}))


def _model(snapshot: EngineSnapshot, locked: bool) -> None:
    config, info = snapshot.config, snapshot.info
    if info is not None:
        paths = ", ".join(part for part in (info.kernels, info.graphs) if part)
        st.caption(frame.plain(f"{info.model_label}, {info.dtype}, {info.device}. {paths}"))
    with st.form("model_form", border=False):
        known = list(dict.fromkeys([config.model, *MODELS]))
        model = st.selectbox("Model", known, accept_new_options=True, disabled=locked,
                             help="smollm2, synthetic, tiny, a Hugging Face folder on the server, or a hub id.")  # fmt: skip
        dtype = st.selectbox(
            "dtype", DTYPES, index=DTYPES.index(config.dtype), disabled=locked, help="Number format of weights and KV."
        )
        seed = st.number_input("Seed", value=config.seed, step=1, disabled=locked, help="Of synthetic weights and of sampling.")
        if st.form_submit_button("Load this model", disabled=locked, width="stretch", help="Live requests end."):
            _note("model", engine().set_model(model=model, dtype=dtype, seed=int(seed)))
    _last_answer("model")
