"""The dashboard with one more thread in its process, which computes while the file named in BATCHSCOPE_BUSY_FILE exists.

Served by `python -m benchmarks observer`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from app import app
from benchmarks.observed_app_loop import busy_loop

__all__ = ["app"]

if os.environ.get("BATCHSCOPE_BUSY_FILE"):
    threading.Thread(target=busy_loop, args=(Path(os.environ["BATCHSCOPE_BUSY_FILE"]),), name="busy", daemon=True).start()
