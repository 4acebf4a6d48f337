"""Live elements: a picture drawn by a small program in the browser, fed with data at every tick.

    page run, once:   programs()  --- the programs of all elements, hidden, outside the fragment
    every tick:       element.draw(data, key=...)  --- one line of JavaScript and the data

A Components v2 element carries its JavaScript in every message. So the programs travel once a page run and register
themselves under their names; what ticks is a bridge that hands each new data to the program. Programs write
text with textContent only, so no text of a user or of a model is ever read as HTML.

Data go as bytes of JSON, compressed where that is worth it: of plain data Streamlit would write the JSON, read it again
and write it sorted at every tick.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "components"
SHARED_SCRIPTS = ("shared.js", "keys.js")
_registered: dict[str, LiveElement] = {}

_BRIDGE = (
    "export default c=>{const a=globalThis.batchscope??={draw:{},early:{}};\n"
    "a.draw.%(name)s?a.draw.%(name)s(c):(a.early.%(name)s??=new Map).set(c.parentElement,c);"
    "return()=>a.early.%(name)s?.delete(c.parentElement)}"
)
"""Short, because it travels with every message of every element; its two lines tell Streamlit that it is no file's name."""

SMALL_BYTES = 400
"""Data shorter than this travel as they are: packing would gain little, and the browser unpacks in its own time."""


class LiveElement:
    """One kind of element; the same object serves all pages.

    Args:
        name: a JavaScript identifier; assets/components/<name>.js defines `function draw_<name>(component, root)`,
            assets/components/<name>.css is its style sheet.
        is_raw: data are bytes that the program reads itself.
    """

    def __init__(self, name: str, *, is_raw: bool = False) -> None:
        if not name.isidentifier():
            raise ValueError(f"element name {name!r} must be an identifier")
        self.name = name
        self._is_raw = is_raw
        self._mount = st.components.v2.component(f"batchscope_{name}", js=_BRIDGE % {"name": name})
        _registered[name] = self

    def program(self) -> str:
        """Script and style sheet as one statement that registers the element.

        Raises:
            FileNotFoundError: if assets/components is not beside the pages.
        """
        script = squeeze((ASSETS / f"{self.name}.js").read_text("utf-8"))
        sheet = json.dumps(squeeze((ASSETS / f"{self.name}.css").read_text("utf-8")))
        return f"register({json.dumps(self.name)}, {sheet}, (() => {{\n{script}\nreturn unpacking(draw_{self.name});\n}})());"

    def draw(self, data: Any, *, key: str, height: int | str = "content", **callbacks: Callable[[], None]) -> Any:
        """Show `data` (JSON-serialisable, or bytes if raw). `on_<event>_change` callbacks run for the program's triggers."""
        return self._mount(key=key, data=data if self._is_raw else packed(data), height=height, **callbacks)


def packed(data: Any) -> bytes:
    """JSON as bytes, compressed (zlib) unless it is short; assets/components/shared.js reads either."""
    text = json.dumps(data, separators=(",", ":")).encode()
    return text if len(text) < SMALL_BYTES else zlib.compress(text, 3)


def squeeze(source: str) -> str:
    """Drop indentation, blank lines and whole-line // comments."""
    lines = (re.sub(r"^\s+", "", line) for line in source.splitlines())
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.startswith("//"))


@lru_cache(maxsize=8)
def _all_programs(names: tuple[str, ...]) -> Callable[..., Any]:
    """One component with the programs of these elements, named by its text: an edited file is another component."""
    shared = [squeeze((ASSETS / name).read_text("utf-8")) for name in SHARED_SCRIPTS]
    script = "\n".join([*shared, *(_registered[name].program() for name in names), "export default () => {};"])
    mount: Callable[..., Any] = st.components.v2.component(f"batchscope_programs_{zlib.crc32(script.encode()):08x}", js=script)
    return mount


def programs() -> None:
    """Send the programs of all registered elements; call once a page run, outside every fragment."""
    with st.container(key="programs"):
        _all_programs(tuple(sorted(_registered)))(key="all_programs")


def trigger(key: str, event: str) -> Any:
    """Value of a trigger while its callback runs; None otherwise."""
    state = st.session_state.get(key)
    return state.get(event) if state else None
