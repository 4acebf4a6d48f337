"""What a figure must say when it is alone on paper: what ran where, under which load, and how the numbers came about.

What was each step made of?
Tokens of a step, stacked up to the budget line.
steps 1 to 300, measured. SmolLM2-135M, bfloat16, CPU, 2 threads; Poisson 4 req/s; seed 0; batchscope 0.1.0
"""

from __future__ import annotations

from dataclasses import dataclass

from core.bundle import RunBundle
from core.charts.style import KINDS
from core.executor import ExecutorInfo
from core.snapshot import EngineSnapshot
from core.version import VERSION
from core.whatif import WhatIf


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What every caption states of a run; `kind` is measured, predicted or replayed, `seed` is None where there is none."""

    model: str
    dtype: str
    device: str
    load: str
    seed: int | None
    kind: str
    version: str = VERSION

    def line(self) -> str:
        """The facts in one line."""
        known = [self.model, self.dtype, self.device]
        load = [self.load] if self.load else []
        if self.seed is None or self.load.endswith(f"seed {self.seed}"):
            seed = []
        else:  # a load names its own seed; the engine's is another number
            seed = [f"engine seed {self.seed}" if "seed " in self.load else f"seed {self.seed}"]
        where = ", ".join(k for k in known if k)
        return "; ".join([*([where] if where else []), *load, *seed, f"batchscope {self.version}"])


def facts_of_bundle(bundle: RunBundle) -> RunFacts:
    """The facts of a bundle's run, in the version that made it."""
    info, about = bundle.record.header.info, bundle.manifest
    device = machine_of(info, str(bundle.environment.get("processor", "")))
    return RunFacts(info.model_label, info.dtype, device, about.load, about.seed, about.kind, about.program_version)


def machine_of(info: ExecutorInfo, processor: str) -> str:
    """The device as a reader knows it: a bare "cpu" gets the processor's name and the number of threads."""
    if info.device != "cpu" or not processor:
        return info.device
    threads = f", {info.num_threads} thread{'s' if info.num_threads != 1 else ''}" if info.num_threads else ""
    return f"{processor}{threads}"


def facts_of_snapshot(snapshot: EngineSnapshot, processor: str = "") -> RunFacts:
    """The facts of what a page shows; `processor` is the machine's, where it is known."""
    info, config = snapshot.info, snapshot.config
    return RunFacts(
        info.model_label if info else config.model,
        info.dtype if info else config.dtype,
        machine_of(info, processor) if info else config.device,
        snapshot.load_label,
        config.seed,
        info.kind if info else "measured",
    )


def facts_of_what_if(target: WhatIf, base: WhatIf | None = None, load: str = "") -> RunFacts:
    """The facts of a predicted run; what differs from the run beside it is named for both.

    Args:
        load: in words, for a load that is not a synthetic one.
    """

    def both(one: str, other: str) -> str:
        return one if one == other else f"{one} → {other}"

    seen = base or target
    words = load or (target.load.label if target.load is not None else "")
    return RunFacts(
        both(seen.model.name, target.model.name), both(seen.weight_dtype, target.weight_dtype),
        both(seen.device.name, target.device.name), words, target.load.seed if target.load is not None else None, "predicted",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caption:
    """Title, way of reading and caption line of one figure; `span` says which steps, with the mark."""

    title: str
    span: str
    facts: RunFacts
    how: str = ""

    def text(self) -> str:
        """The caption line."""
        span = self.span if any(kind in self.span for kind in KINDS) else f"{self.span}, {self.facts.kind}"
        return f"{span.replace(' · ', ', ')}. {self.facts.line()}"
