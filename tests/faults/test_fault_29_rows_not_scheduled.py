"""Kind: a row that is given no tokens in a step still receives a made-up token."""

from __future__ import annotations

from tests.runtime_driver import Driver, generate_alone, make_runner, one_thread, prompts_of

__all__ = ["one_thread"]  # the fixture


def test_rows_not_scheduled_get_no_token() -> None:
    """Budget 8 and chunks of 8: whoever decodes is skipped in some steps; an output grows only when it was planned whole."""
    lengths = (4, 60, 4, 60)
    prompts = prompts_of(lengths, seed=2)
    driver = Driver(make_runner())
    for index, prompt in enumerate(prompts):
        driver.add(str(index), prompt)
    step = 0
    skipped = 0
    while any(len(r.output) < 12 for r in driver.live.values()):
        budget, counts = 8, {}
        order = [str((step + k) % len(lengths)) for k in range(len(lengths))]
        for i in order:
            r = driver.live[i]
            if budget and len(r.output) < 12:
                counts[i] = min(r.missing, 8, budget)
                budget -= counts[i]
        before = {i: (len(r.output), r.missing) for i, r in driver.live.items()}
        sampled = dict(driver.step(counts).sampled)
        for i, (length, missing) in before.items():
            whole = counts.get(i) == missing
            assert len(driver.live[i].output) == length + whole
            assert (i in sampled) == whole
            skipped += i not in counts and missing == 1 and length < 12
        step += 1
    assert skipped > 0, "the case must occur"
    runner = make_runner()
    for index, prompt in enumerate(prompts):
        assert driver.live[str(index)].output == generate_alone(runner, prompt, 12)
