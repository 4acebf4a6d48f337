"""A loop of pure Python that computes while a file exists."""

from __future__ import annotations

import os
import time
from pathlib import Path

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
