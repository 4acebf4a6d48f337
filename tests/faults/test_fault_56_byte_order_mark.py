"""Fault 56: a byte-order mark sticks to the first column's name; other marks that editors and spreadsheets leave."""

from __future__ import annotations

import pytest

from core.errors import TraceError
from core.traces.reader import read_trace

ROWS = [
    ("2023-11-16 18:15:46.6805900", 374, 44),
    ("2023-11-16 18:15:50.9951690", 396, 109),
    ("2023-11-16 18:15:51.2224670", 879, 55),
]
PLAIN = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{t},{p},{o}\n" for t, p, o in ROWS)
VARIANTS = {
    "mark": "\ufeff" + PLAIN,
    "CRLF": PLAIN.replace("\n", "\r\n"),
    "mark and CRLF": "\ufeff" + PLAIN.replace("\n", "\r\n"),
    "quoted headers": PLAIN.replace("TIMESTAMP,ContextTokens,GeneratedTokens", '"TIMESTAMP","ContextTokens","GeneratedTokens"'),
    "quoted cells": "".join(",".join(f'"{c}"' for c in line.split(",")) + "\n" for line in PLAIN.splitlines()),
    "blank last lines": PLAIN + "\n\n  \n,,\n",
    "blank first line": "\n" + PLAIN,
    "semicolons": PLAIN.replace(",", ";"),
    "tabs": PLAIN.replace(",", "\t"),
    "other order": "GeneratedTokens,TIMESTAMP,ContextTokens\n" + "".join(f"{o},{t},{p}\n" for t, p, o in ROWS),
    "upper case": PLAIN.upper(),
    "lower case and underscores": PLAIN.replace("ContextTokens,GeneratedTokens", "context_tokens, generated_tokens").lower(),
    "no newline at the end": PLAIN.rstrip("\n"),
    "one more column": PLAIN.replace("Tokens\n", "Tokens,note\n")
    .replace("44\n", "44,x\n")
    .replace("09\n", "09,y\n")
    .replace("55\n", "55,\n"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_requests_as_the_plain_file(variant: str) -> None:
    plain, trace = read_trace(PLAIN.encode()), read_trace(VARIANTS[variant].encode())
    assert trace.arrival_s.tolist() == plain.arrival_s.tolist()
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.report.rows_skipped == 0


def test_a_missing_column_is_named_with_what_was_found() -> None:
    with pytest.raises(TraceError, match=r"has the columns contexttokens, timestmp"):
        read_trace(b"\xef\xbb\xbfTIMESTMP;ContextTokens\n1;2\n")
