"""Runs without a browser, from the command line.

    python -m core.run --scenario FILE --out DIR     run a scenario, write DIR/NAME.bundle.zip
    python -m core.run --bundle FILE                 repeat a bundle and say whether its schedule came out identical

Ctrl-C ends a run at the next step; what was run is written as a bundle all the same, marked as partial.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from core.atomic_file import make_folder
from core.bundle import SUFFIX, RunBundle, read_bundle, write_bundle
from core.charts import formats
from core.engine_run import Progress as RunProgress
from core.errors import BatchscopeError
from core.headless import HeadlessRun
from core.repeat import repeat
from core.run_summary import summarise
from core.scenario import Scenario, read_scenario

DONE, DIFFERENT, FAILED, STOPPED = 0, 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(prog="python -m core.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--scenario", type=Path, metavar="FILE", help="scenario file (TOML) to run")
    what.add_argument("--bundle", type=Path, metavar="FILE", help="bundle to repeat")
    p.add_argument("--out", type=Path, metavar="DIR", help="folder of the new bundle (with --scenario)")
    p.add_argument("--name", help="name of the bundle; default: that of the scenario")
    p.add_argument("--simulate", action="store_true", help="on the simulator, whatever the scenario says")
    p.add_argument("--steps", type=int, metavar="N", help="end after N steps")
    p.add_argument("--seconds", type=float, metavar="S", help="end after S seconds of the engine's clock")
    p.add_argument("--no-probe", action="store_true", help="do not measure the ceilings of this machine first")
    p.add_argument("--with-model", action="store_true", help="with --bundle: run the forward passes again and compare tokens")
    return p


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets instead of raising; a second Ctrl-C raises as usual."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _bar(console: Console) -> Progress:
    note = TextColumn("{task.fields[note]}")
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), note, TimeElapsedColumn(), console=console
    )


def file_name(name: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def summary_lines(bundle: RunBundle) -> list[str]:
    """A run in a few lines."""
    about, s = bundle.manifest, summarise(bundle.steps, bundle.requests)
    lines = [
        f"{about.name}: {formats.count(s.requests)} requests in {formats.count(s.steps)} steps"
        f" and {formats.seconds(s.duration_s)}, {about.kind}",
        f"  {formats.rate(s.output_tokens_per_s, 'tok')}, mean batch {formats.figures(s.mean_batch)},"
        f" {formats.count(s.preemptions)} preemptions",
        f"  TTFT p50 {formats.seconds(s.ttft_p50_s)} p99 {formats.seconds(s.ttft_p99_s)},"
        f" ITL p50 {formats.seconds(s.itl_p50_s)} p99 {formats.seconds(s.itl_p99_s)}",
    ]
    return lines + ([f"  {'partial: ' if not about.complete else ''}{about.note}"] if about.note else [])


def run_scenario(args: argparse.Namespace, console: Console) -> int:
    """Run a scenario and write its bundle."""
    scenario: Scenario = read_scenario(args.scenario)
    if args.simulate and scenario.device is None:
        scenario = dataclasses.replace(scenario, engine=dataclasses.replace(scenario.engine, executor="simulated"))
    folder = make_folder(args.out)
    name = args.name or scenario.name or args.scenario.stem
    with stop_on_interrupt() as stop, _bar(console) as bar:
        task = bar.add_task(name, total=None, note="starting")

        def say(text: str) -> None:
            bar.update(task, note=text)

        run = HeadlessRun(
            scenario,
            args.scenario.absolute().parent,
            probe=not args.no_probe,
            max_steps=args.steps,
            max_time_s=args.seconds,
            should_stop=stop.is_set,
            on_progress=say,
        )

        def show(p: RunProgress) -> None:
            rate = formats.rate(p.output_tokens / p.time_s if p.time_s > 0 else None, "tok")
            bar.update(task, completed=p.ended, total=p.total, note=f"step {formats.count(p.steps)}, {rate}")

        run.run(show)
        say("writing the bundle")
        bundle = run.bundle(name)
        target = write_bundle(bundle, folder / f"{file_name(name)}{SUFFIX}")
        say("done" if bundle.manifest.complete else "stopped")
    console.print("\n".join(summary_lines(bundle)), markup=False, highlight=False)
    if run.refused:
        told = ", ".join(f"{count} ({reason})" for reason, count in sorted(run.refused.items()))
        console.print(f"  refused: {told}", markup=False, highlight=False)
    console.print(f"  {target}", markup=False, highlight=False, soft_wrap=True)
    return DONE if bundle.manifest.complete else STOPPED if stop.is_set() else FAILED


def repeat_bundle(args: argparse.Namespace, console: Console) -> int:
    """Repeat a bundle and say how it came out."""
    bundle = read_bundle(args.bundle)
    console.print("\n".join(summary_lines(bundle)), markup=False, highlight=False)
    with _bar(console) as bar:
        task = bar.add_task("repeating", total=None, note="")

        def show(done: int, total: int) -> None:
            if done % 64 == 0 or done == total:
                bar.update(task, completed=done, total=total)

        outcome = repeat(bundle, with_model=args.with_model, on_step=show)
    console.print("\n".join(outcome.sentences()), markup=False, highlight=False)
    return DONE if outcome.identical else DIFFERENT


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the command line; returns 0, 1 for a repetition that came out different, 2 for an error, 130 after Ctrl-C."""
    console = console or Console()
    options = parser()
    args = options.parse_args(argv)
    if args.scenario is not None and args.out is None:
        options.error("--scenario needs --out DIR, the folder of the bundle")
    try:
        return repeat_bundle(args, console) if args.bundle is not None else run_scenario(args, console)
    except BatchscopeError as error:
        console.print(f"{error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("stopped; nothing was written", markup=False)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
