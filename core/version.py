"""The version of the program, as captions, bundles and reports state it."""

from __future__ import annotations

VERSION = "0.1.0"
