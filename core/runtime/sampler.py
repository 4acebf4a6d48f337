"""The next token of each row, batched; a row's answer depends on its own logits, settings, seed and position only.

    greedy        the first of the largest logits
    else          p = softmax((l - max l) / T); keep the top_k largest (ties at the edge included), then the smallest
                  set in falling order whose mass reaches top_p; take the token at which the running sum passes u * total

Sums run in float64. Candidates come from a partial sort; a row whose set may reach past it is sorted in full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from core.errors import ExecutorError
from core.outputs import TopLogprobs
from core.request import SamplingParams
from core.runtime.random_stream import uniforms

CANDIDATES = 256


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


class Sampler:
    """Chooses tokens for a vocabulary with the given end tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, batch: SamplingBatch
    ) -> tuple[npt.NDArray[np.int64], tuple[tuple[str, TopLogprobs], ...]]:
        """Return one token id a row, and log-probabilities of the rows that want them.

        Args:
            logits: [n, vocab_size], any float dtype; not changed.

        Raises:
            ExecutorError: if a row's logits hold no finite maximum; the message names the requests.
        """
        wide = logits.float()
        masked = self._mask_early_end(wide, batch)
        best, greedy = masked.max(dim=-1)
        if not bool(torch.isfinite(best).all()):
            broken = [i for i, ok in zip(batch.request_ids, torch.isfinite(best).tolist(), strict=True) if not ok]
            raise ExecutorError(f"the logits of {', '.join(broken)} are not finite; the model or its cache is damaged")
        token_ids = greedy.cpu().numpy()
        drawn = [i for i, p in enumerate(batch.params) if not p.is_greedy]
        if drawn:
            token_ids[drawn] = self._draw(masked, best, batch, drawn)
        return token_ids, _logprobs(wide, token_ids, batch)

    def _mask_early_end(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        """Forbid end and stop tokens in rows below their min_tokens."""
        early = [i for i, p in enumerate(batch.params) if p.min_tokens > batch.positions[i]]
        if not early:
            return logits
        masked = logits.clone()
        for i in early:
            p = batch.params[i]
            ends = set(p.stop_token_ids) | (set() if p.ignore_eos else set(self._eos_token_ids))
            masked[i, [t for t in ends if 0 <= t < logits.shape[1]]] = -torch.inf
        return masked

    def _draw(self, logits: torch.Tensor, best: torch.Tensor, batch: SamplingBatch, drawn: list[int]) -> npt.NDArray[np.int64]:
        device, vocab = logits.device, logits.shape[1]
        params = [batch.params[i] for i in drawn]
        temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device)
        u = torch.from_numpy(uniforms(batch.seeds[drawn], batch.positions[drawn])).to(device)
        weights = ((logits[drawn].double() - best[drawn].double().unsqueeze(1)) / temperature.unsqueeze(1)).exp()
        top_k = torch.tensor([p.top_k if 0 < p.top_k < vocab else vocab for p in params], device=device)
        top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
        chosen = torch.empty(len(drawn), dtype=torch.int64, device=device)
        free = (top_k == vocab) & (top_p >= 1.0)
        if bool(free.any()):
            chosen[free] = _invert(weights[free], u[free])
        bound = torch.nonzero(~free).squeeze(1)
        width = min(vocab, max(CANDIDATES, *(p.top_k + 1 for p in params if 0 < p.top_k < vocab), 0))
        while len(bound):
            ids, complete = _restricted(weights[bound], top_k[bound], top_p[bound], u[bound], width)
            chosen[bound[complete]] = ids[complete]
            bound, width = bound[~complete], vocab
        return chosen.cpu().numpy()


def _invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return, for each row, the first place at which the running sum of `weights` [n, m] exceeds u * total."""
    running = weights.cumsum(dim=-1)
    total = running[:, -1:].contiguous()
    place = torch.searchsorted(running, u.unsqueeze(1) * total, right=True)
    last_with_weight = torch.searchsorted(running, total)  # u * total may round up to total
    return torch.minimum(place, last_with_weight).squeeze(1)


def _restricted(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, u: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw under top_k and top_p from the `width` heaviest tokens of each row.

    Returns ids [n] and a bool [n]: False where the set may hold tokens beyond those `width`.
    """
    vocab = weights.shape[1]
    values, ids = weights.topk(width, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, order = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    edge = values.gather(1, top_k.clamp(max=width).unsqueeze(1) - 1)
    limited = (top_k < vocab).unsqueeze(1)
    in_k = torch.where(limited, values >= edge, True)
    kept = torch.where(in_k, values, 0.0)
    total = torch.where(limited.squeeze(1), kept.sum(dim=-1), weights.sum(dim=-1))
    before = kept.cumsum(dim=-1) - kept
    in_p = (before < (top_p * total).unsqueeze(1)) | (top_p >= 1.0).unsqueeze(1)
    in_p[:, 0] = True
    nucleus = torch.where(in_p, kept, 0.0)
    chosen = ids.gather(1, _invert(nucleus, u).unsqueeze(1)).squeeze(1)
    if width == vocab:
        return chosen, torch.ones_like(u, dtype=torch.bool)
    # Complete: the lightest member is heavier than the edge of the partial sort, or nothing beyond the edge weighs anything.
    lightest = torch.where(limited, edge, torch.where(nucleus > 0, values, torch.inf).amin(dim=-1, keepdim=True))
    last = values[:, -1:]
    return chosen, ((lightest > last) | (last == 0)).squeeze(1)


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
