"""Numbers as they are written: three significant figures, SI prefixes, no value that is not there."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.charts import formats
from core.charts.formats import THIN


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (1, "1.00"), (9.996, "10.0"), (0.0123, "0.0123"), (412.4, "412"), (18204, f"18{THIN}200"), (-2.345, "-2.35")],
)
def test_figures(value, expected):
    assert formats.figures(value) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (412, "tok/s", f"412{THIN}tok/s"),
        (3.42e9, "FLOP/s", f"3.42{THIN}GFLOP/s"),
        (999_600, "B", f"1.00{THIN}MB"),
        (0.00192, "s", f"1.92{THIN}ms"),
        (0, "B", f"0{THIN}B"),
        (1e30, "B", f"1{THIN}000{THIN}000{THIN}000{THIN}000{THIN}EB"),
    ],
)
def test_si(value, unit, expected):
    assert formats.si(value, unit) == expected


@pytest.mark.parametrize("write", [formats.figures, formats.si, formats.seconds, formats.percent, formats.binary_bytes])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_missing_value_is_a_dash_and_never_zero(write, value):
    assert write(value) == formats.NONE


def test_bytes_say_which_convention_they_follow():
    assert formats.decimal_bytes(1.5e9) == f"1.50{THIN}GB"
    assert formats.binary_bytes(1.5 * 2**30) == f"1.50{THIN}GiB"
    assert formats.binary_bytes(512) == f"512{THIN}B"


def test_spans_of_time():
    assert formats.seconds(0.0123) == f"12.3{THIN}ms"
    assert formats.seconds(200) == f"3{THIN}min 20{THIN}s"
    assert formats.seconds(7500) == f"2{THIN}h 05{THIN}min"
    assert formats.short_span(365) == f"6.08{THIN}min"


def test_almost_all_is_not_all():
    assert formats.percent(0.99999) == f"99.9{THIN}%"
    assert formats.percent(1.0) == f"100{THIN}%"


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_figures_keep_the_value_to_three_figures(value):
    written = float(formats.figures(value).replace(THIN, ""))
    assert abs(written - value) <= 0.00501 * value


@given(st.floats(min_value=1e-10, max_value=1e17))
def test_si_keeps_the_value_and_shows_at_most_three_digits_before_the_point(value):
    number, _, unit = formats.si(value, "B").rpartition(THIN)
    power = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "m": -3, "µ": -6, "n": -9, "p": -12}[unit.removesuffix("B")]
    assert abs(float(number) * 10.0**power - value) <= 0.00501 * value
    assert len(number.partition(".")[0]) <= 3


def test_weights_read_names_the_coded_copy_only_where_there_is_one():
    assert formats.weights_read(269e6) == f"269{THIN}MB"
    assert formats.weights_read(269e6, 204e6, 8) == f"269{THIN}MB (204{THIN}MB, coded, up to 8 tokens)"
