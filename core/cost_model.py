"""Arithmetic of one step: the FLOPs it computes and the bytes it moves, from its exact composition.

    FLOPs = 2 * matrix parameters * query tokens + 2 * head * sampled rows + 4 * n_layer * n_head * d * attended tokens
    bytes = weights (once, whatever the batch) + KV read (once a row) + KV written (once a query token) + swapped blocks

Conventions, stated once. A multiply-add is two operations. Attention is causal and counted without the masked
half: the token at position p (from 0) attends to p + 1 keys, itself included, or to at most `sliding_window` of
them. A row reads its keys and values once a step, the ones it has just written included. The embedding table is
looked up (one row a query token); the head, tied or not, is read whole, but only in a step that samples.
Activations and norms are left out: at one token they are a thousandth of the weights. Under tensor parallelism
all figures are those of one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from core.errors import ConfigError
from core.model_spec import DTYPE_BYTES, ModelSpec
from core.slots import by_slots
from core.step_composition import NO_WORK, StepComposition, StepSums, attended_tokens

__all__ = [
    "GROUP_SCALE_BYTES", "NO_WORK", "CostModel", "StepComposition", "StepCost", "StepSums", "attended_tokens", "cost_model",
    "experts_touched", "parameter_bytes", "step_cost",
]  # fmt: skip

GROUP_SCALE_BYTES = {"int4": 2 / 128, "fp8": 0.0, "int8": 0.0}
"""Bytes a parameter of quantisation scales: one 16-bit scale a group of 128 at 4 bit; a scale a row is negligible."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """FLOPs and bytes of one step on one device.

    `useful_*` leaves out padding and the rows that a fixed batch holds after their end; swapped and copied
    blocks are never useful. `linear_flops` does not hold the head, `weight_bytes` does.
    """

    linear_flops: float
    attention_flops: float
    logits_flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    swap_bytes: float
    comm_bytes: float
    useful_flops: float
    useful_bytes: float
    query_tokens: int
    rows: int

    @property
    def flops(self) -> float:
        """All operations of the step."""
        return self.linear_flops + self.attention_flops + self.logits_flops

    @property
    def device_bytes(self) -> float:
        """Traffic of the device's own memory: weights, KV read, KV written."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def moved_bytes(self) -> float:
        """Device traffic and swapped bytes."""
        return self.device_bytes + self.swap_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/B; 0 for an empty step."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def useful_share(self) -> float:
        """Useful FLOPs / all FLOPs; 1 for an empty step."""
        return self.useful_flops / self.flops if self.flops else 1.0


_cost = by_slots(StepCost)


def experts_touched(num_experts: int, experts_per_token: int, tokens: int) -> float:
    """Expected number of different experts that `tokens` tokens choose in one layer.

    E * (1 - (1 - k/E)^T) under even, independent routing; skewed routing touches fewer.
    """
    if not num_experts or tokens <= 0:
        return 0.0
    return float(num_experts * (1.0 - (1.0 - experts_per_token / num_experts) ** tokens))


