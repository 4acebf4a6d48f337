"""Bundle, report, trace and figures made beside a running engine: in a process of their own, at low priority.

thread: bundle -> DIR/NAME.bundle.zip -> `python -m core.report` (nice) -> trace, HTML, PDF, figures, one after the other
page:   polls `files()`; a file is there when it is whole
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from core.bundle import SUFFIX, RunBundle, write_bundle
from core.errors import BatchscopeError

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
NICENESS = 10
PARTS = (SUFFIX, ".trace.json", ".report.html", ".report.pdf", ".figures.zip")
"""Ends of the names of the files, in the order in which they are made."""


class ExportJob:
    """One export. `start` it, poll `is_running`, `files()` and `error`; its folder goes with it.

    Args:
        make: gives the bundle; called in the job's thread.
        stem: beginning of every file's name.
        options: of `python -m core.report`.
    """

    def __init__(self, make: Callable[[], RunBundle], stem: str, options: Sequence[str] = ("--figures-zip",)) -> None:
        self.stem = stem
        self.error = ""
        self.bundle: RunBundle | None = None
        self._make = make
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="batchscope-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="export", daemon=True)
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True until everything is made or something went wrong."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the process that makes the report; what is made stays."""
        process = self._process
        if process is not None:
            process.terminate()

    def files(self) -> dict[str, Path]:
        """End of the name -> path of the files that are there, in the order of `PARTS`."""
        return {part: path for part in PARTS if (path := self._folder / f"{self.stem}{part}").exists()}

    def _run(self) -> None:
        try:
            self.bundle = self._make()
            path = write_bundle(self.bundle, self._folder / f"{self.stem}{SUFFIX}")
            self._report(path)
        except BatchscopeError as error:
            self.error = str(error)
        except OSError as error:
            self.error = f"the report cannot be made: {error.strerror or error}"
        except Exception as error:
            log.exception("an export failed")
            self.error = f"the export failed: {type(error).__name__}: {error}"

    def _report(self, bundle: Path) -> None:
        command = [sys.executable, "-m", "core.report", str(bundle), *self._options]
        quiet = {**os.environ, "NO_COLOR": "1", "COLUMNS": "1000"}
        nice = [found, "-n", str(NICENESS)] if (found := shutil.which("nice")) else []
        self._process = subprocess.Popen([*nice, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=quiet)
        output, _ = self._process.communicate()
        if self._process.returncode:
            last = output.decode(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
            self.error = f"the report was not finished: {last[0]}"
