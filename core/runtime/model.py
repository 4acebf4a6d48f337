"""The decoder as one readable loop over a backend's operations.

    x = embedding[token]
    each layer:   x += o(attention(rope(qkv(norm(x)))))
                  x += down(silu(gate(norm(x))) * up(norm(x)))
    logits = head(norm(x)) at the tokens that are sampled

Llama, Mistral, SmolLM, Qwen2 (q, k, v biases) and Qwen3 (head norms) are this one loop with other weights.
"""

from __future__ import annotations

import torch

from core.model_spec import ModelSpec
from core.runtime.backend import Backend, KVCache, ModelWeights, StepBatch


class DecoderModel:
    """A model bound to a backend.

    Args:
        spec: geometry.
        weights: tensors on one device, of one dtype.
        backend: who computes.
    """

    def __init__(self, spec: ModelSpec, weights: ModelWeights, backend: Backend) -> None:
        self.spec = spec
        self.weights = weights
        self.backend = backend
        backend.bind(spec, weights)

    def bind_cache(self, cache: KVCache) -> None:
        """Point the attention at (new) KV tensors."""
        self.backend.bind_cache(cache)

    def prepare(self, batch: StepBatch) -> None:
        """Have the backend put a batch's index arrays where it reads them; `forward` may follow without."""
        self.backend.prepare(batch)

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Return logits [num_logits, vocab_size] and leave the step's keys and values in the cache."""
        backend = self.backend
        logits = backend.forward(batch)
        if logits is not None:
            return logits
        backend.begin_step(batch)
        wanted = torch.from_numpy(batch.logits_indices).to(self.weights.embedding.device)
        return run_layers(self.weights, backend, batch, wanted)


def run_layers(weights: ModelWeights, backend: Backend, batch: StepBatch, wanted: torch.Tensor | None) -> torch.Tensor:
    """The loop over the layers, operation by operation; `begin_step` has been called.

    Args:
        wanted: [num_logits] int64 on the model's device, the tokens whose logits are computed; None computes all.
    """
    layers = weights.layers
    residual = backend.embed(batch)
    hidden = backend.rms_norm(residual, layers[0].input_norm)
    for index, layer in enumerate(layers):
        query = backend.rope_and_write_kv(backend.linear(hidden, layer.qkv), index, batch)
        attended = backend.linear(backend.paged_attention(query, index, batch), layer.o)
        hidden, residual = backend.add_rms_norm(attended, residual, layer.post_norm)
        mlp = backend.linear(backend.silu_mul(backend.linear(hidden, layer.gate_up)), layer.down)
        if index + 1 < len(layers):
            hidden, residual = backend.add_rms_norm(mlp, residual, layers[index + 1].input_norm)
    if wanted is not None:
        mlp, residual = mlp[wanted], residual[wanted]
    final, _ = backend.add_rms_norm(mlp, residual, weights.final_norm)
    return backend.linear(final, weights.head)
