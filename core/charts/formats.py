"""How a number is written, on every page and in every export: three significant figures, SI prefixes, thin spaces.

    18 204      412 tok/s      3.42 GFLOP/s      12.3 ms      97.1 %      –

A value that does not exist is an en dash, never 0. Traffic and bandwidth are decimal (GB = 1e9 bytes), sizes of
memory that comes in powers of two are binary (GiB = 2**30 bytes); the unit always says which.
"""

from __future__ import annotations

import math

NONE = "–"
THIN = "\u202f"  # narrow no-break space: between a number and its unit, and between groups of three digits

_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("", "m", "µ", "n", "p")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _grouped(text: str) -> str:
    """Group the digits before the point by threes, where there are more than four of them."""
    sign, body = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, rest = body.partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", THIN)
    return sign + whole + point + rest


def figures(value: float | None, digits: int = 3) -> str:
    """`digits` significant figures without an exponent: 0.0123, 12.3, 18 200."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded != 0:  # 9.996 becomes 10.0, which has a digit more before the point
        decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return _grouped(f"{rounded:.{max(decimals, 0)}f}")


def count(value: int | None) -> str:
    """A whole number with all its digits: 18 204."""
    return NONE if value is None else _grouped(str(int(value)))


def quantity(value: float | None) -> str:
    """A number of things that may be a mean: whole numbers with all their digits, others to three figures."""
    if value is None or not math.isfinite(value):
        return NONE
    return count(round(value)) if abs(value - round(value)) < 1e-6 else figures(value)


def si(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A value with an SI prefix: 3.42 GFLOP/s."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return f"0{THIN}{unit}".rstrip(THIN)
    power = math.floor(math.log10(abs(value)) / 3)
    scaled = value / 1000.0**power
    if abs(float(f"{scaled:.{digits - 1}e}")) >= 1000.0:  # 999.9 k is 1.00 M
        power += 1
        scaled = value / 1000.0**power
    power = max(-len(_SMALL) + 1, min(power, len(_LARGE) - 1))
    scaled = value / 1000.0**power
    prefix = _LARGE[power] if power >= 0 else _SMALL[-power]
    return f"{figures(scaled, digits)}{THIN}{prefix}{unit}".rstrip(THIN)


def seconds(value: float | None) -> str:
    """A time span: 12.3 ms below a second, 4.56 s below two minutes, then 3 min 20 s, then 2 h 05 min."""
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) < 120:
        return si(value, "s")
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes}{THIN}min {rest:02d}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60:02d}{THIN}min"


def short_span(value: float | None) -> str:
    """A time span for a narrow column: 12.3 s, 6.08 min, 1.20 h."""
    if value is None or not math.isfinite(value):
        return NONE
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if abs(value) >= 1.5 * size:
            return f"{figures(value / size)}{THIN}{unit}"
    return si(value, "s")


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; below 100 % is never rounded up to 100 %."""
    if share is None or not math.isfinite(share):
        return NONE
    value = share * 100.0
    text = figures(value)
    if 0.0 < value < 100.0 and float(text.replace(THIN, "")) >= 100.0:
        text = "99.9"
    return f"{text}{THIN}%"


def decimal_bytes(value: float | None) -> str:
    """Traffic: 1.23 GB, 1 GB = 1e9 bytes."""
    return si(value, "B")


def weights_read(full: float, coded: float = 0.0, coded_tokens: int = 0) -> str:
    """Bytes of weights that a step reads: "269 MB", or "269 MB (203 MB, coded, up to 8 tokens)" where there is a coded copy."""
    if not coded_tokens:
        return decimal_bytes(full)
    return f"{decimal_bytes(full)} ({decimal_bytes(coded)}, coded, up to {coded_tokens} tokens)"


def binary_bytes(value: float | None) -> str:
    """Size of a memory: 1.50 GiB, 1 GiB = 2**30 bytes."""
    if value is None or not math.isfinite(value):
        return NONE
    step = 0
    scaled = float(value)
    while abs(scaled) >= 1024.0 and step < len(_BINARY) - 1:
        scaled /= 1024.0
        step += 1
    return f"{figures(scaled) if step else count(int(scaled))}{THIN}{_BINARY[step]}"


def rate(value: float | None, what: str) -> str:
    """A rate with an SI prefix: 412 tok/s."""
    return si(value, f"{what}/s")


def tokens(value: int | None) -> str:
    """A number of tokens: 18 204 tok."""
    return NONE if value is None else f"{count(value)}{THIN}tok"


def step_range(first: int, last: int) -> str:
    """The range a figure covers: steps 17 905 to 18 204."""
    return f"step {count(last)}" if first == last else f"steps {count(first)} to {count(last)}"
