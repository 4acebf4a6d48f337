"""Holding a load generator's own report against the dashboard's records: the arithmetic, on reports as the tools write them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.client_tools import Report, read_guidellm, read_locust, read_vllm
from benchmarks.clients import agree, differences, of_records, page_agrees
from core.records import RequestRecord

LOCUST = """\
Type,Name,Request Count,Average Response Time,Average Content Size,Requests/s
token,ITL,6,30.0,0,6.0
POST,POST,2,190.0,0,2.0
token,TTFT,2,100.0,0,2.0
token,answer,2,190.0,4.0,2.0
,Aggregated,12,60.0,0.7,12.0
"""
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_totals": {"successful": 2, "errored": 0, "incomplete": 0, "total": 2},
                "output_token_count": {"successful": {"mean": 4.0, "total_sum": 8.0}},
                "time_to_first_token_ms": {"successful": {"mean": 100.0}},
                "inter_token_latency_ms": {"successful": {"mean": 30.0}},
                "output_tokens_per_second": {"successful": {"mean": 8.0}},
            }
        }
    ]
}
VLLM = {"completed": 2, "total_output_tokens": 8, "mean_ttft_ms": 100.0, "mean_itl_ms": 30.0, "output_throughput": 8.0}
SAID = Report(2, 8, 0.1, 0.03, 8.0)


def record(request_id: str, arrival_s: float, ttft_s: float | None, gaps: tuple[float, ...]) -> dict[str, Any]:
    end_s = arrival_s + (ttft_s or 0.0) + sum(gaps)
    tokens = 0 if ttft_s is None else 1 + len(gaps)
    return dataclasses.asdict(
        RequestRecord(
            request_id,
            "default",
            0,
            arrival_s,
            end_s,
            "length",
            5,
            tokens,
            0,
            0,
            0.01,
            ttft_s,
            None,
            end_s - arrival_s,
            max(gaps, default=None),
            0.0,
            itl_s=gaps,
        )
    )


RECORDS = [record("a", 10.0, 0.09, (0.03, 0.03, 0.03)), record("b", 10.82, 0.11, (0.01, 0.03, 0.05))]


def test_each_tools_own_report_is_read() -> None:
    assert read_locust(LOCUST) == SAID
    assert read_guidellm(GUIDELLM) == SAID
    assert read_vllm(VLLM) == SAID
    with pytest.raises(KeyError):
        read_vllm({})


def test_the_dashboards_figures_are_of_the_records_of_those_requests() -> None:
    ours = of_records(RECORDS)
    assert (ours.requests, ours.output_tokens) == (2, 8)
    assert ours.ttft_s == pytest.approx(0.1)
    assert ours.itl_s == pytest.approx(0.03), "the mean over gaps, not over requests"
    assert ours.tokens_per_s == pytest.approx(8 / 1.02), "from the first arrival to the last token"
    assert of_records([*RECORDS, record("c", 10.1, None, ())]).ttft_s == pytest.approx(0.1)
    with pytest.raises(ValueError, match="none of them got a token"):
        of_records([record("c", 10.1, None, ())])
    with pytest.raises(ValueError, match="0 requests"):
        of_records([])


def test_five_percent_is_allowed_to_a_figure_and_nothing_to_a_count() -> None:
    ours = of_records(RECORDS)
    found = differences(SAID, ours)
    assert {name: off for name, _, _, off in found}["output tokens/s"] == pytest.approx(0.02)
    assert agree(found)
    assert not agree(differences(dataclasses.replace(SAID, ttft_s=0.1051), ours))
    assert agree(differences(dataclasses.replace(SAID, ttft_s=0.1049, itl_s=0.0286), ours))
    assert not agree(differences(dataclasses.replace(SAID, requests=3), ours))
    assert not agree(differences(dataclasses.replace(SAID, output_tokens=9), ours))


def page(tokens: int, firsts: int, ttft_total: float, gaps: int, itl_total: float) -> str:
    return (
        f"vllm:num_requests_running 0\nvllm:generation_tokens_total {tokens}\n"
        f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {firsts}\n'
        f"vllm:time_to_first_token_seconds_sum {ttft_total}\nvllm:time_to_first_token_seconds_count {firsts}\n"
        f'vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {gaps}\n'
        f"vllm:inter_token_latency_seconds_sum {itl_total}\nvllm:inter_token_latency_seconds_count {gaps}\n"
    )


def test_the_metrics_page_must_have_grown_by_the_records() -> None:
    before = page(100, 7, 1.5, 93, 4.0)
    ours = of_records(RECORDS)
    assert page_agrees(before, page(108, 9, 1.7, 99, 4.18), ours)
    for other in ((109, 9, 1.7, 99, 4.18), (108, 10, 1.7, 99, 4.18), (108, 9, 1.8, 99, 4.18), (108, 9, 1.7, 98, 4.18)):
        assert not page_agrees(before, page(*other), ours), other
