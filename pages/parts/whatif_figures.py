"""Figures of a what-if's hardware: the roofline with the run on it, the next sequence's cost, the bar of its memory."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from core.charts import formats, marginal, roofline, roofline_spec, style
from core.charts.arrow import table
from core.errors import ConfigError
from core.memory_plan import MemoryPlan, activation_bytes, plan_memory, weight_memory_bytes
from core.roofline import IDEAL, intensity_ceiling, marginal_cost_s, ridge_batch
from core.sim_result import SimulationResult
from core.sweep import cost_figures
from core.whatif import WhatIf
from pages.parts import frame
from pages.parts.facts import facts
from pages.parts.paired import Pair, stacked
from pages.parts.whatif_run import Known

_MOST_MARGINAL = 256


def cost_pairs(base_what: WhatIf, base: SimulationResult, target: WhatIf, new: SimulationResult) -> list[Pair]:
    """Device time and, where a price is given, money for a million output tokens."""
    first, second = cost_figures(base_what, base), cost_figures(target, new)
    rows = [
        ("device_hours_per_million_tokens", "Device hours/1 M tok", "h"),
        ("cost_per_million_tokens", "Cost/1 M tok", ""),
    ]
    return [Pair(label, unit, first[name], second[name], -1) for name, label, unit in rows]


def _mean_context(target: WhatIf, result: SimulationResult) -> int:
    """Cached tokens of a row, from the bytes that the run read."""
    setup = target.setup()
    per_token = setup.cost.kv_read_per_token
    kv = result.moved_bytes - result.weight_bytes
    rows = max(result.mean_batch * result.steps, 1.0)
    return max(round(kv / per_token / rows), 1) if per_token else 1


def roofline_tab(known: Known, target: WhatIf, result: SimulationResult) -> None:
    """Where the run lies under the ceilings of its device."""
    setup = target.setup()
    device = setup.device
    assert device is not None
    here = target.coefficients is not None or device.measured
    under = roofline.Ceilings(device, "measured" if here else "published")
    most = min(target.scheduler.max_num_seqs, 4096)
    context = _mean_context(target, result)
    points = roofline.curve_points(setup.cost, under, context, most)
    busy = max(result.busy_share * result.duration_s, 1e-12)
    dot = {
        "step": [result.steps], "intensity": [result.intensity], "flops_per_s": [result.flops / busy],
        "prefill_tokens": [0], "decode_tokens": [1], "ms": [1e3 * result.mean_step_s], "age": [0.0],
    }  # fmt: skip
    left, right = st.columns([0.62, 0.38], gap="medium")
    with left:
        frame.figure_head(
            f"Where does the run lie on {device.name}?",
            "predicted",
            how=f"Ringed: the run on average. Dashes: decode steps of batch 1 to {most}, {context} tokens of context each.",
        )
        data = roofline.roofline_data(pd.DataFrame(dot), points, under)
        spec = {**roofline_spec.roofline_spec(frame.theme(), 380), "datasets": {n: table(d) for n, d in data.items()}}
        frame.chart(None, spec, key="whatif_roofline", alt="The run on the roofline of its device")
    with right:
        most_bars = min(most, _MOST_MARGINAL)
        batch = max(round(result.mean_batch), 1)
        each = marginal_cost_s(setup.cost, device, (context,) * batch, context, IDEAL if here else target.efficiency)
        frame.figure_head(
            f"Sequence {batch + 1} would add {formats.seconds(each)}", "predicted", how="Time that each further one adds."
        )
        costs = marginal.marginal_costs([], setup.cost, under, most_bars, context)
        spec = marginal.marginal_spec(frame.theme(), 380)
        frame.chart(
            table(marginal.marginal_frame(costs)), spec, key="whatif_marginal", alt="Time that a further sequence adds, by batch"
        )
    reach = ridge_batch(setup.cost, device, context)
    facts(
        (
            ("Intensity", f"{formats.figures(result.intensity)} FLOP/B", "mean of the run"),
            (
                "Ridge point",
                f"{formats.figures(device.ridge_point)} FLOP/B",
                f"batch {reach}" if reach else "KV traffic keeps it out of reach",
            ),
            (
                "Decode ceiling",
                f"{formats.figures(intensity_ceiling(setup.cost, context))} FLOP/B",
                f"at {context} tokens of context",
            ),
            ("MFU", formats.percent(result.mfu), "useful FLOPs of the peak"),
            ("MBU", formats.percent(result.mbu), "useful bytes of the bandwidth"),
        )
    )


def _plan(what: WhatIf) -> MemoryPlan:
    length = min(what.max_model_len or what.model.max_model_len, what.model.max_model_len)
    return plan_memory(
        what.model, what.device, tokens_per_request=length, weight_dtype=what.weight_dtype, kv_dtype=what.kv_dtype,
        head_dtype=what.head_dtype, block_size=what.block_size, gpu_memory_utilization=what.gpu_memory_utilization,
        max_num_batched_tokens=what.scheduler.max_num_batched_tokens, max_num_seqs=what.scheduler.max_num_seqs,
        tensor_parallel=what.tensor_parallel,
    )  # fmt: skip


def _parts(what: WhatIf, blocks: int) -> list[tuple[str, float, str]]:
    """Weights, activations and the pool as it is."""
    heads = max(what.model.num_kv_heads / what.tensor_parallel, 1.0) / what.model.num_kv_heads
    pool = blocks * what.block_size * what.model.kv_bytes_per_token(what.kv_dtype) * heads
    weights = weight_memory_bytes(what.model, what.weight_dtype, what.head_dtype, what.tensor_parallel)
    knobs = what.scheduler
    active = activation_bytes(what.model, knobs.max_num_batched_tokens, knobs.max_num_seqs, tensor_parallel=what.tensor_parallel)
    return [("weights", weights, style.PREFILL), ("activations", active, style.WAITING), ("KV blocks", pool, style.USEFUL)]


def _bar(what: WhatIf, title: str) -> None:
    blocks = what.setup().cache.num_blocks
    length = min(what.max_model_len or what.model.max_model_len, what.model.max_model_len)
    each = -(-length // what.block_size)
    parts = _parts(what, blocks)
    total = what.device.memory_bytes
    used = sum(amount for _, amount, _ in parts)
    rest = max(total - used, 0.0)
    request = f"{formats.count(each)} a request of {formats.count(length)} tokens"
    note = f"{formats.count(blocks)} blocks ÷ {request} = {formats.count(blocks // each)} at once"
    stacked([*parts, ("not used", rest, style.IDLE + "55")], max(total, used), title, note)


def memory_tab(known: Known, target: WhatIf) -> None:
    """The batch ceiling as a bar of memory, live above, what-if below."""
    frame.figure_head(
        "How many requests of full length fit?",
        "from the geometry",
        how="Weights and activations come off first; what is left holds keys and values.",
    )
    _bar(known.base.whatif, f"As live: {known.base.whatif.model.name} on this machine")
    group = f" × {target.tensor_parallel}, each" if target.tensor_parallel > 1 else ""
    _bar(target, f"What-if: {target.model.name} on {target.device.name}{group}")
    try:
        plan = _plan(target)
    except ConfigError as error:
        st.caption(frame.plain(str(error)))
        return
    seats = target.scheduler.max_num_seqs
    facts(
        (
            (
                "KV of a token",
                formats.decimal_bytes(plan.kv_bytes_per_token),
                f"{target.model.num_layers} layers, {target.model.num_kv_heads} KV heads",
            ),
            ("Blocks that would fit", formats.count(plan.num_blocks), f"of {target.block_size} tokens"),
            ("Batch ceiling", formats.count(plan.batch_ceiling), f"requests of {formats.count(plan.tokens_per_request)} tokens"),
            ("Seats", formats.count(seats), "max_num_seqs; the smaller of the two binds"),
        )
    )
