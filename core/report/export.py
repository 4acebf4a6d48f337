"""What a bundle becomes on disk or behind a download button: report, trace, figures with their data.

BUNDLE -> NAME.report.html  NAME.report.pdf  NAME.trace.json  NAME.figures/FIGURE.{png,svg,pdf,csv,parquet}
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from core.atomic_file import make_folder, write_bytes
from core.bundle import RunBundle
from core.charts import style
from core.errors import ExportError
from core.perfetto_trace import trace_bytes
from core.replay_view import ReplayView
from core.report.caption import Caption, facts_of_bundle
from core.report.figure import Figure
from core.report.figures import FigureSet
from core.report.file_kinds import FORMATS, file_name
from core.report.html import report_html
from core.report.pdf import report_pdf
from core.report.print_spec import print_spec
from core.report.render import data_file, joined, picture
from core.report.sections import report_sections

REPORTS = ("trace", "html", "pdf")
FILE_NAMES = {"html": "report.html", "pdf": "report.pdf", "trace": "trace.json"}


class Exporter:
    """Everything that can be made of one bundle; the replay is made once and shared."""

    def __init__(self, bundle: RunBundle, view: ReplayView | None = None) -> None:
        self.bundle = bundle
        self.facts = facts_of_bundle(bundle)
        self._view = view or ReplayView.of(bundle)

    def figures(self, theme: style.Theme = style.PRINT) -> FigureSet:
        """The figures of this run in a theme."""
        return FigureSet(self.bundle, self._view, theme)

    def html(self) -> bytes:
        """The self-contained report."""
        return report_html(self.bundle.manifest.name, report_sections(self.figures(style.LIGHT)), self.facts).encode()

    def pdf(self) -> bytes:
        """The report as PDF."""
        return report_pdf(self.bundle.manifest.name, report_sections(self.figures()), self.facts)

    def trace(self) -> bytes:
        """The trace for Perfetto."""
        return trace_bytes(self.bundle)

    def report(self, kind: str) -> bytes:
        """One of `REPORTS` as a file."""
        made: bytes = getattr(self, kind)()
        return made

    def figure_file(self, figure: Figure, fmt: str, width_cm: float = 8.5) -> bytes:
        """One figure in one of `core.report.render.FORMATS`."""
        if fmt in ("csv", "parquet"):
            return data_file(figure_data(figure), fmt)
        caption = Caption(figure.title, figure.span, self.facts, figure.how)
        return picture(print_spec(figure.filled(), figure.main, caption, width_cm=width_cm), fmt)

    def figure_files(
        self, names: Iterable[str] | None = None, formats: Iterable[str] = FORMATS, width_cm: float = 8.5
    ) -> Iterator[tuple[str, bytes]]:
        """(file name, content) of the figures that this run has.

        Raises:
            ExportError: for a name that no run has.
        """
        found = self.figures()
        wanted = found.names if names is None else tuple(names)
        unknown = [n for n in wanted if n not in found.names]
        if unknown:
            raise ExportError(f"there is no figure {unknown[0]!r}; choose from: {', '.join(found.names)}")
        for name in wanted:
            figure = found.get(name)
            if figure is None:
                continue
            for fmt in formats:
                yield file_name(name, fmt), self.figure_file(figure, fmt, width_cm)

    def figures_zip(self, formats: Iterable[str] = FORMATS) -> bytes:
        """All figures of the run in one zip file."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.figure_files(formats=formats):
                archive.writestr(zipfile.ZipInfo(name), content)
        return out.getvalue()


def figure_data(figure: Figure) -> pd.DataFrame:
    """All data sets of a figure as one table."""
    main = figure.main
    return main if main is not None else joined({name: part for name, part in figure.data.items() if name})


def write_report(
    bundle: RunBundle,
    folder: Path,
    stem: str,
    *,
    reports: Iterable[str] = REPORTS,
    figures: Iterable[str] | None = (),
    formats: Iterable[str] = FORMATS,
    width_cm: float = 8.5,
    zipped: bool = False,
    on_file: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write reports and figures of a bundle, each file whole or not at all; returns their paths.

    Args:
        figures: names of figures, () for none, None for all.
        zipped: write all figures in all formats as one zip file.

    Raises:
        ExportError: if a file cannot be written or a figure is not known.
    """
    made = Exporter(bundle)
    written = []
    make_folder(folder)
    for kind in reports:
        name = f"{stem}.{FILE_NAMES[kind]}"
        on_file(name)
        written.append(write_bytes(folder / name, made.report(kind)))
    if figures != ():
        target = make_folder(folder / f"{stem}.figures")
        for name, content in made.figure_files(figures, formats, width_cm):
            on_file(name)
            written.append(write_bytes(target / name, content))
    if zipped:
        name = f"{stem}.figures.zip"
        on_file(name)
        written.append(write_bytes(folder / name, made.figures_zip(formats)))
    return written
