"""The script of every page run: sections and pages, style sheet, settings, then the chosen page.

A new page is one line in `SECTIONS`.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages.parts import element, frame
from pages.parts.request_sets import keep_choice
from pages.parts.settings import settings

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parent / "assets"
SIDEBAR_PX = 232

SECTIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Watch": (
        ("home.py", "Home", "home"),
        ("tour.py", "Tour", "tour"),
        ("live.py", "Live", "stacked_bar_chart"),
        ("kv_blocks.py", "KV blocks", "grid_view"),
        ("roofline.py", "Roofline", "show_chart"),
        ("latency.py", "Latency", "timer"),
        ("story.py", "Story", "timeline"),
        ("attach.py", "Attach", "lan"),
    ),
    "Predict": (
        ("what_if.py", "What-if", "tune"),
        ("sweep.py", "Sweep", "scatter_plot"),
        ("compare.py", "Compare", "compare_arrows"),
    ),
    "Try": (
        ("prompt.py", "Prompt", "chat"),
        ("scheduler.py", "Scheduler", "low_priority"),
        ("failure_modes.py", "Failure modes", "troubleshoot"),
    ),
    "Take away": (("reports.py", "Reports", "inventory_2"),),
}
"""Section -> (file in this folder, title, Material icon)."""


def main() -> None:
    """Draw the chosen page."""
    st.set_page_config(
        page_title="batchscope", page_icon=str(ASSETS / "icon.svg"), layout="wide", initial_sidebar_state=SIDEBAR_PX
    )
    st.logo(ASSETS / "logo.svg", icon_image=ASSETS / "icon.svg", size="medium")
    sections = {
        name: [st.Page(file, title=title, icon=f":material/{icon}:", default=file == "home.py") for file, title, icon in pages]
        for name, pages in SECTIONS.items()
    }
    chosen = st.navigation(sections, expanded=True)
    frame.page_style()
    settings()
    keep_choice()
    try:
        chosen.run()
    finally:
        element.programs()  # last, because importing a page registers the elements that it uses


main()
