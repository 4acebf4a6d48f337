"""Small runs as bundles: on the simulator (predicted, virtual clock) and on a scripted executor."""

from __future__ import annotations

from core.bundle import RunBundle, make_bundle
from core.factory import create_engine
from core.lengths import LengthSpec
from core.load_spec import ArrivalProcess, LoadSpec
from core.prompts import RandomPrompts
from core.request import SamplingParams
from core.run_record import RunRecorder
from core.workload import LoadGenerator

CREATED = "2026-01-02T03:04:05Z"
SMALL_LOAD = LoadSpec(
    process=ArrivalProcess.BURST,
    burst_size=24,
    prompt_tokens=LengthSpec.lognormal(40, 0.6, 8, 120),
    output_tokens=LengthSpec.lognormal(24, 0.6, 4, 60),
    seed=3,
)


def simulated_bundle(load: LoadSpec = SMALL_LOAD, **knobs: object) -> RunBundle:
    """A burst on the simulator under memory pressure: admissions, chunks, preemptions, a few hundred steps."""
    recorder = RunRecorder()
    plain: dict[str, object] = {"num_blocks": 48, "max_num_seqs": 12, "max_num_batched_tokens": 96}
    engine = create_engine(model="smollm2", executor="simulated", recorder=recorder, check_invariants=True, **(plain | knobs))
    feed = LoadGenerator(load, RandomPrompts(1000))
    steps = []
    while True:
        for arrival in feed.due(engine.clock.now()):
            params = SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True)
            engine.add_request(arrival.prompt_token_ids, params, tenant=f"t{arrival.index % 2}", arrival_time_s=arrival.time_s)
        if not engine.has_work():
            break
        engine.step()
        if engine.latest_record is not None and (not steps or engine.latest_record is not steps[-1]):
            steps.append(engine.latest_record)
    requests = tuple(reversed(engine.telemetry.requests))
    return make_bundle(recorder.record(), tuple(steps), requests, name="small", load=load.label, seed=0, created=CREATED)
