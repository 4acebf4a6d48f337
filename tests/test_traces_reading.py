"""Reading of workload files: formats, broken rows, sizes, the account that a person sees."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import TraceError
from core.traces import text_input
from core.traces.formats import ColumnMap, TraceFormat
from core.traces.reader import column_names, read_trace
from core.traces.report import TimeUnitNeeded

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
)
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}\n'
    b'{"timestamp": 3000, "input_length": 1030, "output_length": 6, "hash_ids": [7, 8, 9]}\n'
)


@pytest.mark.parametrize(
    ("file", "rows", "prompt", "output", "rate", "cv", "idc10"),
    [
        ("azure_llm_2023_code_first5000.csv", 5000, (1473, 5047, 7436), (13, 54, 235), 3.07, 13.7, 79),
        ("azure_llm_2023_conv_first5000.csv", 5000, (1046, 2314, 4107), (217, 431, 638), 4.89, 1.06, 1.9),
        ("mooncake_fast25_conversation_first1100.jsonl", 1100, (8368, 29289, 98562), (364, 593, 990), 3.00, 2.83, 2.3),
        ("mooncake_fast25_synthetic_first1200.jsonl", 1200, (2912, 35569, 56639), (173, 444, 778), 3.64, 1.01, 1.2),
    ],
)
def test_published_excerpts_give_their_published_statistics(
    shared_traces: Path, file, rows, prompt, output, rate, cv, idc10
) -> None:
    trace = read_trace(shared_traces / file)
    stats = trace.stats()
    assert (stats.rows, trace.report.rows_skipped) == (rows, 0)
    assert stats.prompt == pytest.approx(prompt, abs=0.51)
    assert stats.output == pytest.approx(output, abs=0.51)
    assert stats.rate_per_s == pytest.approx(rate, abs=0.006)
    assert stats.cv == pytest.approx(cv, rel=0.01)
    assert stats.idc10 == pytest.approx(idc10, rel=0.05)


def test_lengths_without_times(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "vidur_arxiv_summarization_lengths_first5000.csv")
    assert trace.arrival_s is None
    assert trace.stats().prompt == pytest.approx((2712, 3699, 3928), abs=0.51)
    assert trace.stats().output == pytest.approx((165, 379, 3344), abs=0.51)
    prompts, outputs = trace.length_specs()
    assert (len(prompts.values), prompts.low, outputs.high) == (5000, 1, int(trace.output_tokens.max()))
    with pytest.raises(TraceError, match="arrival process"):
        trace.between(0, 1)
    timed = trace.with_arrivals(np.array([3.0, 1.0, 2.0]))
    assert timed.arrival_s.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TraceError, match="do not fit"):
        trace.with_arrivals(np.zeros(5001))
    drawn = trace.with_poisson_arrivals(4.0)
    assert drawn.stats().rate_per_s == pytest.approx(4.0, rel=0.05)
    assert drawn.stats().cv == pytest.approx(1.0, abs=0.05)
    assert drawn.arrival_s.tolist() == trace.with_poisson_arrivals(4.0).arrival_s.tolist()
    with pytest.raises(TraceError, match="above 0"):
        trace.with_poisson_arrivals(0.0)


@pytest.mark.parametrize(("part", "share"), [("conversation_first1100", 0.21), ("synthetic_first1200", 0.19)])
def test_prefix_blocks_of_the_real_traces(shared_traces: Path, part: str, share: float) -> None:
    trace = read_trace(shared_traces / f"mooncake_fast25_{part}.jsonl")
    assert trace.block_tokens == 512
    assert trace.stats().shared_share == pytest.approx(share, abs=0.005)
    assert trace.report.time_unit == "ms"


def test_formats_are_recognised_by_their_columns() -> None:
    burst = (
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"5,a,1,ChatGPT,472,18,490,Conversation log\n"
        b"45,a,0,GPT-4,1087,0,1087,API log\n"
        b"118,b,1,GPT-4,417,276,693,Conversation log\n"
    )
    trace = read_trace(burst, name="b.csv")
    assert trace.report.format_label == "BurstGPT"
    assert trace.arrival_s.tolist() == [0.0, 113.0]
    assert trace.tenants == ("ChatGPT", "GPT-4")
    assert trace.tenant(1) == "GPT-4"
    (skipped,) = trace.report.skipped
    assert (skipped.reason, skipped.count, skipped.first_line) == ("failed request (0 response tokens)", 1, 3)
    assert any("CC BY 4.0" in line for line in trace.report.lines())
    vidur = read_trace(b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n5,7,12,0.7\n")
    assert (vidur.report.format_label, vidur.prompt_tokens[0], vidur.output_tokens[0]) == ("Vidur lengths", 5, 7)
    named = read_trace(b"arrival_time,input_tokens,output_tokens\n0,5,7\n1.5,6,8\n")
    assert named.report.format_note.startswith("columns taken by their names")
    assert named.arrival_s.tolist() == [0.0, 1.5]
    with pytest.raises(TraceError, match=r"no known trace has the columns a, b"):
        read_trace(b"a,b\n1,2\n")
    with pytest.raises(TraceError, match="choose one of: azure"):
        read_trace(AZURE, fmt="azur")
    with pytest.raises(TraceError, match="has no column"):
        read_trace(AZURE, fmt=TraceFormat.BURSTGPT)


def test_a_column_map_of_the_persons_own() -> None:
    data = b"who;when (ms);In;Out\nx;0;5;7\ny;250,5;6;8\n"
    assert column_names(data) == ("who", "when (ms)", "In", "Out")
    trace = read_trace(
        data, columns=ColumnMap(time="when (ms)", prompt_tokens="In", output_tokens="Out", tenant="who"), time_unit="ms"
    )
    assert trace.arrival_s.tolist() == [0.0, 0.2505]
    assert trace.tenants == ("x", "y")
    assert trace.report.time_note.startswith("as stated; mean rate ")
    with pytest.raises(TraceError, match="no column outt; found: in, out, whenms, who"):
        read_trace(data, columns=ColumnMap(prompt_tokens="In", output_tokens="outt"))
    with pytest.raises(TraceError, match="time unit 'minutes'"):
        read_trace(data, columns=ColumnMap(time="when (ms)", prompt_tokens="In", output_tokens="Out"), time_unit="minutes")


def test_texts_are_counted_or_said_to_be_estimated() -> None:
    lines = b'{"prompt": "one two three four"}\n{"prompt": "", "x": 1}\n{"prompt": "a b", "output_tokens": 9}\n'
    counted = read_trace(lines, count_tokens=lambda text: len(text.split()), default_output_tokens=32)
    assert counted.prompt_tokens.tolist() == [4, 2]
    assert counted.output_tokens.tolist() == [32, 9]
    assert counted.prompts == ("one two three four", "a b")
    assert counted.report.notes == ("1 rows state no output length; 32 tokens were assumed",)
    estimated = read_trace(lines)
    assert estimated.prompt_tokens.tolist() == [4, 1]
    assert any("estimated at 4 characters" in note for note in estimated.report.notes)


def test_conversations_are_read_one_object_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}, {"from": "human", "value": "more"}]
    items = [{"id": str(i), "conversations": turns if i % 5 else turns[:1]} for i in range(50)]
    monkeypatch.setattr(text_input, "_CHUNK", 64)  # objects then span chunks
    trace = read_trace(json.dumps(items, indent=1).encode(), count_tokens=lambda t: len(t.split()))
    assert (len(trace), trace.prompt_tokens[0], trace.output_tokens[0]) == (40, 3, 2)
    assert trace.report.skipped[0].reason == "fewer than two turns"
    with pytest.raises(TraceError, match="broken JSON list in object 51"):
        read_trace(json.dumps(items)[:-1].encode() + b', {"id": }]')


BROKEN = (
    b"time,prompt_tokens,output_tokens\n"
    b"0,5,7\n,5,7\nsoon,5,7\n1,,7\n1,five,7\n1,5.5,7\n1,0,7\n1,-3,7\n1,5,0\n1,99999999999,7\n1,5\nnan,5,7\n\n2,6,8\n"
)


def test_broken_rows_are_counted_by_reason() -> None:
    trace = read_trace(BROKEN, time_unit="s")
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    reasons = {s.reason: s.count for s in trace.report.skipped}
    assert reasons == {
        "time is missing": 1,
        "time is neither a number nor a date and time": 2,
        "prompt tokens missing": 1,
        "prompt tokens not a number": 1,
        "prompt tokens not a whole number": 1,
        "no prompt tokens": 1,
        "prompt tokens below 0": 1,
        "no output tokens": 1,
        "prompt tokens above 10000000": 1,
        "2 cells where 3 were expected": 1,
    }
    assert trace.report.rows_used + trace.report.rows_skipped == 13
    missing = next(s for s in trace.report.skipped if s.reason == "2 cells where 3 were expected")
    assert (missing.first_line, missing.example) == (12, "1,5")


def test_no_usable_row_is_an_error_that_counts() -> None:
    with pytest.raises(TraceError, match=r"no usable row: 2 x no output tokens \(first on line 2"):
        read_trace(b"time,prompt_tokens,output_tokens\n0,5,0\n1,5,0\n", name="t.csv")
    for empty in (b"", b"\n\n", b"time,prompt_tokens,output_tokens\n", b"[]"):
        with pytest.raises(TraceError, match=r"no usable row|no known trace"):
            read_trace(empty)
    with pytest.raises(TraceError, match=r"3 x not JSON"):
        read_trace(b"{oops\n{\n{]\n")
    with pytest.raises(TraceError, match="cannot be opened"):
        read_trace("/no/such/file.csv")


def test_lines_of_json_that_are_not_rows() -> None:
    trace = read_trace(MOONCAKE + b'[1]\n{"timestamp": 9000, "input_length": 5}\n{broken\n\n')
    assert {s.reason for s in trace.report.skipped} == {"a line that is not an object", "output tokens missing", "not JSON"}
    with pytest.raises(TraceError, match="do not fit its prompt lengths"):
        read_trace(MOONCAKE.replace(b"[7, 8]", b"[7]"))
    odd = read_trace(MOONCAKE + b'{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": "x"}\n')
    assert odd.report.skipped[0].reason == "hash_ids not a list of whole numbers"


def test_numbers_and_brackets_without_end_are_broken_rows() -> None:
    huge = '{"timestamp": 1, "input_length": 1' + "0" * 5000 + ', "output_length": 4}'
    deep = '{"a":' * 100_000
    good = '{"timestamp": 2, "input_length": 10, "output_length": 4}'
    trace = read_trace(f"{huge}\n{deep}\n{good}\n".encode(), name="x.jsonl")
    assert (len(trace), trace.report.rows_skipped) == (1, 2)
    with pytest.raises(TraceError, match="broken JSON list"):
        read_trace(f"[{huge}]".encode(), name="x.json")


def test_a_strange_rate_in_the_formats_own_unit_is_said() -> None:
    rows = "\n".join(f'{{"timestamp": {3 * i}, "input_length": 100, "output_length": 20, "hash_ids": [{i}]}}' for i in range(50))
    note = read_trace(rows.encode(), name="x.jsonl").report.time_note
    assert "unusual: it would be 0.333 in s" in note
    assert "unusual" not in read_trace(rows.encode(), name="x.jsonl", time_unit="s").report.time_note
    stated = read_trace(rows.encode(), name="x.jsonl", time_unit="us").report.time_note
    assert stated.startswith("as stated; mean rate 3.333e+05 requests/s, which is unusual: it would be 0.333 in s")


def test_rows_out_of_order_are_sorted_with_their_blocks() -> None:
    first, second = MOONCAKE.splitlines(keepends=True)
    trace = read_trace(second + first)
    assert trace.report.reordered == 1
    assert trace.arrival_s.tolist() == [0.0, 3.0]
    assert trace.prompt_tokens.tolist() == [1000, 1030]
    assert (trace.blocks(0), trace.blocks(1)) == ((7, 8), (7, 8, 9))


def test_a_unit_that_cannot_be_told_is_asked_for() -> None:
    """Ten arrivals 7 apart: 0.14 requests/s as seconds, 143 as milliseconds; both are real loads."""
    rows = b"".join(b'{"timestamp": %d, "input_length": 5, "output_length": 5}\n' % (7 * i) for i in range(10))
    with pytest.raises(TimeUnitNeeded, match="say which one is right") as caught:
        read_trace(rows)
    assert [o.unit for o in caught.value.options] == ["s", "ms", "us", "ns"]
    assert caught.value.options[1].rate_per_s == pytest.approx(1000 / 7)
    assert read_trace(rows, time_unit="ms").arrival_s[-1] == pytest.approx(0.063)
    assert read_trace(rows, time_unit="s").arrival_s[-1] == 63


def test_one_point_in_time_needs_no_unit() -> None:
    trace = read_trace(b"time,prompt_tokens,output_tokens\n5,1,1\n5,2,2\n")
    assert trace.arrival_s.tolist() == [0.0, 0.0]
    assert "does not matter" in trace.report.time_note


def test_uploads_and_compressed_files() -> None:
    stream = io.BytesIO(gzip.compress(AZURE))
    trace = read_trace(stream)
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert not stream.closed
    assert len(read_trace(AZURE.decode().encode("utf-16"))) == 2
    with pytest.raises(TraceError, match="broken gzip"):
        read_trace(gzip.compress(AZURE * 50)[:-30])
    with pytest.raises(TraceError, match="not utf-8 text"):
        read_trace(AZURE + b"\xff\xfe\xff,1,1\n")
    with pytest.raises(TraceError, match="cannot be read as a table"):
        read_trace(AZURE + b'"' + b"x" * 200_000)


def test_a_limit_of_rows_is_said() -> None:
    trace = read_trace(AZURE * 1 + b"2023-11-16 18:15:51.0,1,1\n" * 10, max_rows=5)
    assert (len(trace), trace.report.truncated) == (5, True)
    assert any("only the first 5" in line for line in trace.report.lines())


def test_memory_is_bounded_by_what_is_kept(tmp_path: Path) -> None:
    """A 30 MB file of texts whose rows keep 24 bytes each: reading takes a small part of its size."""
    path = tmp_path / "long.jsonl"
    with path.open("w") as out:
        for i in range(3000):
            out.write(json.dumps({"timestamp": i, "input_length": 5, "output_length": 5, "note": "x" * 10_000}) + "\n")
    tracemalloc.start()
    trace = read_trace(path, time_unit="s")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace) == 3000
    assert peak < 3_000_000


def rows_or_reason(data: bytes, unit: str | None) -> int | str:
    try:
        return len(read_trace(data, time_unit=unit))
    except TraceError as error:
        return str(error)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_trace_or_a_trace_error(data: bytes) -> None:
    assert rows_or_reason(data, None)


@given(st.text(alphabet='{}[]",:;0123456789.-eE \r\n\tabtimespromkn_', max_size=200))
def test_any_text_gives_a_trace_or_a_trace_error(text: str) -> None:
    assert rows_or_reason(b"time,prompt_tokens,output_tokens\n0,1,1\n" + text.encode(), "s")
