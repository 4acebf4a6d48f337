"""The door to workload files: a path, bytes or an upload in, a `Trace` and the account of the reading out.

One pass; a row is read, checked, counted or kept as three numbers, and forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from core.errors import TraceError
from core.traces.formats import FORMATS, ColumnMap, TraceFormat, recognise
from core.traces.report import BadRow, SkipCounter, TraceReport
from core.traces.text_input import Row, csv_rows, first_line, json_list_rows, jsonl_rows, normalise, open_text, split_header
from core.traces.timestamps import UNIT_SECONDS, TimeColumn, to_number
from core.traces.trace import Trace

MAX_ROWS = 1_000_000
MAX_TOKENS = 10_000_000
CHARS_PER_TOKEN = 4.0
DEFAULT_OUTPUT_TOKENS = 256
_BLOCK_SIZES = (512, 16, 256, 128, 64, 32, 1024)
CountTokens = Callable[[str], int]


def read_trace(
    source: str | Path | bytes | BinaryIO,
    *,
    name: str = "",
    fmt: TraceFormat | str | None = None,
    columns: ColumnMap | None = None,
    time_unit: str | None = None,
    count_tokens: CountTokens | None = None,
    default_output_tokens: int = DEFAULT_OUTPUT_TOKENS,
    max_rows: int = MAX_ROWS,
) -> Trace:
    """Read a workload file.

    Args:
        fmt: None recognises the format by its columns.
        columns: the person's own map; wins over what was recognised (format GENERIC).
        time_unit: "s", "ms", "us" or "ns" for a column of numbers; None infers it, or asks.
        count_tokens: counts the tokens of a text; without it 4 characters count as a token, and the report says so.
        default_output_tokens: output length of rows that state none (texts without an answer).

    Raises:
        TraceError: if the file cannot be read or no row is usable; the message counts the rows by reason.
        TimeUnitNeeded: if the unit of time has to be asked for.
    """
    label = name or (Path(source).name if isinstance(source, (str, Path)) else "the uploaded file")
    skip = SkipCounter()
    with open_text(source, label) as text:
        rows, decimal_comma = _rows(text, label, skip)
        first = next(rows, None)
        if first is None:
            raise skip.no_usable_row(label)
        known = set(first[1])
        if columns is not None:
            kind, found, how = TraceFormat.GENERIC, columns.normalised(), "columns as stated"
            _check_columns(found, known, label)
        elif fmt is not None:
            kind = _format_named(fmt)
            found, how = FORMATS[kind].columns, "as stated"
            if kind in (TraceFormat.GENERIC, TraceFormat.VLLM_CUSTOM):
                _, found, how = recognise(known)
            _check_columns(found, known, label)
        else:
            kind, found, how = recognise(known)
        collector = _Collector(label, kind, found, skip, count_tokens, default_output_tokens, decimal_comma)
        for number, row in chain([first], rows):
            if collector.rows + skip.total >= max_rows:
                collector.truncated = True
                break
            collector.take(number, row)
    return collector.trace(how, time_unit)


def _format_named(fmt: TraceFormat | str) -> TraceFormat:
    try:
        return TraceFormat(fmt)
    except ValueError:
        raise TraceError(f"format {fmt!r} is not known; choose one of: {', '.join(TraceFormat)}") from None


def _check_columns(columns: ColumnMap, known: set[str], name: str) -> None:
    missing = [c for c in columns.named() if c not in known and c not in (columns.tenant, columns.output_tokens)]
    if columns.output_tokens is not None and columns.output_tokens not in known and columns.prompt is None:
        missing.append(columns.output_tokens)
    if missing:
        raise TraceError(f"{name} has no column {', '.join(missing)}; found: {', '.join(sorted(known)) or 'none'}")


def _rows(text: TextIO, name: str, skip: SkipCounter) -> tuple[Iterator[Row], bool]:
    """The right row reader by the first character that is not blank, and whether a comma may be a decimal point."""
    _, line = first_line(text, name)
    text.seek(0)
    start = line.lstrip("\ufeff \t")[:1]
    if start == "[":
        return json_list_rows(text, name, skip), False
    if start == "{":
        return jsonl_rows(text, name, skip), False
    return csv_rows(text, name, skip), bool(line) and split_header(line)[0] != ","


def column_names(source: str | Path | bytes | BinaryIO, name: str = "the file") -> tuple[str, ...]:
    """The columns of a file as written, for a form in which a person maps them."""
    with open_text(source, name) as text:
        _, line = first_line(text, name)
        if line.lstrip("\ufeff \t")[:1] not in ("{", "["):
            return tuple(c.strip().lstrip("\ufeff") for c in split_header(line)[1]) if line else ()
        text.seek(0)
        first = next(_rows(text, name, SkipCounter())[0], None)
        return tuple(first[1]) if first else ()


class _Collector:
    """Checks rows and keeps them as columns."""

    def __init__(
        self,
        name: str,
        kind: TraceFormat,
        columns: ColumnMap,
        skip: SkipCounter,
        count_tokens: CountTokens | None,
        output: int,
        decimal_comma: bool,
    ) -> None:
        self._name, self._kind, self._columns, self._skip = name, kind, columns, skip
        self._count, self._default_output = count_tokens, output
        self._time = TimeColumn(name, decimal_comma)
        self._times, self._prompts, self._outputs = array("d"), array("q"), array("q")
        self._ids, self._starts = array("Q"), array("q", [0])
        self._tenants: dict[str, int] = {}
        self._tenant_index = array("q")
        self._texts: list[str] = []
        self._estimated = self._assumed_output = 0
        self._blocks_fit = set(_BLOCK_SIZES)
        self.truncated = False

    @property
    def rows(self) -> int:
        return len(self._prompts)

    def take(self, line: int, row: Mapping[str, Any]) -> None:
        """Keep one row, or count why not."""
        try:
            if self._kind is TraceFormat.SHAREGPT:
                row = _first_exchange(row)
                columns = ColumnMap(prompt="prompt", output="output")
            else:
                columns = self._columns
            prompt, text = self._prompt_length(row, columns)
            output = self._output_length(row, columns)
            ids = self._block_ids(row, columns)
            at = self._time.offset(row.get(columns.time), line) if columns.time else 0.0
        except BadRow as bad:
            self._skip.add(str(bad), line, dict(row))
            return
        self._times.append(at)
        self._prompts.append(prompt)
        self._outputs.append(output)
        self._ids.extend(ids)
        self._starts.append(len(self._ids))
        tenant = str(row.get(columns.tenant) or "default") if columns.tenant else "default"
        self._tenant_index.append(self._tenants.setdefault(tenant, len(self._tenants)))
        if ids:
            self._blocks_fit = {b for b in self._blocks_fit if -(-prompt // b) == len(ids)}
        if text is not None:
            self._texts.append(text)

    def _tokens(self, value: Any, what: str, zero: str) -> int:
        number = to_number(value)
        if number is None:
            raise BadRow(f"{what} missing" if value in (None, "") else f"{what} not a number")
        if number != int(number):
            raise BadRow(f"{what} not a whole number")
        if number < 0:
            raise BadRow(f"{what} below 0")
        if number == 0:
            raise BadRow(zero)
        if number > MAX_TOKENS:
            raise BadRow(f"{what} above {MAX_TOKENS}")
        return int(number)

    def _length(self, text: str) -> int:
        if self._count is not None:
            return max(self._count(text), 1)
        self._estimated += 1
        return max(round(len(text) / CHARS_PER_TOKEN), 1)

    def _prompt_length(self, row: Mapping[str, Any], columns: ColumnMap) -> tuple[int, str | None]:
        text = row.get(columns.prompt) if columns.prompt else None
        kept = text if isinstance(text, str) else None
        if columns.prompt_tokens is not None:
            return self._tokens(row.get(columns.prompt_tokens), "prompt tokens", "no prompt tokens"), kept
        if kept is None or not kept.strip():
            raise BadRow("prompt text missing or empty")
        return self._length(kept), kept

    def _output_length(self, row: Mapping[str, Any], columns: ColumnMap) -> int:
        if columns.output_tokens is not None and row.get(columns.output_tokens) not in (None, ""):
            return self._tokens(row[columns.output_tokens], "output tokens", FORMATS[self._kind].zero_output)
        text = row.get(columns.output) if columns.output else None
        if isinstance(text, str) and text.strip():
            return self._length(text)
        if columns.prompt is None:
            raise BadRow("output tokens missing")
        self._assumed_output += 1
        return self._default_output

    def _block_ids(self, row: Mapping[str, Any], columns: ColumnMap) -> list[int]:
        if columns.hash_ids is None:
            return []
        ids = row.get(columns.hash_ids)
        if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < 2**63 for i in ids):
            raise BadRow("hash_ids not a list of whole numbers")
        return ids

    def trace(self, how: str, stated_unit: str | None) -> Trace:
        """All rows as one trace, sorted by time."""
        if not self.rows:
            raise self._skip.no_usable_row(self._name)
        info = FORMATS[self._kind]
        report = TraceReport(
            self._name,
            info.label,
            how,
            self.rows,
            self._skip.total,
            self._skip.rows(),
            truncated=self.truncated,
            notes=self._notes(),
        )
        prompts, outputs = np.frombuffer(self._prompts, np.int64), np.frombuffer(self._outputs, np.int64)
        tenants = tuple(self._tenants)
        order = np.arange(self.rows)
        times = None
        if self._kind is not TraceFormat.SHAREGPT and self._columns.time is not None:
            raw = np.frombuffer(self._times, np.float64)
            unit, note = self._time.unit(stated_unit, info.unit, self.rows, float(raw.max() - raw.min()))
            order = np.argsort(raw, kind="stable")
            times = (raw[order] - raw[order[0]]) * UNIT_SECONDS.get(unit, 1.0)
            report = replace(
                report, time_unit=unit, time_note=note, origin=self._time.origin, reordered=int((np.diff(raw) < 0).sum())
            )
        ids, starts, block = self._blocks(order)
        return Trace(
            report=report,
            prompt_tokens=prompts[order],
            output_tokens=outputs[order],
            arrival_s=times,
            tenants=tenants,
            tenant_index=np.frombuffer(self._tenant_index, np.int64)[order] if len(tenants) > 1 else None,
            block_ids=ids,
            block_starts=starts,
            block_tokens=block,
            prompts=tuple(self._texts[i] for i in order) if len(self._texts) == self.rows else None,
        )

    def _blocks(self, order: Any) -> tuple[Any, Any, int]:
        if not len(self._ids):
            return None, None, 0
        if not self._blocks_fit:
            raise TraceError(
                f"hash_ids of {self._name} do not fit its prompt lengths: no block size of"
                f" {', '.join(map(str, sorted(_BLOCK_SIZES)))} gives ceil(length / size) ids in every row"
            )
        starts = np.frombuffer(self._starts, np.int64)
        ids = np.frombuffer(self._ids, np.uint64).astype(np.int64)
        counts = np.diff(starts)[order]
        new_starts = np.concatenate(([0], np.cumsum(counts)))
        if not np.array_equal(order, np.arange(len(order))):
            ids = np.concatenate([ids[starts[i] : starts[i + 1]] for i in order])
        return ids, new_starts, next(b for b in _BLOCK_SIZES if b in self._blocks_fit)

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._estimated:
            notes.append(f"{self._estimated} lengths estimated at {CHARS_PER_TOKEN:g} characters a token: no tokenizer was given")
        if self._assumed_output:
            notes.append(f"{self._assumed_output} rows state no output length; {self._default_output} tokens were assumed")
        if self._ids and self._blocks_fit:
            block = next(b for b in _BLOCK_SIZES if b in self._blocks_fit)
            notes.append(f"prefix blocks of {block} tokens: the size that fits every row's number of ids")
        if FORMATS[self._kind].attribution:
            notes.append(f"attribution: {FORMATS[self._kind].attribution}")
        return tuple(notes)


def _first_exchange(row: Mapping[str, Any]) -> dict[str, Any]:
    """The first question and its answer, as vLLM's benchmark takes them."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or len(turns) < 2:
        raise BadRow("fewer than two turns")
    texts = [t.get("value") or t.get("content") if isinstance(t, dict) else None for t in turns[:2]]
    if not all(isinstance(t, str) and t.strip() for t in texts):
        raise BadRow("a turn without text")
    return {normalise("prompt"): texts[0], normalise("output"): texts[1]}
