"""The report of a run, from the command line.

python -m core.report BUNDLE                        BUNDLE's report.html, report.pdf and trace.json beside it
python -m core.report BUNDLE --figures all          and every figure as PNG, SVG and PDF with its data
python -m core.report BUNDLE --figures roofline,sets --formats svg,csv --width 17.8 --out DIR --no-report
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from core.bundle import SUFFIX, read_bundle
from core.errors import BatchscopeError
from core.report.export import REPORTS, write_report
from core.report.file_kinds import FORMATS


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(prog="python -m core.report", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("bundle", type=Path, help="a run bundle, from python -m core.run or the Reports page")
    p.add_argument("--out", type=Path, metavar="DIR", help="folder of the files; default: that of the bundle")
    p.add_argument("--figures", metavar="NAMES", help="names with commas between them, or all")
    p.add_argument("--formats", default=",".join(FORMATS), help="of the figures; default: %(default)s")
    p.add_argument("--width", type=float, default=8.5, metavar="CM", help="of the figures; one column is 8.5, two are 17.8")
    p.add_argument("--figures-zip", action="store_true", help="all figures in one zip file")
    p.add_argument("--no-report", action="store_true", help="figures only")
    return p


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run the command line; 0, or 2 for an error."""
    console = console or Console()
    options = parser()
    args = options.parse_args(argv)
    formats = tuple(f.strip() for f in args.formats.split(","))
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        options.error(f"there is no format {unknown[0]!r}; choose from: {', '.join(FORMATS)}")
    if not 4.0 <= args.width <= 60.0:
        options.error(f"the width is {args.width:g} cm; give 4 to 60")
    names = () if args.figures is None else None if args.figures == "all" else tuple(args.figures.split(","))
    if args.no_report and names == () and not args.figures_zip:
        options.error("--no-report leaves nothing to do; name --figures")
    folder = args.out or args.bundle.parent
    try:
        bundle = read_bundle(args.bundle)
        with console.status("reading the run") as status:
            written = write_report(
                bundle,
                folder,
                args.bundle.name.removesuffix(SUFFIX),
                reports=() if args.no_report else REPORTS,
                figures=names,
                formats=formats,
                width_cm=args.width,
                zipped=args.figures_zip,
                on_file=lambda name: status.update(f"writing {name}"),
            )
    except BatchscopeError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    for path in written:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
