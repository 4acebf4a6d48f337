"""How wide text is in the figures' own font, so that lines can be broken before anything is drawn.

width = font size * sum of advances / 1000          advances of Figure Sans, printable ASCII; other characters count 600
"""

from __future__ import annotations

FAMILY = "Figure Sans"
FONTS = f"{FAMILY}, 'DejaVu Sans Condensed', 'Liberation Sans', Arial, Helvetica, sans-serif"
BOLD = 1.1  # the bold cut is about a tenth wider
_OTHER = 600
_FIRST = 32
_ADVANCES = (
    286, 360, 414, 754, 572, 855, 702, 247, 351, 351, 450, 754, 286, 325, 286, 303, 572, 572, 572, 572, 572, 572, 572, 572, 572,
    572, 303, 303, 754, 754, 754, 478, 900, 615, 617, 628, 693, 568, 518, 697, 677, 265, 265, 590, 501, 776, 673, 708, 542, 708,
    625, 571, 549, 659, 615, 890, 616, 549, 616, 351, 303, 351, 754, 450, 450, 551, 571, 495, 571, 554, 316, 571, 570, 250, 250,
    521, 250, 876, 570, 550, 571, 571, 370, 469, 353, 570, 532, 736, 532, 532, 472, 572, 303, 572, 754,
)  # fmt: skip


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of one line in the unit of `size`."""
    total = 0
    for character in text:
        at = ord(character) - _FIRST
        total += _ADVANCES[at] if 0 <= at < len(_ADVANCES) else _OTHER
    return total * size / 1000 * (BOLD if bold else 1.0)


def wrap(text: str, size: float, room: float, *, bold: bool = False) -> list[str]:
    """Break a text into lines that fit `room`; a word that is longer than a line is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if width(longer, size, bold=bold) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while width(line, size, bold=bold) > room and len(line) > 1:
            cut = max(1, int(len(line) * room / width(line, size, bold=bold)))
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line or not lines else lines
