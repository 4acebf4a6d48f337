"""Where a device's memory goes, and the batch that fits: the stacked bar behind the batch ceiling.

memory = reserve + weights + activations + KV blocks + rest
blocks = (memory * utilization - weights - activations) // (block_size * KV bytes a token)
batch ceiling = blocks // blocks of one request
"""

from __future__ import annotations

from dataclasses import dataclass

from core.cost_model import parameter_bytes
from core.devices import DeviceSpec
from core.errors import ConfigError
from core.model_spec import DTYPE_BYTES, ModelSpec


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part on one device, and the counts that follow.

    Attributes:
        reserve_bytes: memory * (1 - gpu_memory_utilization), kept for everything else.
        kv_bytes: memory of all whole blocks.
        rest_bytes: what is left and too small for a block.
        tokens_per_request: tokens for which a request needs blocks.
    """

    total_bytes: float
    reserve_bytes: float
    weights_bytes: float
    activation_bytes: float
    kv_bytes: float
    rest_bytes: float
    kv_bytes_per_token: float
    block_size: int
    num_blocks: int
    tokens_per_request: int
    blocks_per_request: int
    batch_ceiling: int

    def parts(self) -> tuple[tuple[str, float], ...]:
        """(name, bytes) of the stacked bar, bottom up; the sum is the device's memory."""
        return (
            ("weights", self.weights_bytes),
            ("activations", self.activation_bytes),
            ("KV blocks", self.kv_bytes),
            ("rest", self.rest_bytes),
            ("reserve", self.reserve_bytes),
        )


def weight_memory_bytes(
    spec: ModelSpec, weight_dtype: str = "bfloat16", head_dtype: str | None = None, tensor_parallel: int = 1
) -> float:
    """Bytes that all weights take on one device; embedding and head in `head_dtype` (None: as the rest)."""
    heads = spec.head_parameters * (1 if spec.tie_word_embeddings else 2)
    matrices = spec.num_parameters - heads - spec.small_parameters
    small = spec.small_parameters * (4 if weight_dtype == "float32" else 2)  # norms, biases and routers are not quantised
    return (
        matrices * parameter_bytes(weight_dtype) + heads * parameter_bytes(head_dtype or weight_dtype) + small
    ) / tensor_parallel


def activation_bytes(
    spec: ModelSpec, max_num_batched_tokens: int, max_num_seqs: int, dtype: str = "bfloat16", tensor_parallel: int = 1
) -> float:
    """Peak of one forward pass: residual, norm output and the widest layer of each token, and float32 logits of each seat.

    tokens * (2*hidden + max(q + 2*kv, 2*intermediate)) * bytes + seats * vocabulary * 4. A lower bound: allocators and
    workspaces add to it, which is what the reserve is for.
    """
    width = spec.num_experts_per_tok * spec.moe_intermediate_size if spec.num_experts else spec.intermediate_size
    widest = max(spec.q_size + 2 * spec.kv_size, 2 * width) / tensor_parallel
    layers = max_num_batched_tokens * (2 * spec.hidden_size + widest) * DTYPE_BYTES[dtype]
    return layers + max_num_seqs * spec.vocab_size * 4 / tensor_parallel


def plan_memory(
    spec: ModelSpec,
    device: DeviceSpec,
    *,
    tokens_per_request: int,
    weight_dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    head_dtype: str | None = None,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.92,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 128,
    tensor_parallel: int = 1,
) -> MemoryPlan:
    """Lay out one device's memory; with tensor parallelism each device holds its share of weights and KV heads.

    Raises:
        ConfigError: if weights and activations leave no room for one block; the message names the sizes.
    """
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise ConfigError(f"gpu_memory_utilization is {gpu_memory_utilization!r}; give a share above 0 and at most 1")
    if tokens_per_request < 1 or block_size < 1:
        raise ConfigError(f"tokens_per_request {tokens_per_request} and block_size {block_size} must be at least 1")
    total = device.memory_bytes
    reserve = total * (1.0 - gpu_memory_utilization)
    weights = weight_memory_bytes(spec, weight_dtype, head_dtype, tensor_parallel)
    activations = activation_bytes(spec, max_num_batched_tokens, max_num_seqs, tensor_parallel=tensor_parallel)
    kv_heads_here = max(spec.num_kv_heads / tensor_parallel, 1.0) / spec.num_kv_heads
    per_token = spec.kv_bytes_per_token(kv_dtype) * kv_heads_here
    room = total - reserve - weights - activations
    num_blocks = int(room // (per_token * block_size)) if room > 0 else 0
    if num_blocks < 1:
        raise ConfigError(
            f"{spec.name} in {weight_dtype} does not fit {device.name} x {tensor_parallel}: weights {weights / 1e9:.1f} GB and"
            f" activations {activations / 1e9:.2f} GB of {total * gpu_memory_utilization / 1e9:.1f} GB usable leave no room for"
            " a KV block; choose a smaller number format, more devices or a larger one"
        )
    kv = num_blocks * per_token * block_size
    blocks_each = -(-tokens_per_request // block_size)
    return MemoryPlan(
        total_bytes=total,
        reserve_bytes=reserve,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_bytes=kv,
        rest_bytes=room - kv,
        kv_bytes_per_token=per_token,
        block_size=block_size,
        num_blocks=num_blocks,
        tokens_per_request=tokens_per_request,
        blocks_per_request=blocks_each,
        batch_ceiling=num_blocks // blocks_each,
    )
