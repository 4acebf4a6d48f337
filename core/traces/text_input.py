"""Bytes to rows, whatever the editor or spreadsheet did to the file.

Byte-order marks, CRLF, blank lines, quoted headers, semicolons, tabs and gzip are all read; lines are never held
together, so memory does not grow with the file. A row is (line number, mapping of normalised name to cell).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from core.errors import TraceError
from core.traces.report import SkipCounter

Row = tuple[int, Mapping[str, Any]]
MAX_LINE_CHARS = 32 * 1024 * 1024
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_DELIMITERS = (",", ";", "\t", "|")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def normalise(name: str) -> str:
    """A column name without case, blanks, underscores, hyphens and marks: "Request tokens" -> "requesttokens"."""
    return "".join(c for c in name.strip().strip("\ufeff\"'").lower() if c.isalnum())


@contextmanager
def open_text(source: str | Path | bytes | BinaryIO, name: str) -> Iterator[TextIO]:
    """Open a path, bytes or a binary stream as text; UTF-8 or UTF-16 by its mark, gzip by its magic bytes.

    Raises:
        TraceError: if there is no such file or the bytes are not text.
    """
    with ExitStack() as stack:
        raw: BinaryIO
        if isinstance(source, bytes):
            raw = io.BytesIO(source)
        elif isinstance(source, (str, Path)):
            try:
                raw = stack.enter_context(Path(source).open("rb"))
            except OSError as error:
                raise TraceError(f"{name} cannot be opened: {error.strerror}") from None
        else:
            raw = source
            raw.seek(0)
        head = raw.read(4)
        raw.seek(0)
        stream: Any = raw
        try:
            if head[:2] == _GZIP:
                stream = stack.enter_context(gzip.open(raw))
                head = stream.read(4)
                stream.seek(0)
            encoding = next((e for mark, e in _BOMS if head.startswith(mark)), "utf-8")
            text = io.TextIOWrapper(stream, encoding=encoding, newline="")
            try:
                yield text
            finally:
                text.detach()  # the caller's stream stays open
        except UnicodeDecodeError as error:
            raise TraceError(f"{name} is not {encoding} text: {error.reason} at byte {error.start}; save it as UTF-8") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{name} is a broken gzip file: {error}") from None


def lines(text: TextIO, name: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end).

    Raises:
        TraceError: for a line that is too long to be a row.
    """
    number = 0
    while line := text.readline(MAX_LINE_CHARS):
        number += 1
        if len(line) == MAX_LINE_CHARS:
            raise TraceError(f"line {number} of {name} is longer than {MAX_LINE_CHARS} characters; is it a list of rows?")
        yield number, line.rstrip("\r\n")


def first_line(text: TextIO, name: str) -> tuple[int, str]:
    """The first line that is not blank; (0, "") if there is none."""
    for number, line in lines(text, name):
        if line.strip():
            return number, line
    return 0, ""


def split_header(line: str) -> tuple[str, list[str]]:
    """(delimiter, cells) of a header: the delimiter that gives the most cells."""
    best = max(_DELIMITERS, key=lambda d: len(next(csv.reader([line], delimiter=d))))
    return best, next(csv.reader([line], delimiter=best))


def csv_rows(text: TextIO, name: str, skip: SkipCounter, header: Sequence[str] | None = None) -> Iterator[Row]:
    """Rows of a table; without `header` the first line names the columns.

    Raises:
        TraceError: for text that is no table, e.g. an open quote.
    """
    number, first = first_line(text, name)
    if not first:
        return
    delimiter, cells = split_header(first)
    names = [normalise(c) for c in (header if header is not None else cells)]
    base = number
    numbered = (line for _, line in lines(text, name))
    reader = csv.reader(numbered, delimiter=delimiter, skipinitialspace=True)
    if header is not None:
        yield base, dict(zip(names, cells, strict=False))
    try:
        for row in reader:
            if not any(c.strip() for c in row):
                continue
            line = base + reader.line_num
            if len(row) < len(names):
                skip.add(f"{len(row)} cells where {len(names)} were expected", line, delimiter.join(row))
                continue
            yield line, dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise TraceError(f"{name} cannot be read as a table after line {base + reader.line_num}: {error}") from None


def jsonl_rows(text: TextIO, name: str, skip: SkipCounter) -> Iterator[Row]:
    """One object a line."""
    for number, line in lines(text, name):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):  # of thousands of digits, too, no number can be made
            skip.add("not JSON", number, line)
            continue
        if isinstance(item, dict):
            yield number, {normalise(str(k)): v for k, v in item.items()}
        else:
            skip.add("a line that is not an object", number, line)


def json_list_rows(text: TextIO, name: str, skip: SkipCounter) -> Iterator[Row]:
    """Objects of one JSON list, decoded one at a time; the row's number counts objects from 1.

    Raises:
        TraceError: where the list is broken; the message names the object.
    """
    decoder = json.JSONDecoder()
    buffer, at, number = "", 0, 0
    ended = False
    while True:
        while at < len(buffer) and buffer[at] in " \t\r\n,[\ufeff":
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            item, end = decoder.raw_decode(buffer, at) if at < len(buffer) else (None, at)
        except (ValueError, RecursionError) as error:
            item, end = None, at
            if ended or len(buffer) - at > MAX_LINE_CHARS:
                raise TraceError(f"{name} is a broken JSON list in object {number + 1}: {error}") from None
        if end > at:
            number += 1
            at = end
            if isinstance(item, dict):
                yield number, {normalise(str(k)): v for k, v in item.items()}
            else:
                skip.add("an entry that is not an object", number, item)
            continue
        if ended:
            return
        more = text.read(_CHUNK)
        ended = not more
        buffer, at = buffer[at:] + more, 0
