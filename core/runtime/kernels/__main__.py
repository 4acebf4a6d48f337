"""Compile the kernels ahead of the first start: python -m core.runtime.kernels"""

from __future__ import annotations

import sys

from core.clock import WallClock
from core.runtime.kernels.backend import is_prepared, prepare
from core.runtime.kernels.compiler import cache_folder, unavailable_reason


def main() -> int:
    """Compile into the user's cache folder and say where; 0 also where kernels cannot be used."""
    reason = unavailable_reason()
    if reason:
        sys.stdout.write(f"The plain path will be used: {reason}.\n")
        return 0
    known, clock = is_prepared(), WallClock()
    start_s = clock.now()
    prepare()
    verb = "loaded" if known else "compiled"
    sys.stdout.write(f"Kernels {verb} in {clock.now() - start_s:.1f} s, kept in {cache_folder()}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