def parameter_bytes(dtype: str) -> float:
    """Bytes a weight takes in memory, scales included.

    Raises:
        ConfigError: for an unknown number format.
    """
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"number format {dtype!r} is not known; choose one of: {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype] + GROUP_SCALE_BYTES.get(dtype, 0.0)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Coefficients of one model in one set of number formats on one device of a tensor-parallel group.

    Attributes:
        layer_flops_per_token: linear FLOPs a query token, head excluded.
        attention_flops_per_pair: FLOPs a (query token, key) pair over all layers and heads.
        dense_bytes: weights read in every step, head excluded.
        expert_bytes: bytes of one expert over all layers.
        kv_read_per_token, kv_write_per_token: bytes a KV slot over all layers.
        comm_bytes_per_token: bytes that a ring all-reduce sends from this device for a token.
        coded_tokens: a step of at most so many query tokens reads a coded copy of the weights; 0 where there is none.
        coded_share: bytes of that copy over those of the plain weights; 1 where there is none.
    """

    spec: ModelSpec
    tensor_parallel: int
    layer_flops_per_token: float
    attention_flops_per_pair: float
    head_flops: float
    dense_bytes: float
    expert_bytes: float
    head_bytes: float
    embedding_row_bytes: float
    kv_read_per_token: float
    comm_bytes_per_token: float
    coded_tokens: int = 0
    coded_share: float = 1.0

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        weight_dtype: str = "bfloat16",
        kv_dtype: str = "bfloat16",
        head_dtype: str | None = None,
        activation_dtype: str = "bfloat16",
        tensor_parallel: int = 1,
        weight_bytes_read: float | None = None,
        kv_bytes_per_token: float | None = None,
        coded_tokens: int = 0,
        coded_bytes_read: float = 0.0,
    ) -> CostModel:
        """Derive the coefficients.

        Args:
            head_dtype: format of head and embedding; None is `weight_dtype` (4-bit checkpoints keep them at 16 bit).
            weight_bytes_read, kv_bytes_per_token: figures of the real tensors, which win over the geometry.
            coded_tokens, coded_bytes_read: a step of at most so many tokens reads a coded copy of the weights, so many
                bytes instead of `weight_bytes_read`; 0 where there is none.

        Raises:
            ConfigError: for an unknown format or a group that does not divide the query heads.
        """
        tp = tensor_parallel
        if tp < 1 or spec.num_heads % tp:
            raise ConfigError(
                f"tensor_parallel is {tp}; it must be at least 1 and divide the {spec.num_heads} query heads of {spec.name}"
            )
        attention = spec.num_layers * spec.attention_parameters_per_layer
        expert = spec.num_layers * spec.mlp_parameters_per_expert
        router = spec.num_layers * spec.hidden_size * spec.num_experts
        active = attention + router + expert * (spec.num_experts_per_tok if spec.num_experts else 1)
        each = parameter_bytes(weight_dtype)
        head_each = parameter_bytes(head_dtype or weight_dtype)
        always = attention + (0 if spec.num_experts else expert)
        kv_heads_here = max(spec.num_kv_heads / tp, 1.0) / spec.num_kv_heads  # heads are copied once tp exceeds them
        kv = kv_bytes_per_token if kv_bytes_per_token is not None else spec.kv_bytes_per_token(kv_dtype)
        head_bytes = spec.head_parameters * head_each / tp
        dense = (always * each + spec.small_parameters * DTYPE_BYTES[activation_dtype]) / tp
        if weight_bytes_read is not None:
            dense = max(weight_bytes_read / tp - head_bytes, 0.0)
            if spec.num_experts:
                dense = max(dense - spec.num_experts * expert * each / tp, 0.0)
        return cls(
            spec=spec,
            tensor_parallel=tp,
            layer_flops_per_token=2.0 * active / tp,
            attention_flops_per_pair=4.0 * spec.num_layers * spec.num_heads * spec.head_dim / tp,
            head_flops=2.0 * spec.head_parameters / tp,
            dense_bytes=dense,
            expert_bytes=expert * each / tp if spec.num_experts else 0.0,
            head_bytes=head_bytes,
            embedding_row_bytes=spec.hidden_size * head_each / tp,
            kv_read_per_token=kv * kv_heads_here,
            comm_bytes_per_token=(2 * spec.num_layers * spec.hidden_size * DTYPE_BYTES[activation_dtype] * 2 * (tp - 1) / tp),
            coded_tokens=coded_tokens if weight_bytes_read else 0,
            coded_share=coded_bytes_read / weight_bytes_read if weight_bytes_read and coded_tokens else 1.0,
        )

    def flops(self, sums: StepSums) -> tuple[float, float, float]:
        """(linear, attention, logits) FLOPs."""
        return (
            self.layer_flops_per_token * sums.query_tokens,
            self.attention_flops_per_pair * sums.attended_tokens,
            self.head_flops * sums.sampled,
        )

    def weight_bytes(self, sums: StepSums) -> float:
        """Weights read by a step: all dense ones, the experts touched, the head if it samples, embedding rows."""
        if not sums.query_tokens:
            return 0.0
        total = self.dense_bytes + (self.head_bytes if sums.sampled else 0.0)
        if self.expert_bytes:
            spec = self.spec
            total += self.expert_bytes * experts_touched(spec.num_experts, spec.num_experts_per_tok, sums.query_tokens)
        if sums.query_tokens <= self.coded_tokens:
            total *= self.coded_share
        return total + self.embedding_row_bytes * sums.query_tokens

    def cost_of_sums(
        self, run: StepSums, useful: StepSums | None = None, swap_bytes: float = 0.0, copy_bytes: float = 0.0
    ) -> StepCost:
        """Price a step from its sums; `useful` is `run` without padding (None: nothing is padded)."""
        linear, attention, logits = self.flops(run)
        weights = self.weight_bytes(run)
        kv_read = self.kv_read_per_token * run.context_tokens
        kv_write = self.kv_read_per_token * run.query_tokens
        if useful is None:
            useful_flops, useful_bytes = linear + attention + logits, weights + kv_read + kv_write
        else:
            useful_flops = sum(self.flops(useful))
            useful_bytes = self.weight_bytes(useful) + self.kv_read_per_token * (useful.context_tokens + useful.query_tokens)
        return _cost(
            linear_flops=linear,
            attention_flops=attention,
            logits_flops=logits,
            weight_bytes=weights,
            kv_read_bytes=kv_read + copy_bytes,
            kv_write_bytes=kv_write + copy_bytes,
            swap_bytes=swap_bytes,
            comm_bytes=self.comm_bytes_per_token * run.query_tokens,
            useful_flops=useful_flops,
            useful_bytes=useful_bytes,
            query_tokens=run.query_tokens,
            rows=run.rows,
        )

    def cost(self, composition: StepComposition) -> StepCost:
        """Price a step; about 10 microseconds for 64 rows."""
        window = self.spec.sliding_window
        sums = composition.sums(window)
        swap, copied = composition.swap_bytes, composition.copy_bytes
        if composition.padded_rows:
            return self.cost_of_sums(composition.padded_sums(window), sums, swap, copied)
        return self.cost_of_sums(sums, None, swap, copied)


@lru_cache(maxsize=64)
def cost_model(
    spec: ModelSpec,
    weight_dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    head_dtype: str | None = None,
    tensor_parallel: int = 1,
    weight_bytes_read: float | None = None,
    kv_bytes_per_token: float | None = None,
    coded_tokens: int = 0,
    coded_bytes_read: float = 0.0,
) -> CostModel:
    """A cached `CostModel.of`."""
    return CostModel.of(
        spec,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        head_dtype=head_dtype,
        tensor_parallel=tensor_parallel,
        weight_bytes_read=weight_bytes_read,
        kv_bytes_per_token=kv_bytes_per_token,
        coded_tokens=coded_tokens,
        coded_bytes_read=coded_bytes_read,
    )


def step_cost(
    spec: ModelSpec,
    composition: StepComposition,
    *,
    weight_dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    head_dtype: str | None = None,
    tensor_parallel: int = 1,
    weight_bytes_read: float | None = None,
    kv_bytes_per_token: float | None = None,
) -> StepCost:
    """FLOPs and bytes of one step on one device; see `CostModel.of` for the arguments and errors."""
    model = cost_model(spec, weight_dtype, kv_dtype, head_dtype, tensor_parallel, weight_bytes_read, kv_bytes_per_token)
    return model.cost(composition)
