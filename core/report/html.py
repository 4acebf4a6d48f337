"""The report as one HTML file: everything inside, nothing is fetched, figures stay interactive.

style sheet with fonts + sections + chart specifications as JSON + the Vega libraries, once
"""

from __future__ import annotations

import html
import json
from functools import lru_cache

import vl_convert

from core.charts import style
from core.report.caption import Caption, RunFacts
from core.report.figure import Figure
from core.report.print_spec import with_data
from core.report.render import font_faces
from core.report.sections import Section, Table
from core.report.text import FONTS
from core.version import VERSION

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; font-src data:"
)
"""What the file may load: nothing. Vega makes functions of its expressions, hence 'unsafe-eval'."""

_STYLE = """
body{font:15px/1.5 %(fonts)s;color:#1A2129;background:#fff;max-width:980px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:24px;margin:0 0 2px}h2{font-size:18px;margin:36px 0 8px;border-bottom:1px solid #C9D0D8;padding-bottom:4px}
.mark{display:inline-block;border:1px solid #59646F;border-radius:3px;padding:0 7px;font-size:13px;margin-left:8px}
table{border-collapse:collapse;margin:10px 0 16px;font-variant-numeric:tabular-nums;max-width:100%%}
td,th{padding:3px 16px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid #E9ECF0;font-size:14px}

th{color:#59646F;font-weight:400}td:not(:last-child){white-space:nowrap}
figure{margin:14px 0 26px}figure div{width:100%%}.scroll{overflow-x:auto}
figcaption{font-size:13px;color:#59646F}figcaption b{display:block;color:#1A2129;font-size:15px}
@media(max-width:640px){td:not(:last-child){white-space:normal}td,th{padding-right:10px;font-size:13px}td:last-child{min-width:9em}}
nav{font-size:14px;margin:12px 0}nav a{color:#0072B2;margin-right:14px}.quiet{color:#59646F;font-size:13px}
"""

_SCRIPT = """
for (const box of document.querySelectorAll("figure div[data-figure]")) {
  const spec = JSON.parse(document.getElementById("spec-" + box.dataset.figure).textContent);
  if (box.clientWidth < 560) {  // a legend does not break its lines by itself
    const below = {direction: "vertical"};
    spec.config.legend = {...spec.config.legend, columns: 3, layout: {top: below, bottom: below}};
  }
  vegaEmbed(box, spec, {renderer: "svg", actions: {export: true, source: false, compiled: false, editor: false},
    downloadFileName: box.dataset.figure}).catch((error) => { box.textContent = "This figure cannot be drawn: " + error; });
}
"""


@lru_cache(maxsize=1)
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    bundled: str = vl_convert.javascript_bundle("Object.assign(window, {vegaEmbed, vega, vegaLite});")
    return bundled.replace("</script", "<\\/script")


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table.columns)
    head = f"<tr>{head}</tr>" if any(table.columns) else ""
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table>{head}{rows}</table></div>'


def _figure(figure: Figure, facts: RunFacts) -> str:
    caption = Caption(figure.title, figure.span, facts)
    config = style.vega_config(style.LIGHT) | {"font": FONTS}
    for part in ("axis", "legend", "title", "text"):
        fonts = {k: FONTS for k in ("labelFont", "titleFont", "subtitleFont", "font") if k in config[part]}
        config[part] = {**config[part], **fonts}
    spec = {**with_data(figure.filled(), figure.main), "width": "container", "background": "#FFFFFF", "config": config}
    content = json.dumps(spec, allow_nan=False).replace("</", "<\\/")
    words = f"<b>{html.escape(figure.title)}</b>{html.escape(figure.how)} <br>{html.escape(caption.text())}"
    return (
        f'<figure><div data-figure="{figure.name}"></div><figcaption>{words}</figcaption>'
        f'<script type="application/json" id="spec-{figure.name}">{content}</script></figure>'
    )


def report_html(title: str, sections: tuple[Section, ...], facts: RunFacts) -> str:
    """The file as text.

    Args:
        sections: with figures in the light theme.
    """
    body = []
    links = []
    for number, section in enumerate(sections):
        links.append(f'<a href="#s{number}">{html.escape(section.title)}</a>')
        body.append(f'<h2 id="s{number}">{html.escape(section.title)}</h2>')
        for part in section.parts:
            if isinstance(part, str):
                body.append(f"<p>{html.escape(part)}</p>")
            else:
                body.append(_table(part) if isinstance(part, Table) else _figure(part, facts))
    sheet = _STYLE % {"fonts": FONTS}
    heading = f'<h1>{html.escape(title)}<span class="mark">{html.escape(facts.kind)}</span></h1>'
    quiet = f'<p class="quiet">{html.escape(facts.line())}</p>'
    footer = f'<p class="quiet">batchscope {VERSION}. GB = 10⁹ bytes, GiB = 2³⁰ bytes. – means no value, not zero.</p>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{font_faces()}{sheet}</style></head>\n<body>{heading}{quiet}<nav>{''.join(links)}</nav>\n"
        + "\n".join(body)
        + f"{footer}\n<script>{libraries()}</script>\n<script>{_SCRIPT}</script></body></html>\n"
    )
