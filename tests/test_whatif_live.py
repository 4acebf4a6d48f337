"""The live engine as a base: its law, its load as observed, its error; words of a verdict; a followed scenario file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.commands import CommandResult, Outcome
from core.errors import ConfigError, ControlRefused
from core.lengths import LengthKind
from core.live_changes import KEEP
from core.load_spec import ArrivalProcess, LoadSpec, PromptKind
from core.scenario import ScenarioError
from core.scenario_follow import follow, following, unfollow
from core.whatif_base import live_base, observed_load
from core.whatif_words import headline
from tests.fake_snapshots import busy_run, starting_snapshot
from tests.live_cases import wait_until

RUN = busy_run(700)
PICTURE = RUN.snapshot()


def test_the_base_is_the_engine_as_it_is_with_the_law_of_its_steps() -> None:
    base = live_base(PICTURE, RUN.history(), 16e9)
    assert base.calibration is not None
    assert base.whatif.scheduler == PICTURE.config.scheduler
    assert base.whatif.num_blocks == PICTURE.config.cache.num_blocks
    assert base.host_s > 0
    few = live_base(PICTURE, RUN.history()[:5], 16e9)
    assert few.calibration is None
    assert "no law yet" in few.basis
    assert few.whatif.setup().device.measured
    with pytest.raises(ConfigError, match="still loading"):
        live_base(starting_snapshot(), RUN.history(), 16e9)
    with pytest.raises(ConfigError, match="at least 24 measured steps"):
        live_base(replace(PICTURE, ceilings=None), RUN.history()[:5], 16e9)


def test_the_load_takes_the_lengths_that_were_seen() -> None:
    live = LoadSpec(process=ArrivalProcess.CLOSED_LOOP, users=5)
    seen = observed_load(live, PICTURE.recent_requests, 50)
    assert (seen.users, seen.num_requests, seen.prompt_kind) == (5, 50, PromptKind.RANDOM)
    assert seen.output_tokens.kind is LengthKind.EMPIRICAL
    assert set(seen.output_tokens.values) <= {r.output_tokens for r in PICTURE.recent_requests}
    assert observed_load(live, PICTURE.recent_requests[:3], 50).output_tokens == live.output_tokens


def test_a_verdict_names_what_moved() -> None:
    base = live_base(PICTURE, RUN.history(), 16e9).whatif
    load = observed_load(LoadSpec(rate_per_s=50.0), PICTURE.recent_requests, 60)
    slow = replace(base, load=load).run()
    tight = replace(base, load=load, scheduler=replace(base.scheduler, max_num_seqs=2)).run()
    line = headline(slow, tight)
    assert "throughput" in line
    assert "to seats" in line
    assert headline(slow, slow).startswith("Same throughput, still bound by")


class Recorder:
    """Takes settings, or refuses them."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []
        self.refuse = ""

    def configure(self, **changes: object) -> CommandResult:
        if self.refuse:
            raise ControlRefused(self.refuse)
        self.seen.append(changes)
        return CommandResult(Outcome.ACCEPTED)


def test_saving_a_followed_file_changes_the_engine_and_a_broken_one_shows_its_line(tmp_path: Path) -> None:
    live, file = Recorder(), tmp_path / "evening.toml"
    follow(live, file)
    assert following(live).at_s is None
    file.write_text('name = "peak"\n[scheduler]\nmax_num_seqs = 7\n')
    wait_until(lambda: live.seen)
    assert live.seen[-1]["scheduler"].max_num_seqs == 7
    assert live.seen[-1]["load"] is KEEP
    wait_until(lambda: following(live).applied == 1)
    assert following(live).name == "peak"
    file.write_text("[scheduler]\n\nmax_num_seqs = 0\n")
    wait_until(lambda: following(live).problem)
    assert following(live).line == 3
    assert len(live.seen) == 1
    live.refuse = "somebody else"
    file.write_text("[cache]\nnum_blocks = 64\n")
    wait_until(lambda: "somebody else" in following(live).problem)
    unfollow(live)
    assert following(live) is None
    with pytest.raises(ScenarioError, match=r"ends with \.toml"):
        follow(live, tmp_path / "passwd")
    with pytest.raises(ScenarioError, match="does not exist"):
        follow(live, tmp_path / "nowhere" / "x.toml")
