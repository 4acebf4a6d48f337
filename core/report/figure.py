"""One figure of a run: what it asks, what it spans, how to read it, its specification and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        span: steps and mark, e.g. "steps 1 to 300 · measured".
        how: one line that says how to read it.
        spec: chart specification in the theme that was asked for, without data.
        data: data sets by name; "" is the main one.
    """

    name: str
    title: str
    span: str
    how: str
    spec: dict[str, Any]
    data: dict[str, pd.DataFrame]

    def filled(self) -> dict[str, Any]:
        """The specification with its named data sets (frames) in place."""
        named = {k: v for k, v in self.data.items() if k}
        return {**self.spec, "datasets": named} if named else self.spec

    @property
    def main(self) -> pd.DataFrame | None:
        """The main data set, None where there are only named ones."""
        return self.data.get("")
