"""The ticking part of a page stands in a container that the page run itself makes, so that no dropped tick leaves a gap."""

from __future__ import annotations

import pytest
from streamlit.runtime.scriptrunner_utils import script_run_context

from tests.test_roofline_pages import live, opened  # noqa: F401  live is a fixture


@pytest.mark.usefixtures("live")
def test_the_place_of_the_ticking_part_belongs_to_no_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    enqueue = script_run_context.ScriptRunContext.enqueue

    def watched(self: script_run_context.ScriptRunContext, message: object) -> None:
        enqueue(self, message)  # type: ignore[arg-type]
        block = message.delta.add_block  # type: ignore[attr-defined]
        if "ticking" in block.id:
            seen.append((block.id, message.delta.fragment_id))  # type: ignore[attr-defined]

    monkeypatch.setattr(script_run_context.ScriptRunContext, "enqueue", watched)
    opened("roofline")
    assert len(seen) == 1
    assert seen[0][1] == ""
