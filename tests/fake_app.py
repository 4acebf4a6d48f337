"""The dashboard on scenery, for looking at pages without a model: `streamlit run tests/fake_app.py`.

The argument after `--` picks the scenery: busy (default), heavy, starting, idle, frozen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages.parts import engine_access
from tests.fake_live import FakeLive
from tests.fake_snapshots import busy_run, heavy_run, idle_snapshot, starting_snapshot

scene = sys.argv[-1]
live = FakeLive(heavy_run() if scene == "heavy" else busy_run())
if scene == "starting":
    live.picture = starting_snapshot()
elif scene == "idle":
    live.picture = idle_snapshot()
elif scene != "frozen":
    live.play()
engine_access.install(live)

app = st.App(Path(__file__).resolve().parents[1] / "pages" / "main.py")
