"""The next token of each row, batched; a row's answer depends on its own logits, settings, seed and position only.

    greedy        the first of the largest logits
    else          p = softmax((l - max l) / T); keep the top_k largest (ties at the edge included), then the smallest
                  set in falling order whose mass reaches top_p; take the token at which the running sum passes u * total

On a CPU `draw_host` draws (numpy, row by row), elsewhere `draw_device` (batched, where the logits are).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from core.errors import ExecutorError
from core.outputs import TopLogprobs
from core.request import SamplingParams
from core.runtime.backend import Best
from core.runtime.draw_device import draw_rows
from core.runtime.draw_host import draw_row
from core.runtime.random_stream import uniforms


@dataclass(slots=True)
class SamplingBatch:
    """Columns of the rows to sample.

    Attributes:
        request_ids: for messages.
        params: settings, one a row.
        seeds: [n] uint64, each request's own stream.
        positions: [n] int64, output tokens that the row has already.
    """

    request_ids: tuple[str, ...]
    params: list[SamplingParams]
    seeds: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]


def likeliest(best: Best, request_ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """What `Sampler.sample` gives where every row is greedy and none asks for log-probabilities or min_tokens.

    Raises:
        ExecutorError: as `Sampler.sample`.
    """
    if not best.finite:
        _check(np.isfinite(best.values), request_ids)
    return best.token_ids


class Sampler:
    """Chooses tokens for a vocabulary with the given end tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        best: Best | None = None,
    ) -> tuple[npt.NDArray[np.int64], tuple[tuple[str, TopLogprobs], ...]]:
        """Return one token id a row, and log-probabilities of the rows that want them.

        Args:
            logits: [n, vocab_size], any float dtype; the same afterwards.
            best: the first of the largest logits of each row and its value, where the backend found them already.

        Raises:
            ExecutorError: if a row's logits hold no finite maximum; the message names the requests.
        """
        wide = logits.float()
        early = [i for i, (p, n) in enumerate(zip(batch.params, batch.positions.tolist(), strict=True)) if p.min_tokens > n]
        forbidden = [(i, self._ends(batch.params[i], wide.shape[1])) for i in early]
        saved = [wide[i, ends].clone() for i, ends in forbidden]
        for i, ends in forbidden:
            wide[i, ends] = -torch.inf
        if early:
            best = None  # it was found among all tokens
        token_ids = _on_host(wide, batch, best) if wide.device.type == "cpu" else _on_device(wide, batch)
        for (i, ends), values in zip(forbidden, saved, strict=True):
            wide[i, ends] = values
        return token_ids, _logprobs(wide, token_ids, batch)

    def _ends(self, p: SamplingParams, vocab_size: int) -> list[int]:
        """Tokens that must not come before min_tokens."""
        ends = {*p.stop_token_ids, *(() if p.ignore_eos else self._eos_token_ids)}
        return sorted(t for t in ends if 0 <= t < vocab_size)


def _on_host(logits: torch.Tensor, batch: SamplingBatch, found: Best | None) -> npt.NDArray[np.int64]:
    table = logits.numpy()
    if found is None:
        token_ids: npt.NDArray[np.int64] = table.argmax(axis=-1)  # numpy's is vectorised, PyTorch's is not
        best = table[np.arange(len(table)), token_ids]
    else:
        token_ids, best = found.token_ids, found.values
    _check(np.isfinite(best), batch.request_ids)
    drawn = _drawn(batch)
    if drawn:
        u = uniforms(batch.seeds[drawn], batch.positions[drawn])
        scratch = np.empty(table.shape[1], np.float32)
        for i, number in zip(drawn, u.tolist(), strict=True):
            token_ids[i] = draw_row(table[i], best[i], batch.params[i], number, scratch)
    return token_ids


def _on_device(logits: torch.Tensor, batch: SamplingBatch) -> npt.NDArray[np.int64]:
    best, greedy = logits.max(dim=-1)
    _check(torch.isfinite(best).cpu().numpy(), batch.request_ids)
    drawn = _drawn(batch)
    if drawn:
        u = torch.from_numpy(uniforms(batch.seeds[drawn], batch.positions[drawn])).to(logits.device)
        greedy[drawn] = draw_rows(logits[drawn], best[drawn], [batch.params[i] for i in drawn], u)
    return greedy.cpu().numpy()


def _drawn(batch: SamplingBatch) -> list[int]:
    return [i for i, p in enumerate(batch.params) if not p.is_greedy]


def _check(finite: npt.NDArray[np.bool_], request_ids: Sequence[str]) -> None:
    if not finite.all():
        broken = [i for i, ok in zip(request_ids, finite.tolist(), strict=True) if not ok]
        raise ExecutorError(f"the logits of {', '.join(broken)} are not finite; the model or its cache is damaged")


def _logprobs(
    logits: torch.Tensor, token_ids: npt.NDArray[np.int64], batch: SamplingBatch
) -> tuple[tuple[str, TopLogprobs], ...]:
    """Log-probabilities before temperature and masks, as the model gave them."""
    asked = [i for i, p in enumerate(batch.params) if p.logprobs]
    if not asked:
        return ()
    table = torch.log_softmax(logits[asked], dim=-1)
    most = min(max(batch.params[i].logprobs for i in asked), table.shape[1])
    values, ids = table.topk(most, dim=-1)
    result = []
    for place, i in enumerate(asked):
        count = batch.params[i].logprobs
        top = tuple(zip(ids[place, :count].tolist(), values[place, :count].tolist(), strict=True))
        token = int(token_ids[i])
        result.append((batch.request_ids[i], TopLogprobs(token, float(table[place, token]), top)))
    return tuple(result)
