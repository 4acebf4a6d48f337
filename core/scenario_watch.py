"""Watch a scenario file: saving it in an editor gives the new scenario to whoever asked, once and whole.

    file event -> wait until nothing more happens for `quiet_s` -> same bytes as last time? nothing -> parse -> told

Editors save in several steps (truncate and write, or write beside and rename), so a quiet period comes before reading
and a digest of the content decides whether anything has changed. A broken file is told as an error with its line; the
old scenario stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from core.scenario import Scenario, ScenarioError, parse_scenario

QUIET_S = 0.3
OnScenario = Callable[[Scenario], None]
OnError = Callable[[ScenarioError], None]


class _Touched(FileSystemEventHandler):
    def __init__(self, path: Path, wake: threading.Event) -> None:
        self._path, self._wake = path, wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Wake the watcher if the event is about the file (also as the target of a rename) and changes it."""
        if event.event_type in ("opened", "closed_no_write"):
            return
        names = (event.src_path, getattr(event, "dest_path", ""))
        if any(name and Path(str(name)).name == self._path.name for name in names):
            self._wake.set()


class ScenarioWatcher:
    """Watches one file from a thread of its own; `start` and `stop` it.

    Args:
        on_scenario, on_error: called from the watcher's thread; they should only hand the value on.
        quiet_s: how long the file must rest before it is read.

    Attributes:
        last_error: why the latest content was not used; None if it was.
    """

    def __init__(self, path: Path, on_scenario: OnScenario, on_error: OnError, *, quiet_s: float = QUIET_S) -> None:
        self.path = path.absolute()
        self.last_error: ScenarioError | None = None
        self._on_scenario, self._on_error, self._quiet_s = on_scenario, on_error, quiet_s
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._digest = b""
        self._observer = Observer()
        self._thread = threading.Thread(target=self._run, name="scenario-watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch; a file that is there already is read at once.

        Raises:
            ScenarioError: if its folder does not exist.
        """
        folder = self.path.parent
        if not folder.is_dir():
            raise ScenarioError(f"the folder {folder} of the scenario does not exist")
        self._observer.schedule(_Touched(self.path, self._wake), str(folder), recursive=False)
        self._observer.start()
        if self.path.exists():
            self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """End both threads; calling it twice is harmless."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            while not self._stopped.is_set() and self._wake.is_set():  # rest until nothing has happened for a while
                self._wake.clear()
                self._rest()
            if self._stopped.is_set():
                return
            self._read()

    def _rest(self) -> None:
        """Let the quiet time pass, or less if it is to stop."""
        self._stopped.wait(self._quiet_s)

    def _read(self) -> None:
        """Read the file if its content is new; a file that is gone or empty for now (an editor truncates it) is left alone."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self._fail(ScenarioError(f"the file cannot be read: {error.strerror}"))
            return
        digest = blake2b(content, digest_size=16).digest()
        if not content or digest == self._digest:
            return
        self._digest = digest
        try:
            scenario = self._parse(content)
        except ScenarioError as error:
            self._fail(error)
            return
        self.last_error = None
        self._on_scenario(scenario)

    def _parse(self, content: bytes) -> Scenario:
        try:
            return parse_scenario(content.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise ScenarioError("the file is not UTF-8 text") from None

    def _fail(self, error: ScenarioError) -> None:
        self.last_error = error
        self._on_error(error)
