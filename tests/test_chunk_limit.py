"""The limit on a chunk: 0 is refused with the reason, "off" is said by None, and what older versions wrote still reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import NumberInput

from core.bundle import read_bundle
from core.config import CacheConfig, EngineConfig, SchedulerConfig, replace_knobs
from core.devices import DEVICES
from core.engine_commands import SetScheduler
from core.errors import ConfigError
from core.forks import fork_of
from core.load_spec import LoadSpec
from core.models_catalog import model_named
from core.plain_data import canonical_json, from_plain
from core.repeat import repeat
from core.scenario import ScenarioError, parse_scenario
from core.scenario_text import scenario_toml
from core.sweep_text import parse_axes
from core.vllm_flags import sglang_command, vllm_command
from core.whatif import WhatIf
from tests.fake_live import FakeLive
from tests.scheduler_helpers import Driver, create_request, create_scheduler

ROOT = Path(__file__).resolve().parents[1]
NAME = "long_prefill_token_threshold"
REASON = "with a chunk of 0 tokens no prompt would ever be read; give at least 1, or off for no limit"


def test_a_chunk_of_0_is_refused_with_the_reason_and_nothing_changes() -> None:
    driver = Driver(create_scheduler(num_blocks=16, block_size=4, long_prefill_token_threshold=3))
    request = create_request("r", 10, 2)
    driver.add(request)
    driver.step()
    before = driver.scheduler.config
    with pytest.raises(ConfigError, match=REASON):
        driver.scheduler.set_config(replace_knobs(before, **{NAME: 0}), driver.now)
    assert driver.scheduler.config is before
    assert driver.step().num_scheduled_tokens == (3,)
    driver.scheduler.set_config(replace_knobs(before, **{NAME: None}), driver.now)
    assert driver.step().num_scheduled_tokens == (4,)


@pytest.mark.parametrize("value", [-1, False, True, 1.5, "off", 1_048_577])
def test_what_is_no_number_of_tokens_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=f"{NAME} is {value!r}; give a whole number from 1"):
        replace_knobs(SchedulerConfig(), **{NAME: value})


def test_a_scenario_says_off_or_a_number_and_0_is_refused_on_its_line() -> None:
    text = "[scheduler]\nmax_num_seqs = 4\nlong_prefill_token_threshold = {}\n"
    assert parse_scenario(text.format('"off"')).engine.scheduler == SchedulerConfig(max_num_seqs=4)
    limited = parse_scenario(text.format(64))
    assert limited.engine.scheduler.long_prefill_token_threshold == 64
    assert parse_scenario(scenario_toml(limited)).engine.scheduler == limited.engine.scheduler
    with pytest.raises(ScenarioError, match=f"line 3: {NAME} is 0, and {REASON}"):
        parse_scenario(text.format(0))


def test_an_axis_of_a_sweep_may_be_off() -> None:
    base = WhatIf(model_named("Qwen3 0.6B"), DEVICES["L4"], SchedulerConfig(), load=LoadSpec(), max_model_len=1024)
    assert parse_axes(f"{NAME} = off, 64, 16 to 32 in 2", base)[0].values == (None, 64, 16, 32)
    with pytest.raises(ConfigError, match=REASON):
        parse_axes(f"{NAME} = 0, 64", base)


def test_other_servers_are_told_in_their_words() -> None:
    argv = vllm_command(EngineConfig()).argv
    assert argv[argv.index("--long-prefill-token-threshold") + 1] == "0"
    assert "--long-prefill-token-threshold 64" in " ".join(
        vllm_command(EngineConfig(scheduler=SchedulerConfig(long_prefill_token_threshold=64))).argv
    )
    sglang = sglang_command(EngineConfig()).argv
    assert sglang[sglang.index("--chunked-prefill-size") + 1] == str(SchedulerConfig().max_num_batched_tokens)


def test_a_comparison_names_the_lifted_limit() -> None:
    limited = SchedulerConfig(long_prefill_token_threshold=64)
    assert fork_of(limited, CacheConfig(), LoadSpec(), {NAME: None}, 8).differences == ((NAME, "64", "off"),)


def test_a_command_of_an_older_record_reads_as_no_limit() -> None:
    written = json.loads(canonical_json(SetScheduler(SchedulerConfig(max_num_seqs=3))))
    assert written["config"][NAME] is None
    written["config"][NAME] = 0
    assert from_plain(SetScheduler, written) == SetScheduler(SchedulerConfig(max_num_seqs=3))


def test_a_bundle_of_an_older_version_opens_and_repeats() -> None:
    path = ROOT / "docs" / "gallery" / "small-burst.bundle.zip"
    bundle = read_bundle(path)
    assert bundle.record.header.config.scheduler.long_prefill_token_threshold is None
    assert repeat(bundle).identical


def _limit(at: AppTest) -> NumberInput:
    return next(widget for widget in at.number_input if widget.label == NAME)


def test_the_sidebar_sets_lifts_and_refuses(live: FakeLive) -> None:
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=120).run()
    assert _limit(at).value is None
    assert _limit(at).placeholder == "no limit"
    _limit(at).set_value(64).run()
    assert live.run.scheduler.long_prefill_token_threshold == 64
    _limit(at).set_value(0).run()
    assert live.run.scheduler.long_prefill_token_threshold == 64
    assert any("chunk of 0 tokens" in e.value for e in at.error)
    _limit(at).set_value(None).run()
    assert live.run.scheduler.long_prefill_token_threshold is None
    assert not at.error


def test_the_form_of_a_what_if_refuses_0_and_lifts_the_limit(live: FakeLive) -> None:
    live.run.scheduler = SchedulerConfig(max_num_seqs=48, max_num_batched_tokens=256, long_prefill_token_threshold=64)
    live.picture = live._publish()
    at = AppTest.from_file(str(ROOT / "pages" / "what_if.py"), default_timeout=120).run()
    assert _limit(at).value == 64
    _limit(at).set_value(0).run()
    assert any("chunk of 0 tokens" in e.value for e in (*at.error, *at.warning)), [e.value for e in at.get("html")]
    _limit(at).set_value(None).run()
    assert not at.exception
    assert not at.error
    assert _limit(at).value is None
    assert any("live 64" in node.proto.body for node in at.get("html"))


def test_the_second_configuration_of_compare_sets_lifts_and_refuses(live: FakeLive) -> None:
    live.run.scheduler = SchedulerConfig(max_num_seqs=48, max_num_batched_tokens=256, long_prefill_token_threshold=64)
    live.picture = live._publish()
    at = AppTest.from_file(str(ROOT / "pages" / "compare.py"), default_timeout=120)
    at.query_params["fork"] = "live"
    at.run().run()

    def words() -> str:
        assert not at.exception, [e.value for e in at.exception]
        return "\n".join(node.proto.body for node in at.get("html"))

    assert _limit(at).value == 64
    assert _limit(at).placeholder == "no limit"
    assert "nothing yet: change a knob" in words()
    assert next(b for b in at.button if b.label == "Run both").disabled
    _limit(at).set_value(32).run()
    assert f"{NAME}: 64 against 32" in words()
    assert not next(b for b in at.button if b.label == "Run both").disabled
    _limit(at).set_value(None).run()
    assert f"{NAME}: 64 against off" in words()
    _limit(at).set_value(0).run()
    assert any("chunk of 0 tokens" in e.value for e in at.error)
    assert next(b for b in at.button if b.label == "Run both").disabled, "it would run another comparison than the one shown"
