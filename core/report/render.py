"""Figures to files, without a browser: PNG at 1x, 2x, 3x, SVG and PDF with their fonts inside, data as CSV and Parquet.

A PNG states its resolution, a PDF its size, so both are as wide on paper as the figure was made for.
"""

from __future__ import annotations

import base64
import io
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import vl_convert

from core.bundle_tables import parquet_bytes
from core.errors import ExportError
from core.report.file_kinds import FORMATS
from core.report.text import FAMILY

FONT_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "fonts"
_PPI = 96.0
_VEGA_PPI = 72.0


@lru_cache(maxsize=1)
def use_own_fonts() -> None:
    """Make the figures' own fonts known to the renderer; once a process."""
    vl_convert.register_font_directory(str(FONT_FOLDER))


@lru_cache(maxsize=1)
def font_faces() -> str:
    """CSS that carries the fonts inside a file."""
    rules = []
    for weight, name in ((400, "regular"), (700, "bold")):
        content = base64.b64encode((FONT_FOLDER / f"figure-sans-{name}.woff2").read_bytes()).decode()
        source = f"url(data:font/woff2;base64,{content}) format('woff2')"
        rules.append(f"@font-face{{font-family:'{FAMILY}';font-weight:{weight};src:{source}}}")
    return "".join(rules)


def svg_text(spec: dict[str, Any]) -> str:
    """A figure as SVG, without fonts.

    Raises:
        ExportError: if the renderer cannot draw it.
    """
    use_own_fonts()
    try:
        drawn: str = vl_convert.vegalite_to_svg(json.dumps(spec, allow_nan=False))
    except ValueError as error:
        raise ExportError(f"the figure cannot be drawn: {str(error).splitlines()[0]}") from error
    return drawn


def _in_points(svg: str) -> str:
    """The same picture with its size in points, which is what a PDF takes a pixel for."""

    def scaled(found: re.Match[str]) -> str:
        return f'{found[1]}="{float(found[2]) * _VEGA_PPI / _PPI:.2f}"'

    head, mark, rest = svg.partition(">")
    return re.sub(r'\b(width|height)="([\d.]+)"', scaled, head) + mark + rest


def with_fonts(svg: str) -> str:
    """An SVG with its fonts inside."""
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}<style>{font_faces()}</style>{rest}"


def picture(spec: dict[str, Any], fmt: str) -> bytes:
    """A figure as a file.

    Args:
        spec: from `core.report.print_spec.print_spec`.
        fmt: "png", "png@2x", "png@3x", "svg" or "pdf".

    Raises:
        ExportError: for another format, or if the renderer cannot draw it.
    """
    svg = svg_text(spec)
    if fmt == "svg":
        return with_fonts(svg).encode()
    if fmt == "pdf":
        drawn: bytes = vl_convert.svg_to_pdf(_in_points(svg))
        return drawn
    kind, _, scale = fmt.partition("@")
    if kind != "png" or scale not in ("", "2x", "3x"):
        raise ExportError(f"there is no format {fmt!r}; choose one of: {', '.join(FORMATS)}")
    times = int(scale[:-1] or 1) if scale else 1
    image: bytes = vl_convert.svg_to_png(svg, scale=_VEGA_PPI / _PPI, ppi=_PPI * times)
    return image


def data_file(data: pd.DataFrame | pa.Table, fmt: str) -> bytes:
    """The data of a figure as "csv" or "parquet"."""
    table = data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False)
    if fmt == "parquet":
        return parquet_bytes(table.replace_schema_metadata(None))
    out = io.BytesIO()
    plain = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    pa_csv.write_csv(pa.table(plain, names=table.column_names), out)
    return out.getvalue()


def _frame(part: Any) -> pd.DataFrame:
    return part.to_pandas() if isinstance(part, pa.Table) else part if isinstance(part, pd.DataFrame) else pd.DataFrame(part)


def joined(parts: dict[str, Any]) -> pd.DataFrame:
    """Several data sets of one figure (frames, tables or rows) as one table; the column `set` says of which each row is."""
    frames = [_frame(part).assign(set=name) for name, part in parts.items()]
    found: pd.DataFrame = pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)
    return found
