"""`python -m benchmarks NAME [options]` runs main(argv) of benchmarks/NAME.py (a dash in NAME is an underscore there)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_HELPERS = {"__init__", "__main__", "dashboard", "report"}


def names() -> list[str]:
    """Benchmarks in this folder: every module that defines main(argv)."""
    modules = (p for p in sorted(Path(__file__).parent.glob("*.py")) if p.stem not in _HELPERS)
    return [p.stem.replace("_", "-") for p in modules if "\ndef main(argv" in p.read_text(encoding="utf-8")]


def main(argv: list[str]) -> int:
    """Run the named benchmark; without a name, or with an unknown one, list them."""
    known = names()
    name = argv[0].replace("_", "-") if argv else ""
    if name not in known:
        wanted = f"there is no benchmark {name!r}; " if name and not name.startswith("-") else ""
        print(f"{wanted}usage: python -m benchmarks NAME [options]\nNAME is one of: {', '.join(known)}", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
