"""Scaling, cutting, spreading, merging and replaying traces; ServeGen clients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from core.errors import ConfigError, TraceError
from core.traces.reader import read_trace
from core.traces.replay_prompts import prompt_ids, trace_arrivals
from core.traces.servegen import read_client
from core.traces.tenant_mix import TenantLaw, clients_trace, pair_clients, tenant_mix
from core.traces.trace import merge
from core.traces.writer import TIME_UNIT, trace_jsonl, trace_of
from core.workload import Arrival

ROWS = b"".join(
    b'{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}\n'
    % (1000 * (i // 3), length, 10 + i, json.dumps(ids).encode())
    for i, (length, ids) in enumerate([(1000, [1, 2]), (1500, [1, 2, 3]), (512, [1]), (513, [1, 9]), (700, [5, 6]), (30, [7])])
)


@pytest.fixture
def trace():
    return read_trace(ROWS, name="own")


def test_scaling(trace) -> None:
    twice = trace.scaled(rate=2, output=0.5)
    assert twice.arrival_s.tolist() == [0, 0, 0, 0.5, 0.5, 0.5]
    assert twice.output_tokens.tolist() == [5, 6, 6, 6, 7, 8]
    assert trace.scaled(prompt=1e-6).prompt_tokens.tolist() == [2, 3, 1, 2, 2, 1]  # at least one token a block
    assert trace.with_rate(10.0).stats().rate_per_s == pytest.approx(10.0)
    for factor in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="rate factor"):
            trace.scaled(rate=factor)


def test_scaled_prompts_share_as_many_blocks_as_before(trace) -> None:
    small = trace.scaled(prompt=1 / 64)
    assert small.block_tokens == 8
    assert small.prompt_tokens.tolist() == [8 + 8, 16 + 7, 8, 8 + 1, 8 + 3, 1]
    a, b, c = (prompt_ids(small, row, 50_000) for row in (0, 1, 3))
    assert a == b[:16]
    assert a[:8] == c[:8]
    assert a[8:9] != c[8:]


def test_prompts_are_exact_deterministic_and_differ_where_blocks_differ(trace) -> None:
    for row in range(len(trace)):
        ids = prompt_ids(trace, row, 300, seed=3)
        assert len(ids) == trace.prompt_tokens[row]
        assert ids == prompt_ids(trace, row, 300, seed=3)
        assert 0 <= min(ids) <= max(ids) < 300
    assert prompt_ids(trace, 4, 300) != prompt_ids(trace, 4, 300, seed=1)
    plain = trace.scaled(prompt=1.0)
    assert prompt_ids(plain, 4, 300)[:30] != prompt_ids(plain, 5, 300)[:30]


def test_clipped_prompts_drop_the_blocks_beyond_the_cut(trace) -> None:
    cut = trace.clipped(600, 12)
    assert cut.prompt_tokens.tolist() == [600, 600, 512, 513, 600, 30]
    assert [cut.blocks(i) for i in range(6)] == [(1, 2), (1, 2), (1,), (1, 9), (5, 6), (7,)]
    assert int(cut.output_tokens.max()) == 12


def test_rounded_times_are_spread(trace) -> None:
    assert trace.spread().arrival_s == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])


def test_real_coarse_times_are_spread(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mooncake_fast25_conversation_first1100.jsonl")
    even = trace.spread()
    assert trace.stats().cv > 2.5
    assert even.stats().cv < 1.0
    assert (np.diff(even.arrival_s) > 0).all()
    assert np.abs(even.arrival_s - trace.arrival_s).max() <= 6.0


def test_cutting(trace) -> None:
    late = trace.between(1.0, 2.0)
    assert (late.arrival_s.tolist(), late.prompt_tokens.tolist()) == ([0, 0, 0], [513, 700, 30])
    assert late.blocks(0) == (1, 9)
    assert trace.head(2).blocks(1) == (1, 2, 3)
    with pytest.raises(TraceError, match="no arrival from 5 s"):
        trace.between(5, 6)
    with pytest.raises(TraceError, match="do not exist"):
        trace.rows(3, 3)


def test_arrivals_of_a_trace(trace) -> None:
    found = list(trace_arrivals(trace, vocab_size=100, start_s=7.0, slo_ttft_s=0.5))
    assert [a.time_s for a in found] == [7, 7, 7, 8, 8, 8]
    assert [a.max_tokens for a in found] == [10, 11, 12, 13, 14, 15]
    assert found[0].prompt_tokens == 1000
    assert found[0].slo_ttft_s == 0.5


RATES = b"0,2.0,1.0,Gamma,1.0,0.5\r\n600,0,,,,\r\n1200,4.0,2.0,Weibull,0.5,0.125\r\n"
LENGTHS = json.dumps({
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{3: 1.0}"},
    "1200": {"input_tokens": "{5: 1.0}", "output_tokens": "{0: 0.5, 7: 0.5}"},
}).encode()  # fmt: skip


def test_a_client_is_drawn_from_its_windows() -> None:
    client = read_client(RATES, LENGTHS, "c")
    assert client.mean_rate_per_s == 2.0
    trace = client.generate(seed=5, duration_s=1800)
    again = client.generate(seed=5, duration_s=1800)
    assert trace.arrival_s.tolist() == again.arrival_s.tolist()
    times = trace.arrival_s
    early, silent, late = (int(((times >= a) & (times < a + 600)).sum()) for a in (0, 600, 1200))
    assert early == pytest.approx(1200, abs=4 * 1200**0.5)
    assert silent == 0
    assert late == pytest.approx(2400, rel=0.25)  # Weibull(0.5): CV of the gaps is 2.2
    assert set(trace.prompt_tokens[:early].tolist()) == {10, 20}
    assert set(trace.output_tokens[early + silent :].tolist()) == {1, 7}
    with pytest.raises(TraceError, match="sends nothing"):
        client.generate(seed=5, start_s=600, duration_s=600)


def test_client_files_are_never_run() -> None:
    evil = json.dumps({"0": {"input_tokens": "__import__('os').getcwd()", "output_tokens": "{1: 1}"}}).encode()
    with pytest.raises(TraceError, match="window '0' of lengths of c cannot be used"):
        read_client(RATES, evil, "c")
    with pytest.raises(TraceError, match="line 2 of rates of c"):
        read_client(b"0,2,1,Gamma,1,0.5\nx,y\n", LENGTHS, "c")
    with pytest.raises(TraceError, match="family 'Pareto'"):
        read_client(b"0,2,1,Pareto,1,0.5\n", LENGTHS, "c")
    with pytest.raises(TraceError, match="do not grow"):
        read_client(RATES + RATES, LENGTHS, "c")
    with pytest.raises(TraceError, match="hold no window"):
        read_client(b"", LENGTHS, "c")
    with pytest.raises(TraceError, match="not JSON"):
        read_client(RATES, b"{", "c")


def test_real_clients_keep_their_ratios(shared_traces: Path) -> None:
    traces = []
    for number, rate in ((27, 96.5), (14, 43.0), (39, 7.9)):
        client = read_client(
            shared_traces / f"servegen_m-small_client{number}_rates_first144.csv",
            shared_traces / f"servegen_m-small_client{number}_lengths_first4windows.json",
            f"client{number}",
        )
        assert client.mean_rate_per_s == pytest.approx(rate, abs=0.06)
        drawn = client.generate(seed=1, duration_s=86_400, rate=0.01)
        assert drawn.stats().rate_per_s == pytest.approx(client.mean_rate_per_s * 0.01, rel=0.1)
        traces.append(drawn)
    assert traces[0].stats().prompt == pytest.approx((51, 52, 54), abs=1)
    assert traces[2].stats().prompt == pytest.approx((82, 1520, 1607), rel=0.05)
    both = merge(traces)
    assert len(both) == sum(map(len, traces))
    assert both.tenants == ("client27", "client14", "client39")
    assert (np.diff(both.arrival_s) >= 0).all()
    counts = np.bincount(both.tenant_index)
    assert counts.tolist() == [len(t) for t in traces]
    with pytest.raises(TraceError, match="no trace to merge"):
        merge([])


def test_a_mix_keeps_each_tenants_rate_burstiness_and_lengths() -> None:
    laws = (TenantLaw("steady", 2.0, 1.0, 100, 20), TenantLaw("bursts", 1.0, 3.0, 400, 5))
    mixed = tenant_mix(laws, 6000, seed=3)
    assert len(mixed) == 6000
    assert (np.diff(mixed.arrival_s) >= 0).all()
    for index, law in enumerate(laws):
        mine = mixed.tenant_index == index
        gaps = np.diff(mixed.arrival_s[mine])
        assert 1 / gaps.mean() == pytest.approx(law.rate_per_s, rel=0.2)
        assert gaps.std() / gaps.mean() == pytest.approx(law.cv, rel=0.25)
        assert np.median(mixed.prompt_tokens[mine]) == pytest.approx(law.prompt_tokens, rel=0.1)
    again = tenant_mix(laws, 6000, seed=3)
    assert (again.arrival_s == mixed.arrival_s).all()
    assert (tenant_mix(laws, 6000, seed=4).arrival_s != mixed.arrival_s).any()
    with pytest.raises(TraceError, match="each name once"):
        tenant_mix((laws[0], laws[0]), 5)
    with pytest.raises(TraceError, match="cv is 0"):
        TenantLaw("odd", 1.0, 0.0, 1, 1)


def test_real_clients_are_paired_by_name_and_brought_to_a_rate(shared_traces: Path) -> None:
    paths = [p for number in (14, 27, 39) for p in sorted(shared_traces.glob(f"servegen_m-small_client{number}_*"))]
    clients = pair_clients([(p.name, p.read_bytes()) for p in paths])
    assert [c.name for c in clients] == [f"servegen_m-small_client{n}" for n in (14, 27, 39)]
    trace = clients_trace(clients, 500, rate_per_s=2.0, seed=1)
    assert len(trace) == 500
    assert trace.stats().rate_per_s == pytest.approx(2.0, rel=0.5)
    assert len(set(trace.tenant_index.tolist())) >= 2
    with pytest.raises(TraceError, match="has no file of lengths"):
        pair_clients([(paths[1].name, b"")] if "rates" in paths[1].name else [(paths[0].name, b"")])
    with pytest.raises(TraceError, match="neither rates nor lengths"):
        pair_clients([("notes.csv", b"")])


def test_a_written_trace_is_read_back(trace) -> None:
    """Times, lengths, tenants and shared blocks survive the way through a file."""
    for given in (trace, tenant_mix([TenantLaw("a", 3.0, 1.0, 50, 20), TenantLaw("b", 1.0, 2.0, 90, 9)], 60)):
        back = read_trace(trace_jsonl(given).encode(), name="w.jsonl", time_unit=TIME_UNIT)
        assert back.prompt_tokens.tolist() == given.prompt_tokens.tolist()
        assert back.output_tokens.tolist() == given.output_tokens.tolist()
        assert back.arrival_s == pytest.approx(given.arrival_s - given.arrival_s[0], abs=2e-6)
        assert [back.tenant(i) for i in range(len(back))] == [given.tenant(i) for i in range(len(given))]
        assert [back.blocks(i) for i in range(len(back))] == [given.blocks(i) for i in range(len(given))]
    arrivals = tuple(Arrival(5.0 + i, i, (i,) * 7, 3, "a" if i % 2 else "b") for i in range(4))
    dense = read_trace(trace_jsonl(trace_of(arrivals), rate=2.0).encode(), name="w.jsonl", time_unit=TIME_UNIT)
    assert dense.arrival_s.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert [dense.tenant(i) for i in range(4)] == ["b", "a", "b", "a"]
