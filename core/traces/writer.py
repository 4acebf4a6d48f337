"""A trace as a file that `read_trace` takes again: one JSON object a line, times in seconds.

{"timestamp": 0.25, "prompt_tokens": 96, "output_tokens": 48, "tenant": "chat", "hash_ids": [7, 8]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from core.traces.report import TraceReport
from core.traces.trace import Trace
from core.workload import Arrival

TIME_UNIT = "s"


def trace_of(arrivals: Sequence[Arrival]) -> Trace:
    """Arrivals as a trace: when, how long and whose; what their prompts have in common is not kept."""
    names = tuple(dict.fromkeys(a.tenant for a in arrivals))
    return Trace(
        TraceReport("arrivals", "own", "", len(arrivals), 0),
        np.array([a.prompt_tokens for a in arrivals]),
        np.array([a.max_tokens for a in arrivals]),
        np.array([a.time_s - arrivals[0].time_s for a in arrivals]),
        tenants=names,
        tenant_index=np.array([names.index(a.tenant) for a in arrivals]),
    )


def trace_jsonl(trace: Trace, rate: float = 1.0) -> str:
    """The rows in order of arrival, `rate` times as dense; prompts as lengths and prefix blocks, never as texts."""
    lines: list[str] = []
    for row in range(len(trace)):
        line: dict[str, object] = {}
        if trace.arrival_s is not None:
            line["timestamp"] = round(float(trace.arrival_s[row]) / rate, 6)
        line |= {"prompt_tokens": int(trace.prompt_tokens[row]), "output_tokens": int(trace.output_tokens[row])}
        if trace.tenant_index is not None:
            line["tenant"] = trace.tenant(row)
        if trace.block_ids is not None:
            line["hash_ids"] = list(trace.blocks(row))
        lines.append(json.dumps(line, separators=(",", ":")))
    return "\n".join(lines) + "\n"
