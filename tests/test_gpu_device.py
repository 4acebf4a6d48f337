"""On a CUDA device: graphs, kernels and the engine as a whole. Elsewhere skipped; `python -m benchmarks gpu` adds the figures."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from core.config import CacheConfig, EngineConfig, SchedulerConfig
from core.engine import Engine
from core.factory import create_engine
from core.model_spec import SMOLLM2_135M, TINY, ModelSpec
from core.request import SamplingParams
from core.runtime.gpu.triton_check import TOLERANCE, largest_difference, triton_problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")]
GEOMETRY = dataclasses.replace(SMOLLM2_135M, num_layers=2, vocab_size=1024)


def engine_on(device: str, dtype: str, seats: int = 32) -> Engine:
    return create_engine(
        EngineConfig(
            model="synthetic", spec=GEOMETRY, dtype=dtype, device=device, max_model_len=512,
            scheduler=SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=64), cache=CacheConfig(num_blocks=512),
        )
    )  # fmt: skip


def outputs(engine: Engine, requests: int) -> tuple[list[tuple[int, ...]], list[str]]:
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    ids = [engine.add_request([(7 * r + i) % 1000 + 1 for i in range(5 + 9 * r)], sampling) for r in range(requests)]
    tokens: dict[str, list[int]] = {i: [] for i in ids}
    words = []
    while engine.has_work():
        for event in engine.step():
            if event.token_id is not None:
                tokens[event.request_id].append(event.token_id)
        assert engine.latest_record is not None
        words.append(engine.latest_record.graph)
    return [tuple(tokens[i]) for i in ids], words


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "spec",
    [TINY, GEOMETRY, dataclasses.replace(GEOMETRY, head_dim=128, sliding_window=50, qk_norm=True)],
    ids=["tiny", "smollm2", "128, window, norms"],
)
def test_the_kernels_agree_with_the_plain_path(spec: ModelSpec, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    device = torch.device("cuda")
    assert largest_difference(spec, dtype, device) <= TOLERANCE[dtype]
    assert triton_problem(spec, dtype, device) == ""


def test_the_engine_replays_graphs_and_gives_the_tokens_of_the_cpu() -> None:
    """float32, so that the tokens of two machines can be compared."""
    expected, _ = outputs(engine_on("cpu", "float32"), 9)
    engine = engine_on("cuda", "float32")
    found, words = outputs(engine, 9)
    assert found == expected
    hits = [w for w in words if w.startswith("graph hit")]
    assert len(hits) > 10
    totals = engine.snapshot().totals
    assert (totals.graph_replays, totals.graph_captures) == (len(hits), sum(w.startswith("graph miss ") for w in words))
    assert "CUDA graphs" in engine.executor.info.graphs
    engine.close()


def test_a_graph_gives_the_tokens_of_the_same_operations_launched_one_by_one() -> None:
    """8 rows fill their bucket, so both run the very same kernels: bfloat16 tokens agree as well."""
    engine = engine_on("cuda", "bfloat16")
    backend = engine.executor.backend  # type: ignore[attr-defined]
    found, words = outputs(engine, 8)
    assert any(w.startswith("graph hit 8") for w in words)
    backend.uses_graphs = False
    expected, words = outputs(engine, 8)
    assert set(words) == {"eager"}
    assert found == expected
    engine.close()
