"""Looking back: a slider over the kept pictures of the run. While it stands in the past, the page shows that step.

    [following]  |---------------------------o----|  step 17 950, 12.3 s ago

The status bar goes on showing the engine as it is now. The chosen step is in the address, so a link restores it.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core.charts import formats
from core.picture_history import picture_at
from core.snapshot import EngineSnapshot
from pages.parts.element import LiveElement, trigger

KEY = "travel"
AT = "at_step"
PARAMETER = "step"
_element = LiveElement("travel")


def chosen_step() -> int | None:
    """The step that is looked at; None while the page follows the engine."""
    if AT in st.session_state:
        value: int | None = st.session_state[AT]
        return value
    asked = st.query_params.get(PARAMETER, "")
    st.session_state[AT] = int(asked) if asked.isdecimal() else None
    return st.session_state[AT]


def choose_step(step: int | None) -> None:
    """Look at a step, or follow the engine again."""
    st.session_state[AT] = step
    if step is None:
        st.query_params.pop(PARAMETER, None)
    else:
        st.query_params[PARAMETER] = str(step)


def _on_seek() -> None:
    asked = trigger(KEY, "seek")
    if isinstance(asked, dict):
        step = asked.get("step")
        choose_step(step if isinstance(step, int) else None)


def picture_to_show(latest: EngineSnapshot, pictures: Sequence[EngineSnapshot]) -> EngineSnapshot:
    """The picture of the chosen step, or the latest."""
    step = chosen_step()
    found = None if step is None else picture_at(pictures, step)
    return latest if found is None else found


def slider(latest: EngineSnapshot, shown: EngineSnapshot, pictures: Sequence[EngineSnapshot]) -> None:
    """Draw the slider."""
    behind = chosen_step() is not None and shown is not latest
    ago = formats.seconds(max(latest.wall_time_s - shown.wall_time_s, 0.0))
    text = f"step {formats.count(shown.step)}, {ago} ago" if behind else f"step {formats.count(latest.step)}"
    steps = [p.step for p in pictures]
    data = {"steps": steps, "at": shown.step if behind else None, "text": text}
    _element.draw(data, key=KEY, on_seek_change=_on_seek)
