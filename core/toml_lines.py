"""What `tomllib` leaves out: the line of each key, and writing.

[load]           line 3        ("load",)             3
rate_per_s = 4   line 4        ("load", "rate_per_s") 4
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_TABLE = re.compile(r"^\s*\[\[?\s*([A-Za-z0-9_.\-\" ]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-\"]+(?:\s*\.\s*[A-Za-z0-9_\-\"]+)*)\s*=")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Line of each table and key, from 1; the n-th of a repeated table ([[...]]) has its number from 0 in its path.

    Lines inside multi-line strings may be taken for keys; that can only misplace an error message.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    repeats: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        head = _TABLE.match(line)
        if head:
            table = _parts(head.group(1))
            lines.setdefault(table, number)
            if line.lstrip().startswith("[["):
                index = repeats[table] = repeats.get(table, -1) + 1
                table = (*table, str(index))
                lines[table] = number
            continue
        key = _KEY.match(line)
        if key:
            lines[(*table, *_parts(key.group(1)))] = number
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in dotted.split("."))


def write_toml(content: Mapping[str, Any]) -> str:
    """TOML of nested mappings, lists and scalars; None is left out.

    Raises:
        TypeError: for a value that TOML has no form for.
    """
    out: list[str] = []
    _write_table(content, (), out)
    return "\n".join(out).strip() + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], out: list[str]) -> None:
    def is_rows(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)

    def is_inner(value: Any) -> bool:
        return isinstance(value, Mapping) and len(path) == 0

    for key, value in table.items():
        if value is not None and not is_rows(value) and not is_inner(value):
            out.append(f"{_key(key)} = {_value(value)}")
    for key, value in table.items():
        inner = (*path, key)
        name = ".".join(_key(part) for part in inner)
        if is_rows(value):
            for row in value:
                out += ["", f"[[{name}]]"]
                _write_table(row, inner, out)
        elif is_inner(value):
            out += ["", f"[{name}]"]
            _write_table(value, inner, out)


def _key(key: str) -> str:
    return key if _BARE.match(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    raise TypeError(f"{type(value).__name__} has no form in TOML")
