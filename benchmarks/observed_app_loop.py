"""A loop of pure Python that computes while a file exists, and the steps of an engine as lines of a file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CHUNK = 20_000
LOOK_S = 0.05


def busy_loop(switch: Path, *, ends_with: int | None = None) -> None:
    """Compute while the file exists.

    Args:
        ends_with: return as soon as the parent is not this process any more; None never returns.
    """
    while ends_with is None or os.getppid() == ends_with:
        if not switch.exists():
            time.sleep(LOOK_S)
            continue
        total = 0
        for number in range(CHUNK):
            total += number * number % 7


class StepLine(NamedTuple):
    """One step: when it ended (monotonic clock of the machine, s), its output tokens, how long it and its forward pass took."""

    end_s: float
    output_tokens: int
    duration_s: float
    forward_s: float

    def text(self) -> str:
        """The line."""
        return f"{self.end_s!r} {self.output_tokens} {self.duration_s!r} {self.forward_s!r}\n"


def read_steps(path: Path) -> list[StepLine]:
    """All steps of a file, oldest first."""
    cells = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [StepLine(float(end), int(tokens), float(duration), float(forward)) for end, tokens, duration, forward in cells]


def tokens_per_s(steps: Sequence[StepLine], begin_s: float, end_s: float) -> float:
    """Output tokens a second between the ends of the first and the last step that ended between two moments.

    Raises:
        ValueError: for fewer than two such steps.
    """
    inside = [s for s in steps if begin_s <= s.end_s <= end_s]
    if len(inside) < 2:
        raise ValueError(f"{len(inside)} steps ended within {end_s - begin_s:.1f} s; a rate needs two")
    return sum(s.output_tokens for s in inside[1:]) / (inside[-1].end_s - inside[0].end_s)
