"""Decode steps as captured graphs, without a device: a recorder stands in for the graph and replays the very operations that
were recorded, on the very tensors, as a CUDA graph does. Whatever a step takes from the host at capture shows as a wrong logit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from core.model_spec import TINY
from core.outputs import ModelRunnerOutput
from core.runtime.backend import StepBatch
from core.runtime.gpu.backend import DeviceBackend
from core.runtime.gpu.graphs import DecodeGraphs, bucket_of
from core.runtime.gpu.inputs import StepInputs, split_step
from tests.runtime_driver import Driver, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture

LENGTHS = (3, 17, 8, 30, 1, 9, 5, 6, 2)
CPU = torch.device("cpu")


class Recording(TorchDispatchMode):
    """The operations of one run, in order; replay repeats them at the same addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, tuple, dict, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        assert "_local_scalar_dense" not in name, "a captured step waits for the device"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]))
        return out

    def replay(self) -> None:
        for func, args, kwargs, outputs in self.calls:
            fresh = [t for t in tree_flatten(func(*args, **kwargs))[0] if isinstance(t, torch.Tensor)]
            for old, new in zip(outputs, fresh, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder:
    """Implements `Capturer`; each graph counts `each_bytes`. A capture must not change anything, so its effects are undone."""

    def __init__(self, each_bytes: int = 1, fail: bool = False) -> None:
        self.held_bytes, self._each, self._fail = 0, each_bytes, fail
        self.captured = 0

    def capture(self, run):
        if self._fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        with Recording() as recording:
            run()
        self.captured += 1
        self.held_bytes += self._each
        return recording


def graphed(capturer: Recorder | None = None, **options: object) -> DeviceBackend:
    return DeviceBackend(lambda device: capturer or Recorder(), max_rows=16, **options)  # type: ignore[arg-type]


def driven(backend: DeviceBackend | None, **options: object) -> Driver:
    driver = Driver(make_runner(backend=backend, **options))  # type: ignore[arg-type]
    for index, prompt in enumerate(prompts_of(LENGTHS)):
        driver.add(str(index), prompt)
    return driver


def random_steps(driver: Driver, seed: int, steps: int) -> tuple[list[ModelRunnerOutput], dict[str, list[int]]]:
    """Random batches: mostly decode-only subsets of the live rows, now and then a prompt chunk or a preemption."""
    rng = np.random.default_rng(seed)
    results = [driver.step({i: r.missing for i, r in driver.live.items()})]
    for _ in range(steps):
        ids = [i for i in driver.live if rng.random() < 0.7] or ["0"]
        if rng.random() < 0.15:
            driver.take_back(ids[0])
        counts = {i: driver.live[i].missing for i in ids}
        results.append(driver.step(counts))
    return results, {i: r.output for i, r in driver.live.items()}


def test_buckets_are_powers_of_two_and_then_multiples_of_eight() -> None:
    assert [bucket_of(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 25, 250)] == [1, 2, 4, 4, 8, 8, 16, 16, 24, 24, 32, 256]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("window", [None, 7])
def test_random_batches_give_the_tokens_of_the_plain_path(seed: int, window: int | None) -> None:
    spec = dataclasses.replace(TINY, sliding_window=window)
    backend = graphed()
    options = {"spec": spec, "nan_fill": True, "num_blocks": 200}
    results, found = random_steps(driven(backend, **options), seed, 60)
    _, expected = random_steps(driven(None, **options), seed, 60)
    assert found == expected
    words = [r.graph for r in results]
    hits = [w for w in words if w.startswith("graph hit")]
    assert words[0] == "eager"
    assert len(hits) > 25
    assert backend.graphs is not None
    assert (backend.graphs.replays, backend.graphs.captures) == (len(hits), sum(w.startswith("graph miss ") for w in words))
    assert backend.graphs.captures == backend.graphs.misses < len(hits)


def test_a_replayed_step_gives_the_logits_of_the_plain_path() -> None:
    """Not only the tokens: every logit of every step, padding or not."""

    def logits(backend: DeviceBackend | None) -> list[torch.Tensor]:
        driver = driven(backend, nan_fill=True)
        seen: list[torch.Tensor] = []
        model = driver.runner._model
        forward = model.forward
        model.forward = lambda batch: seen.append(forward(batch).clone()) or seen[-1]  # type: ignore[method-assign]
        driver.step({i: r.missing for i, r in driver.live.items()})
        for count in (9, 3, 9, 3, 1, 7, 8, 1, 5):
            driver.step(dict.fromkeys(list(driver.live)[-count:], 1))
        return seen

    for found, expected in zip(logits(graphed()), logits(None), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_a_second_step_of_a_bucket_is_a_hit_and_padding_leaves_the_pool_alone() -> None:
    backend = graphed()
    driver = driven(backend, nan_fill=True)
    driver.step({i: r.missing for i, r in driver.live.items()})
    assert driver.step(dict.fromkeys("012", 1)).graph == "graph miss 4"
    free = driver.free[5:]
    assert driver.step(dict.fromkeys("345", 1)).graph == "graph hit 4"
    assert driver.step(dict.fromkeys("67", 1)).graph == "graph miss 2"
    assert driver.step(dict.fromkeys("0123", 1)).graph == "graph hit 4"
    assert driver.runner.cache.key[:, free].isnan().all()


def test_another_pool_begins_without_graphs() -> None:
    backend = graphed()
    driver = driven(backend, block_size=16)
    driver.step({i: r.missing for i, r in driver.live.items()})
    driver.step({"0": 1})
    assert driver.step({"0": 1}).graph == "graph hit 1"
    driver.runner.resize(50, 8, 0)
    again = Driver(driver.runner)
    again.add("0", prompts_of(LENGTHS)[0])
    again.step({"0": 3})
    assert again.step({"0": 1}).graph == "graph miss 1"
    assert again.step({"0": 1}).graph == "graph hit 1"
    plain = Driver(make_runner())
    plain.add("0", prompts_of(LENGTHS)[0])
    assert again.run(12) == plain.run(12)


def test_what_has_no_shape_runs_by_operations() -> None:
    backend = DeviceBackend(lambda device: Recorder(), max_rows=4)
    driver = driven(backend)
    assert driver.step({"0": 2}).graph == "eager", "a chunk of a prompt"
    driver.step({i: r.missing for i, r in driver.live.items()})
    assert driver.step(dict.fromkeys(driver.live, 1)).graph == "graph miss", "more rows than the largest bucket"
    assert driver.step({"0": 1, "1": 1}, padded=(3, 1, 40)).graph == "eager", "a rectangle of a fixed batch"
    assert backend.graphs is not None
    assert (backend.graphs.captures, backend.graphs.misses) == (0, 1)


def test_no_graph_is_captured_beyond_the_memory_for_graphs() -> None:
    recorder = Recorder(each_bytes=600)
    backend = graphed(recorder, max_graph_bytes=1000)
    driver = driven(backend, block_size=16)
    driver.step({i: r.missing for i, r in driver.live.items()})
    words = [driver.step(dict.fromkeys(list(driver.live)[:n], 1)).graph for n in (1, 2, 4, 1, 4)]
    assert words == ["graph miss 1", "graph miss 2", "graph miss", "graph hit 1", "graph miss"]
    assert recorder.captured == 2
    assert "used up" in driver.runner.info.graphs


def test_a_failed_capture_costs_no_step_and_is_told(caplog) -> None:
    backend = graphed(Recorder(fail=True))
    driver, plain = driven(backend), driven(None)
    for d in (driver, plain):
        d.step({i: r.missing for i, r in d.live.items()})
    assert [driver.step({"0": 1}).graph for _ in range(3)] == ["graph miss"] * 3
    assert "not permitted" in driver.runner.info.graphs
    assert "capture of 1 rows failed" in caplog.text
    assert driver.run(8) == plain.run(8)


def test_rows_that_do_not_sample_get_no_logits() -> None:
    """A decode-only step may hold a prompt's chunk of one token."""
    backend = graphed()
    driver = driven(backend)
    driver.step({"0": 3, "1": 5})
    for _ in range(2):
        result = driver.step({"1": 1, "0": 1})
        assert [i for i, _ in result.sampled] == ["0"]
    assert result.graph == "graph hit 2"


def test_without_a_capturer_every_step_runs_by_operations() -> None:
    backend = DeviceBackend()
    driver = driven(backend)
    assert driver.runner.info.graphs == ""
    expected = driven(None).run(6)
    assert driver.run(6) == expected


def test_a_split_covers_each_query_once() -> None:
    def batch(counts: list[int], *, padded: bool) -> StepBatch:
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        n, none = int(starts[-1]), np.zeros(len(counts), np.int32)
        flat = np.zeros(n, np.int32)
        return StepBatch(flat, flat, flat.astype(np.int64), flat, starts, none, none[:, None], none.astype(np.int64), padded)

    split = split_step(batch([1, 45, 1, 21, 22], padded=False), 21)
    assert split.decode_rows.tolist() == [0, 2]
    assert split.tile_rows.tolist() == [1, 1, 1, 3, 4, 4]
    assert split.tile_starts.tolist() == [1, 22, 43, 47, 68, 89]
    split = split_step(batch([1, 1], padded=True), 21)
    assert (split.decode_rows.tolist(), split.tile_rows.tolist()) == ([], [0, 1])


def test_inputs_keep_their_places_and_carry_the_step() -> None:
    inputs = StepInputs(CPU, 8, 8, 0, 8 * 4)
    addresses = [t.data_ptr() for t in (inputs.slots, inputs.token_ids, inputs.tables)]
    table = np.array([[3, 1, 9], [2, 0, 9]], np.int32)
    one = np.array([5, 6], np.int32)
    batch = StepBatch(one, one, one.astype(np.int64), one, np.arange(3, dtype=np.int32), one + 1, table, one.astype(np.int64))
    inputs.write_decode(batch, 4, 4, scratch_block=10, block_size=4)
    assert inputs.slots[:4].tolist() == [5, 6, 40, 40]
    assert inputs.context_lens[:4].tolist() == [6, 7, 1, 1]
    assert inputs.query_start[:5].tolist() == [0, 1, 2, 3, 4]
    assert inputs.tables[:16].view(4, 4).tolist() == [[3, 1, 9, 10], [2, 0, 9, 10], [10] * 4, [10] * 4]
    assert int(inputs.meta[0]) == 4
    assert [t.data_ptr() for t in (inputs.slots, inputs.token_ids, inputs.tables)] == addresses


@pytest.mark.parametrize(("by_width", "captures"), [(True, 2), (False, 1)])
def test_graphs_are_told_apart_by_the_width_that_their_kernels_read(by_width: bool, captures: int) -> None:
    runs: list[tuple[int, int]] = []
    inputs, logits = StepInputs(CPU, 8, 8, 0, 64), torch.zeros(8, 4)
    graphs = DecodeGraphs(
        Recorder(), lambda rows, width: runs.append((rows, width)), inputs, logits,
        scratch_block=10, block_size=4, max_rows=8, max_bytes=100, by_width=by_width,
    )  # fmt: skip
    one = np.zeros(3, np.int32)
    batch = StepBatch(
        one, one, one.astype(np.int64), one, np.arange(4, dtype=np.int32), one + 1, one[:, None], one.astype(np.int64)
    )
    for width in (1, 2, 1):
        assert len(graphs.run(batch, width)) == 3
    assert runs == [(4, 1), (4, 1), (4, 2), (4, 2)][: 2 * captures], "once for its result and once for the capture"
    assert (graphs.captured_rows, graphs.captures, graphs.replays) == ((4,), captures, 3 - captures)
