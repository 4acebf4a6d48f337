"""ServeGen clients: fitted arrival laws by window and length distributions, turned into requests.

    window start (s), rate (requests/s), CV, family, shape, scale (s)      rates, a table without a header
    {"window start": {"input_tokens": "{length: probability}", "output_tokens": ...}}   lengths

Gaps follow the window's family and shape, with the mean 1 / rate: the fitted scale of a heavy tail does not give the
window's own rate back, so it is not used. A gap that outlasts its window goes on at the next window's rate; a silent window
(no family) stops time. The probabilities are the text of a Python dictionary, read by a literal parser: nothing in the file
is ever run.
"""

from __future__ import annotations

import ast
import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from core.errors import TraceError
from core.traces.report import TraceReport
from core.traces.text_input import lines, open_text
from core.traces.trace import Floats, Ints, Trace

FAMILIES = ("Gamma", "Weibull")
MAX_REQUESTS = 5_000_000
Source = str | Path | bytes | BinaryIO


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Arrival law from `start_s` until the next window; family "" is silence."""

    start_s: float
    rate_per_s: float
    cv: float
    family: str
    shape: float
    scale_s: float


@dataclass(frozen=True, slots=True, eq=False)
class LengthWindow:
    """Length distributions from `start_s` on: values (tokens) and probabilities."""

    start_s: float
    prompt: tuple[Ints, Floats]
    output: tuple[Ints, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class ServeGenClient:
    """One anonymous client; `window_s` is the length of a rate window."""

    name: str
    rates: tuple[RateWindow, ...]
    lengths: tuple[LengthWindow, ...]
    window_s: float

    @property
    def mean_rate_per_s(self) -> float:
        """Mean over all windows, silent ones included."""
        return sum(w.rate_per_s for w in self.rates) / len(self.rates)

    def generate(self, *, seed: int, start_s: float = 0.0, duration_s: float = 600.0, rate: float = 1.0) -> Trace:
        """Draw the requests of [start, start + duration) with rates times `rate`; times count from `start_s`.

        Same arguments, same requests.

        Raises:
            TraceError: if the client is silent all the time, or sends more than 5 million requests.
        """
        rng = np.random.default_rng(seed)
        parts, rest = [], 0.0
        for window in self.rates:
            begin = max(window.start_s, start_s)
            length = min(window.start_s + self.window_s, start_s + duration_s) - begin
            if window.family and window.rate_per_s > 0 and length > 0:
                units, rest = self._unit_times(rng, window, window.rate_per_s * rate * length, rest)
                parts.append(begin - start_s + units / (window.rate_per_s * rate))
        times = np.concatenate(parts) if parts else np.zeros(0)
        if not len(times):
            raise TraceError(f"client {self.name} sends nothing from {start_s:g} s to {start_s + duration_s:g} s")
        prompts, outputs = self._draw_lengths(rng, times + start_s)
        report = TraceReport(
            self.name,
            "ServeGen client",
            f"drawn from fitted rates with seed {seed}, rate factor {rate:g}",
            len(times),
            0,
            time_unit="s",
            time_note="the format's own unit",
            notes=("attribution: ServeGen (Xiang et al. 2025), Apache 2.0",),
        )
        return Trace(report, prompts, outputs, times, tenants=(self.name,))

    def _unit_times(self, rng: np.random.Generator, window: RateWindow, stop: float, rest: float) -> tuple[Floats, float]:
        """Arrivals of a process with mean gap 1 in [0, stop), the first after `rest`; and what the next window waits for."""
        if stop > MAX_REQUESTS:
            raise TraceError(f"client {self.name} would send {stop:.3g} requests in one window; lower the rate factor")
        mean = window.shape if window.family == "Gamma" else math.gamma(1.0 + 1.0 / window.shape)
        chunks = [np.array([rest if rest else self._gaps(rng, window, 1)[0] / mean])]
        while chunks[-1][-1] < stop:
            gaps = self._gaps(rng, window, max(int(stop * 1.1), 16)) / mean
            chunks.append(chunks[-1][-1] + np.cumsum(gaps))
        times = np.concatenate(chunks)
        inside = times < stop
        return times[inside], float(times[~inside][0] - stop)

    @staticmethod
    def _gaps(rng: np.random.Generator, window: RateWindow, count: int) -> Floats:
        return rng.gamma(window.shape, size=count) if window.family == "Gamma" else rng.weibull(window.shape, size=count)

    def _draw_lengths(self, rng: np.random.Generator, times: Floats) -> tuple[Ints, Ints]:
        starts = [w.start_s for w in self.lengths]
        prompts, outputs = np.ones(len(times), np.int64), np.ones(len(times), np.int64)
        which = np.array([max(bisect_right(starts, t) - 1, 0) for t in times])
        for index, window in enumerate(self.lengths):
            at = np.flatnonzero(which == index)
            for target, (values, chances) in ((prompts, window.prompt), (outputs, window.output)):
                target[at] = rng.choice(values, size=len(at), p=chances)
        return prompts, outputs


def read_client(rates: Source, lengths: Source, name: str) -> ServeGenClient:
    """Read one client's two files.

    Raises:
        TraceError: with the line or window that cannot be used.
    """
    windows = _read_rates(rates, f"rates of {name}")
    starts = [w.start_s for w in windows]
    if sorted(set(starts)) != starts:
        raise TraceError(f"window starts of {name} do not grow from line to line")
    step = starts[1] - starts[0] if len(starts) > 1 else 600.0
    return ServeGenClient(name, windows, _read_lengths(lengths, f"lengths of {name}"), step)


def _read_rates(source: Source, name: str) -> tuple[RateWindow, ...]:
    windows = []
    with open_text(source, name) as text:
        for number, line in lines(text, name):
            if not line.strip():
                continue
            cells = [c.strip() for c in line.split(",")]
            try:
                start, rate, cv, family, shape, scale = cells
                window = RateWindow(float(start), float(rate or 0), float(cv or 0), family, float(shape or 0), float(scale or 0))
            except ValueError:
                raise TraceError(
                    f"line {number} of {name} is {line[:60]!r}; expected start, rate, CV, family, shape, scale"
                ) from None
            if window.family and (window.family not in FAMILIES or not window.shape > 0 or not window.scale_s > 0):
                raise TraceError(f"line {number} of {name}: family {family!r} with shape {shape}, scale {scale} is not usable")
            windows.append(window)
    if not windows:
        raise TraceError(f"{name} hold no window")
    return tuple(windows)


def _read_lengths(source: Source, name: str) -> tuple[LengthWindow, ...]:
    with open_text(source, name) as text:
        try:
            content = json.loads(text.read())
        except json.JSONDecodeError as error:
            raise TraceError(f"{name} are not JSON: {error}") from None
    if not isinstance(content, dict) or not content:
        raise TraceError(f"{name} hold no window")
    windows = []
    for key, entry in content.items():
        try:
            start = float(key)
            prompt, output = (_distribution(entry[field]) for field in ("input_tokens", "output_tokens"))
        except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise TraceError(f"window {key!r} of {name} cannot be used: {error}") from None
        windows.append(LengthWindow(start, prompt, output))
    return tuple(sorted(windows, key=lambda w: w.start_s))


def _distribution(literal: Any) -> tuple[Ints, Floats]:
    """Values and probabilities of a dictionary or of its text; lengths below 1 count as 1, probabilities sum to 1."""
    found = ast.literal_eval(literal) if isinstance(literal, str) else literal
    if not isinstance(found, dict) or not found:
        raise ValueError("not a dictionary of length: probability")
    values = np.maximum(np.array([int(k) for k in found], np.int64), 1)
    chances = np.array([float(v) for v in found.values()], np.float64)
    if not np.isfinite(chances).all() or (chances < 0).any() or chances.sum() <= 0:
        raise ValueError("a probability is negative or not a number")
    return values, chances / chances.sum()
