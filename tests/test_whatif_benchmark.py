"""The benchmark of predictions judges on loads that the law has not seen, and by medians of its repetitions."""

from __future__ import annotations

import pytest

from benchmarks import whatif_loads as loads
from benchmarks import whatif_page
from benchmarks.whatif_runs import CAPACITY_SHARES, LEAST_RUN_S, Allowance, Judged, over_repeats, simulation_speed
from core.prediction import Pair


@pytest.mark.parametrize("seed", [0, 7000, 49_000])
def test_calibration_and_held_out_loads_have_nothing_in_common(seed: int) -> None:
    fitted = [*loads.loads_for_fit(seed), *(loads.load_for_pace(seed + i) for i in range(4))]
    judged = [*loads.loads_held_out(seed), loads.burst_load(seed, 48)]
    judged += [loads.poisson_load(seed + round(100 * share), 2.0, 40) for share in CAPACITY_SHARES]
    assert not {s.seed for s in fitted} & {s.seed for s in judged}
    assert len({s.seed for s in judged}) == len(judged)
    lengths = {(s.prompt_tokens, s.output_tokens) for s in fitted}
    assert not lengths & {(s.prompt_tokens, s.output_tokens) for s in judged}
    assert all(s.is_closed for s in fitted)
    assert sum(not s.is_closed for s in judged) == 1 + len(CAPACITY_SHARES)


def test_medians_are_compared_and_a_run_is_held_against_the_others() -> None:
    rows = [
        Judged({"x": Pair("x", "s", predicted, measured)}, 1.0) for predicted, measured in ((1.0, 1.0), (1.2, 1.1), (9.0, 2.2))
    ]
    pair, spread = over_repeats("x", "s", rows)
    assert (pair.predicted, pair.measured) == (1.2, 1.1)
    assert pair.error == pytest.approx(1.2 / 1.1 - 1.0)
    assert spread == pytest.approx(2.2 / 1.05 - 1.0)
    assert over_repeats("x", "s", [Judged({"x": Pair("x", "s", None, None)}, 1.0)])[0].error is None


def test_a_slow_machine_shortens_the_loads_and_never_their_number() -> None:
    now = [0.0]
    allowance = Allowance(400.0, lambda: now[0])
    assert allowance.run_seconds(18.0, 9, 9.0) == 18.0
    now[0] = 220.0
    assert allowance.run_seconds(18.0, 9, 9.0) == pytest.approx(180.0 / 9 - 9.0)
    now[0] = 500.0
    assert allowance.left_s == 0.0
    assert allowance.run_seconds(18.0, 9, 9.0) == LEAST_RUN_S


def test_a_long_simulated_run_is_stopped_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation_speed(50_000, 0, limit_s=0.5) > 0
    assert "stopped after 0.5 s" in capsys.readouterr().out
    assert simulation_speed(20, 0) > 0
    assert "20 of 20 requests" in capsys.readouterr().out


class PageThatNeverAnswers:
    """What `measure` asks of a browser's page; no answer comes."""

    def goto(self, address: str) -> None:
        self.address = address

    def wait_for_function(self, script: str, timeout: float) -> None:
        raise whatif_page.TooLate(f"Timeout {timeout}ms exceeded.")

    def evaluate(self, script: str) -> str:
        return "Please wait..."


def test_a_form_that_does_not_open_is_unanswered_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    scene = whatif_page.Scene("some form", "w_device=custom", {"w_peak": "1", "w_price": "2"})
    opened_s, rows = whatif_page.measure(PageThatNeverAnswers(), "http://here", scene, set())
    assert opened_s is None
    assert [(key, first) for _, key, first, _, _ in rows] == [("w_peak", None), ("w_price", None)]
    assert "some form: no whole answer within 60 s; the page says: 'Please wait...'" in capsys.readouterr().out
