"""printf as Go's package fmt: flags, widths and verbs that the recordings do not show."""

from __future__ import annotations

import pytest

from unbounded.gotemplate.fmt import sprintf
from unbounded.gotemplate.types import of


@pytest.mark.parametrize(
    ("verb", "value", "expected"),
    [
        ("%.5s", "日本語日本語", "日本語日本"),
        ("%20.8d", 1234, "            00001234"),
        ("%-#20.8x", 0x1234ABC, "0x01234abc          "),
        ("%.0d", 0, ""),
        ("%6.0d", 0, "      "),
        ("%06.0d", 0, "      "),
        ("%020f", -1.0, "-000000000001.000000"),
        ("%20f", float("inf"), "                +Inf"),
        ("%v", float("-inf"), "-Inf"),
        ("% f", float("inf"), " Inf"),
        ("%+.3e", 0.0, "+0.000e+00"),
        ("% .3E", -1.0, "-1.000E+00"),
        ("%+.3x", 1.0, "+0x1.000p+00"),
        ("%b", 1.0, "4503599627370496p-52"),
        ("%#g", 1.0, "1.00000"),
        ("%#g", 1000000.0, "1.00000e+06"),
        ("%#.0f", 123.0, "123."),
        ("%.0f", 2.5, "2"),
        ("%g", 5.960464477539063e-08, "5.960464477539063e-08"),
        ("%v", -0.0, "-0"),
        ("%f", float("nan"), "NaN"),
        ("%#U", 0x2318, "U+2318 '⌘'"),
        ("%08q", "abc", '000"abc"'),
        ("%#q", "abc", "`abc`"),
        ("%+q", "☺", '"\\u263a"'),
        ("%s", b"abc", "abc"),
        ("%d", b"abc", "[97 98 99]"),
        ("%x", b"\x00\xff", "00ff"),
        ("%5t", True, " true"),
        ("%v", [None, 1, "a"], "[<nil> 1 a]"),
        ("%v", {"b": 1, "a": [True]}, "map[a:[true] b:1]"),
        ("%c", -1, "\ufffd"),
        ("%!", 1, "%!!(int=1)"),
    ],
)
def test_a_verb_formats_as_in_go(verb: str, value: object, expected: str) -> None:
    assert sprintf(verb, [of(value)]) == expected
