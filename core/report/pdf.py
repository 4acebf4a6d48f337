"""The report as PDF: A4 pages composed as SVG, figures as vectors, fonts embedded, text that can be searched.

sections -> lines, rows and pictures with known heights -> pages -> one PDF a page -> joined
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

import vl_convert
from pypdf import PdfReader, PdfWriter

from core.report.caption import Caption, RunFacts
from core.report.figure import Figure
from core.report.print_spec import PX_PER_CM, PX_PER_PT, print_spec
from core.report.render import svg_text, use_own_fonts
from core.report.sections import Section, Table
from core.report.text import FONTS, width, wrap

PAGE_W, PAGE_H = 595.0, 842.0
MARGIN, FOOT = 48.0, 40.0
ROOM = PAGE_W - 2 * MARGIN
BODY, SMALL, HEAD, TITLE = 9.5, 7.5, 13.0, 19.0
FIGURE_CM = ROOM / PX_PER_CM * PX_PER_PT
_GAP = 12.0
_MUTED = "#59646F"


@dataclass
class _Pages:
    """Writes downwards, a new page where the next thing does not fit."""

    footer: str
    pages: list[list[str]] = field(default_factory=lambda: [[]])
    y: float = MARGIN

    def need(self, height: float) -> None:
        """Make room for something that must stay whole."""
        if self.y + height > PAGE_H - FOOT - 6 and self.y > MARGIN:
            self.pages.append([])
            self.y = MARGIN

    def text(self, x: float, words: str, size: float, *, bold: bool = False, colour: str = "#000000", dy: float = 0.0) -> None:
        weight = ' font-weight="700"' if bold else ""
        self.pages[-1].append(
            f'<text x="{x:.1f}" y="{self.y + dy:.1f}" font-size="{size}" fill="{colour}"{weight}>{escape(words)}</text>'
        )

    def line(self, words: str, size: float, *, bold: bool = False, colour: str = "#000000") -> None:
        """One line of text."""
        self.need(size * 1.4)
        self.y += size * 1.4
        self.text(MARGIN, words, size, bold=bold, colour=colour)

    def paragraph(self, words: str) -> None:
        """A broken text and a gap."""
        for part in wrap(words, BODY, ROOM):
            self.line(part, BODY)
        self.y += 5

    def rule(self) -> None:
        """A thin line over the whole width."""
        y = f"{self.y + 4:.1f}"
        ends = f'x1="{MARGIN}" x2="{PAGE_W - MARGIN}" y1="{y}" y2="{y}"'
        self.pages[-1].append(f'<line {ends} stroke="#C9D0D8" stroke-width="0.6"/>')
        self.y += 6

    def picture(self, svg: str, wide: float, high: float) -> None:
        """A figure as a vector picture."""
        self.need(high + _GAP)
        content = base64.b64encode(svg.encode()).decode()
        source = f"data:image/svg+xml;base64,{content}"
        self.pages[-1].append(
            f'<image x="{MARGIN}" y="{self.y + 6:.1f}" width="{wide:.1f}" height="{high:.1f}" href="{source}"/>'
        )
        self.y += high + _GAP

    def svg(self) -> Iterator[str]:
        """The pages."""
        for number, parts in enumerate(self.pages, 1):
            at = PAGE_H - FOOT + 14
            foot = f'<text x="{MARGIN}" y="{at}" font-size="{SMALL}" fill="{_MUTED}">{escape(self.footer)}</text>'
            page = f'<text x="{PAGE_W - MARGIN}" y="{at}" font-size="{SMALL}" fill="{_MUTED}" text-anchor="end">{number}</text>'
            yield (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{PAGE_W}" height="{PAGE_H}" font-family="{FONTS}">'
                f'<rect width="{PAGE_W}" height="{PAGE_H}" fill="#FFFFFF"/>{"".join(parts)}{foot}{page}</svg>'
            )


def column_widths(table: Table) -> list[float]:
    """Widths that fit the page: each column as wide as its widest cell, the last one takes what is left."""
    pad = 12.0
    count = len(table.columns)
    cells = (table.columns, *table.rows)
    wanted = [max(width(row[k], BODY) for row in cells) + pad for k in range(count)]
    room = ROOM - sum(wanted[:-1])
    if room < 90.0:
        share = (ROOM - 160.0) / sum(wanted[:-1]) if count > 1 else 1.0
        wanted = [w * min(share, 1.0) for w in wanted[:-1]] + [0.0]
        room = ROOM - sum(wanted[:-1])
    return [*wanted[:-1], room]


def _table(pages: _Pages, table: Table) -> None:
    """Rows one below the other; on a new page the heads of the columns stand again."""
    widths = column_widths(table)
    head = table.columns if any(table.columns) else None
    for number, cells in enumerate(table.rows):
        page = len(pages.pages)
        heads = _high(head, widths) if head is not None and not number else 0.0
        pages.need(heads + _high(cells, widths))
        if head is not None and (not number or len(pages.pages) > page):
            _row(pages, head, widths, _MUTED)
        _row(pages, cells, widths, "#000000")
    pages.y += 8


def _broken(cells: tuple[str, ...], widths: list[float]) -> list[list[str]]:
    return [wrap(cell, BODY, room - 8) for cell, room in zip(cells, widths, strict=True)]


def _high(cells: tuple[str, ...], widths: list[float]) -> float:
    return max(len(lines) for lines in _broken(cells, widths)) * BODY * 1.35 + 2


def _row(pages: _Pages, cells: tuple[str, ...], widths: list[float], colour: str) -> None:
    x = MARGIN
    for lines, room in zip(_broken(cells, widths), widths, strict=True):
        for k, words in enumerate(lines):
            pages.text(x, words, BODY, colour=colour, dy=(k + 1) * BODY * 1.35)
        x += room
    pages.y += _high(cells, widths)


def _figure(pages: _Pages, figure: Figure, facts: RunFacts) -> None:
    caption = Caption(figure.title, figure.span, facts, figure.how)
    spec = print_spec(figure.filled(), figure.main, caption, width_cm=FIGURE_CM)
    pages.picture(svg_text(spec), ROOM, spec["height"] / PX_PER_PT)


def report_pdf(title: str, sections: tuple[Section, ...], facts: RunFacts) -> bytes:
    """The PDF file.

    Args:
        sections: with figures in the theme of print.
    """
    use_own_fonts()
    pages = _Pages(f"{title} · {facts.kind} · batchscope {facts.version}")
    pages.line(title, TITLE, bold=True)
    for words in wrap(facts.line(), SMALL, ROOM):
        pages.line(words, SMALL, colour=_MUTED)
    for section in sections:
        pages.y += _GAP
        pages.need(HEAD * 1.4 + (300 if section.parts and isinstance(section.parts[0], Figure) else 60))
        pages.line(section.title, HEAD, bold=True)
        pages.rule()
        for part in section.parts:
            if isinstance(part, str):
                pages.paragraph(part)
            elif isinstance(part, Table):
                _table(pages, part)
            else:
                _figure(pages, part, facts)
    writer = PdfWriter()
    for svg in pages.svg():
        writer.append(PdfReader(io.BytesIO(vl_convert.svg_to_pdf(svg))))
    writer.add_metadata({"/Title": title, "/Creator": f"batchscope {facts.version}"})
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()
