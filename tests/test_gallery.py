"""The gallery in docs/: drawn again from its bundle by the command that it names, figure by figure, value by value."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from core.bundle import RunBundle, read_bundle
from core.repeat import repeat
from core.report.__main__ import main
from core.scenario import read_scenario

GALLERY = Path(__file__).resolve().parents[1] / "docs" / "gallery"
NAMES = ("sets", "composition", "pool", "blocks_1", "roofline", "latency")


@pytest.fixture(scope="module")
def bundle() -> RunBundle:
    return read_bundle(GALLERY / "small-burst.bundle.zip")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figures, made by the very command that stands in the gallery."""
    text = (GALLERY / "README.md").read_text().replace("\\\n", " ")
    command = next(line for line in text.splitlines() if line.startswith("python -m core.report") and "--no-report" in line)
    words = command.split()[3:]
    out = tmp_path_factory.mktemp("gallery")
    words[words.index("--out") + 1] = str(out)
    words[0] = str(GALLERY / Path(words[0]).name)
    assert main(words) == 0
    return out / "small-burst.figures"


def test_the_gallery_shows_every_figure_that_its_command_makes(drawn: Path) -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (GALLERY / "README.md").read_text())
    assert shown == [f"small-burst.figures/{name}@2x.png" for name in NAMES]
    made = sorted(p.name for p in drawn.iterdir())
    assert made == sorted(p.name for p in (GALLERY / "small-burst.figures").iterdir())
    assert len(made) == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_comes_out_as_it_stands_there(drawn: Path, name: str) -> None:
    kept, again = (pd.read_csv(folder / f"{name}.csv") for folder in (GALLERY / "small-burst.figures", drawn))
    pd.testing.assert_frame_equal(kept, again, rtol=1e-6)
    before, after = (
        np.asarray(Image.open(folder / f"{name}@2x.png").convert("L"), dtype=np.float64)
        for folder in (GALLERY / "small-burst.figures", drawn)
    )
    assert before.shape == after.shape
    assert float(np.abs(before - after).mean()) < 2.0
    assert before.std() > 10.0


def test_the_data_are_those_of_the_run(bundle: RunBundle) -> None:
    folder = GALLERY / "small-burst.figures"
    sets = pd.read_csv(folder / "sets.csv")
    assert sets["running"].tolist() == [r.num_running for r in bundle.steps]
    assert sets["waiting"].tolist() == [r.num_waiting for r in bundle.steps]
    roofline = pd.read_csv(folder / "roofline.csv")
    dots = roofline[roofline["set"] == "dots"]
    rates = [r.flops / r.forward_s for r in bundle.steps if r.flops]
    assert dots["flops_per_s"].tolist() == pytest.approx(rates)
    states = pd.read_csv(folder / "blocks_1.csv")["state"].value_counts()
    assert states["live"] == max(r.blocks_live for r in bundle.steps)


def test_the_bundle_is_that_of_the_scenario_and_repeats(bundle: RunBundle) -> None:
    scenario = read_scenario(GALLERY / "small-burst.toml")
    assert bundle.record.header.config == scenario.engine
    assert (bundle.manifest.kind, bundle.manifest.complete) == ("measured", True)
    outcome = repeat(bundle)
    assert outcome.identical
    assert outcome.steps == outcome.total > 50
