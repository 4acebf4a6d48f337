"""The kinds of file that a figure can become, and their names."""

from __future__ import annotations

FORMATS = ("png", "png@2x", "png@3x", "svg", "pdf", "csv", "parquet")
MIME = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
}


def file_name(figure: str, fmt: str) -> str:
    """NAME.png, NAME@2x.png, NAME.csv, ..."""
    kind, _, scale = fmt.partition("@")
    return f"{figure}{'@' + scale if scale else ''}.{kind}"
