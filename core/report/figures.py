"""Every figure of a run by name: the charts of the pages, filled from a bundle.

    bundle -> replay at chosen steps, records, requests, fixed-batch alternative -> Figure(title, specification, data)

A figure that a run cannot have (no ceilings, no ended request) is left out and `missing` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pandas as pd

from core.bundle import RunBundle
from core.charts import (
    batch_timeline,
    before_after,
    block_map,
    formats,
    kv,
    latency_curves,
    marginal,
    roofline,
    roofline_spec,
    seats,
    step_cost,
    style,
)
from core.charts import story as story_chart
from core.errors import BatchscopeError
from core.records import StepRecord
from core.replay_view import ReplayView
from core.report.alternatives import Comparison, device_of, fixed_against_continuous
from core.report.figure import Figure

MOST_STEPS = 600
BLOCK_MAPS = 3


@dataclass
class FigureSet:
    """Figures of one run in one theme, made when they are asked for.

    Attributes:
        missing: name -> why the run has no such figure.
    """

    bundle: RunBundle
    view: ReplayView
    theme: style.Theme
    missing: dict[str, str] = field(default_factory=dict)
    _alternative: Comparison | None = None

    def __post_init__(self) -> None:
        self._steps = self.bundle.steps[-MOST_STEPS:]
        self._makers: dict[str, Callable[[], Figure]] = {
            "sets": self._sets,
            "composition": self._composition,
            "seats": self._seats,
            "step_times": self._step_times,
            "pool": self._pool,
            "fragmentation": self._fragmentation,
            **{f"blocks_{k + 1}": lambda k=k: self._blocks(k) for k in range(BLOCK_MAPS)},  # type: ignore[misc]
            "roofline": self._roofline,
            "marginal": self._marginal,
            "intensity": self._intensity,
            "bytes": self._bytes,
            "host": self._host,
            "latency": self._latency,
            "story": self._story,
            "fixed": lambda: self._lane(fixed=True),
            "continuous": lambda: self._lane(fixed=False),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the report."""
        return tuple(self._makers)

    def get(self, name: str) -> Figure | None:
        """A figure, None if this run has none of that name (`missing` then says why).

        Raises:
            KeyError: for a name that no run has.
        """
        try:
            return self._makers[name]()
        except BatchscopeError as error:
            self.missing[name] = str(error)
            return None

    def all(self) -> list[Figure]:
        """All figures that this run has."""
        return [figure for name in self.names if (figure := self.get(name)) is not None]

    # -- parts -----------------------------------------------------------------------------------------------

    def _need(self, ok: object, why: str) -> None:
        if not ok:
            raise BatchscopeError(why)

    def _span(self, steps: Sequence[StepRecord] | None = None) -> str:
        steps = self._steps if steps is None else steps
        return f"{formats.step_range(steps[0].step, steps[-1].step)} · {self.bundle.manifest.kind}"

    def _over_steps(self, name: str, title: str, how: str, spec: dict[str, Any], frame: pd.DataFrame) -> Figure:
        self._need(self._steps, "the run has no steps")
        return Figure(name, title, self._span(), how, spec, {"": frame})

    def _sets(self) -> Figure:
        return self._over_steps(
            "sets", "How large is the batch, and what waits?",
            "Running below the dotted seats line while requests wait: memory or budget binds.",
            batch_timeline.batch_spec(self.theme), batch_timeline.batch_frame(self._steps),
        )  # fmt: skip

    def _composition(self) -> Figure:
        return self._over_steps(
            "composition", "What was each step made of?",
            "Tokens of a step, stacked up to the budget line. Above: triangle up = admitted, down = preempted, dot = finished.",
            batch_timeline.composition_spec(self.theme), batch_timeline.composition_frame(self._steps),
        )  # fmt: skip

    def _step_times(self) -> Figure:
        return self._over_steps(
            "step_times", "Where does the time of a step go?", "The quiet area is the forward pass, colours are host work.",
            batch_timeline.times_spec(self.theme), batch_timeline.times_frame(self._steps),
        )  # fmt: skip

    def _pool(self) -> Figure:
        return self._over_steps(
            "pool", "How full is the pool?", "Live + cached + free is the pool at every step; a red triangle is a preemption.",
            kv.pool_spec(self.theme), kv.pool_frame(self._steps),
        )  # fmt: skip

    def _fragmentation(self) -> Figure:
        size = self.bundle.record.header.config.cache.block_size
        return self._over_steps(
            "fragmentation", "How much of the live memory holds no token?",
            "Only the unfilled end of each request's last block is lost.",
            kv.fragmentation_spec(self.theme), kv.fragmentation_frame(self._steps, size),
        )  # fmt: skip

    def _intensity(self) -> Figure:
        spec = step_cost.by_step_spec(self.theme, "intensity", "FLOP/B", self.theme.text, 160)
        return self._over_steps(
            "intensity", "How does arithmetic intensity move?", "FLOPs of a step over the bytes that it moves.",
            spec, step_cost.intensity_frame(self._steps),
        )  # fmt: skip

    def _bytes(self) -> Figure:
        spec = step_cost.stacked_spec(self.theme, step_cost.BYTE_PARTS, "bytes a step", "~s", 200)
        return self._over_steps(
            "bytes", "What does a step read and write?", "Weights cost the same whatever the batch; KV read grows with context.",
            spec, step_cost.bytes_frame(self._steps),
        )  # fmt: skip

    def _host(self) -> Figure:
        spec = step_cost.stacked_spec(self.theme, step_cost.HOST_PARTS, "µs a step", "whole", 200)
        return self._over_steps(
            "host", "How long does the host hold the device up?", "Everything outside the forward pass, by part.",
            spec, step_cost.host_frame(self._steps),
        )  # fmt: skip

    def _seats(self) -> Figure:
        self.view.seek(self.view.last_step)
        frame = seats.seat_frame(self.view.latest())
        self._need(len(frame), "no request held a seat")
        origin_s = float(frame["from_s"].min())
        frame = frame.assign(from_s=frame["from_s"] - origin_s, to_s=frame["to_s"] - origin_s)
        return Figure(
            "seats", "Who held a seat in the batch?", f"up to step {formats.count(self.view.step)} · replayed",
            "Each bar is one request: orange reads its prompt, blue writes its answer.",
            seats.seat_spec(self.theme, 240), {"": frame},
        )  # fmt: skip

    def map_steps(self) -> list[int]:
        """Steps whose block map is shown: the fullest one, and the middle and the end of the run."""
        if not self.bundle.steps:
            return []
        steps = self.bundle.steps
        fullest = max(steps, key=lambda r: r.blocks_live).step
        return sorted({fullest, steps[len(steps) // 2].step, steps[-1].step})

    def _blocks(self, index: int) -> Figure:
        chosen = self.map_steps()
        self._need(index < len(chosen), "the run is too short for so many block maps")
        self.view.seek(chosen[index])
        picture = self.view.latest()
        fits = 0 < picture.blocks.num_blocks <= block_map.MOST_ON_PAPER
        self._need(fits, "a pool of this size does not fit on paper, cell by cell")
        frame = block_map.block_frame(picture.blocks)
        rows = int(frame["row"].max()) + 1
        pool = picture.pool
        title = f"Which blocks were held at step {formats.count(self.view.step)}?"
        counts = f"{formats.count(pool.live)} live, {formats.count(pool.cached)} cached, {formats.count(pool.free)} free"
        return Figure(
            f"blocks_{index + 1}", title, f"step {formats.count(self.view.step)}, {counts} · replayed",
            "A cell is a physical block, filled as far as it holds tokens.",
            block_map.block_map_spec(self.theme, min(max(14 * rows, 60), 320)), {"": frame},
        )  # fmt: skip

    def _under(self) -> roofline.Ceilings:
        if self.bundle.ceilings is not None:
            return roofline.measured_ceilings(self.bundle.ceilings)
        return roofline.Ceilings(device_of(self.bundle), "published")

    def _context(self) -> int:
        per_token = self.bundle.record.header.info.kv_bytes_per_token
        decoding = [r for r in self._steps if r.decode_requests and not r.prefill_tokens and r.kv_read_bytes]
        seen = [r.kv_read_bytes / per_token / r.decode_requests for r in decoding]
        return max(round(fmean(seen)) - 1, 1) if seen else 128

    def _roofline(self) -> Figure:
        info, under = self.bundle.record.header.info, self._under()
        points = roofline.curve_points(roofline.model_of(info), under, self._context(), self._seats_most())
        dots = roofline.dot_frame(self._steps, roofline.FORWARD)
        self._need(len(dots), "no step of the run took a measurable time")
        how = "A dot is a step. On the slopes memory sets the time, under the roof arithmetic. Dashes: the model, by batch size."
        return Figure(
            "roofline", "Where do the steps lie under the ceilings?", self._span(), how,
            roofline_spec.roofline_spec(self.theme, 300), roofline.roofline_data(dots, points, under),
        )  # fmt: skip

    def _seats_most(self) -> int:
        return max((r.max_num_seqs for r in self._steps), default=1)

    def _marginal(self) -> Figure:
        info, under = self.bundle.record.header.info, self._under()
        most = min(self._seats_most(), 256)
        groups = marginal.decode_groups(self.bundle.steps, float(info.kv_bytes_per_token), most, roofline.FORWARD)
        if self.bundle.manifest.kind != "measured":
            groups = []
        costs = marginal.marginal_costs(groups, roofline.model_of(info), under, most, self._context())
        kind = "measured and predicted" if groups else "predicted"
        return Figure(
            "marginal", "What does one more sequence cost?", f"{formats.count(len(self.bundle.steps))} steps · {kind}",
            "Time that each further decoding sequence adds to a step. The first pays for reading all weights.",
            marginal.marginal_spec(self.theme, 260), {"": marginal.marginal_frame(costs)},
        )  # fmt: skip

    def _latency(self) -> Figure:
        frame = latency_curves.latency_frame(self.bundle.requests)
        self._need(len(frame), "no request of the run ended")
        return Figure(
            "latency", "How long did requests wait?",
            f"{formats.count(len(self.bundle.requests))} requests · {self.bundle.manifest.kind}",
            "The median is where a curve crosses 50 %; the further right a curve bends, the longer the tail.",
            latency_curves.latency_spec(self.theme), {"": frame},
        )  # fmt: skip

    def _story(self) -> Figure:
        self._need(self.bundle.requests, "no request of the run ended")
        slowest = max(self.bundle.requests, key=lambda r: r.e2e_s)
        self.view.seek(self.view.last_step)
        story = self.view.story(slowest.request_id)
        if story is None:
            raise BatchscopeError(f"the story of {slowest.request_id}, the slowest request, is not kept")
        return Figure(
            "story", f"What happened to the slowest request, {story.request_id}?",
            f"{formats.count(story.output_tokens)} output tokens · {self.bundle.manifest.kind}",
            "Bar: phases. Ticks above: output tokens; below: prefill chunks. Triangles: turning points.",
            story_chart.story_spec(self.theme), {"": story_chart.story_frame(story, self.view.latest().time_s)},
        )  # fmt: skip

    def alternative(self) -> Comparison:
        """Fixed against continuous, simulated once."""
        if self._alternative is None:
            self._alternative = fixed_against_continuous(self.bundle)
        return self._alternative

    def _lane(self, *, fixed: bool) -> Figure:
        found = self.alternative()
        longer = max(before_after.span_s(found.fixed.steps), before_after.span_s(found.continuous.steps))
        run = found.fixed if fixed else found.continuous
        name = "fixed" if fixed else "continuous"
        rate = formats.rate(run.summary.output_tokens_per_s, "output tok")
        return Figure(
            name, f"The same requests in a {name} batch: {rate}", f"{formats.count(run.summary.steps)} steps · predicted",
            "Tokens over time; grey is padding and rows that are held after their end. Both axes have the same length.",
            before_after.lane_spec(self.theme), {"": before_after.lane_frame(run.steps, longer)},
        )  # fmt: skip
