"""No template keeps the server busy, fills its memory, or ends in anything but an error of its own."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.gotemplate import ParseError, RenderError, Template, TemplateError, TemplateLimits
from unbounded.gotemplate.literals import quote, unquote

SMALL = TemplateLimits(steps=1000, letters=2000, depth=10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{range 1000000000}}{{end}}", "more than 1000 steps"),
        ("{{range 100}}{{range 100}}x{{end}}{{end}}", "output is longer than 2000 characters|more than 1000 steps"),
        ("{{range 999}}{{range $i := 1000}}{{continue}}{{end}}{{end}}", "more than 1000 steps"),
        ('{{define "a"}}{{template "b"}}{{end}}{{define "b"}}{{template "a"}}{{end}}{{template "a"}}', r"depth \(10\)"),
        ('{{$s := "ab"}}{{range 100}}{{$s = print $s $s}}{{end}}', "string is longer than 2000 characters"),
        ('{{$s := "ab"}}{{range 100}}{{$s = html $s $s}}{{end}}', "string is longer than 2000 characters"),
        ('{{printf "%999999d" 1}}', "width or precision is above 10000"),
        ('{{printf "%.*f" 999999 1.5}}', "width or precision is above 10000"),
        ('{{printf "%9999d" 1}}', "string is longer than 2000 characters"),
        ('{{$s := printf "%1900s" "é"}}{{range 900}}{{if len $s}}{{end}}{{end}}', "more than 1000 steps"),
        ("{{range 900}}abc{{end}}", "output is longer than 2000 characters"),
    ],
)
def test_a_template_that_asks_for_too_much_is_stopped(text: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        Template("t", text, limits=SMALL).render(None)


@pytest.mark.parametrize("function", ["print", "println", "html", "js", "urlquery", "printf"])
def test_many_long_arguments_are_refused_before_they_are_joined(function: str) -> None:
    call = f'printf "{"%9999d" * 1000}"{" 1" * 1000}' if function == "printf" else f"{function}{' $s' * 1000}"
    with pytest.raises(RenderError, match="result is longer than 4194304 characters"):
        Template("t", '{{$s := printf "%9999d" 1}}{{' + call + "}}").render(None)


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["(", "{{if true}}", "{{range 1}}", "{{with 1}}"])
def test_deep_nesting_is_refused_when_the_template_is_parsed(opened: str) -> None:
    text = "{{" + opened * 5000 if opened == "(" else opened * 5000
    with pytest.raises(ParseError, match="max expression depth exceeded"):
        Template("t", text)


@pytest.mark.slow
def test_a_long_chain_of_else_if_is_refused_and_not_a_crash() -> None:
    with pytest.raises(ParseError, match="max expression depth exceeded"):
        Template("t", "{{if 0}}" + "{{else if 0}}" * 5000 + "{{end}}")


def test_the_deepest_template_that_parses_also_renders() -> None:
    text = "{{if true}}" * 199 + "x" + "{{end}}" * 199
    assert Template("t", text).render(None) == "x"


WORDS: Final = (
    "{{ }} {{- -}} if else end range with define template block \"x\" `r` $x $ := = . .A .B.C ( ) 1 -1 1.5 'a' "
    'nil true | print len index slice printf eq lt and call html "%d" "%[2]*.3v" /* */ break continue , é'
)
PIECES = st.sampled_from([*WORDS.split(), " ", "\n"])
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ABC"), inner, max_size=3),
    max_leaves=8,
)


def said_by_a_template(text: str, data: object) -> bool:
    """Return whether the template fails with an error that names it. Any other error passes through."""
    try:
        Template("t", text, limits=SMALL).render(data)
    except TemplateError as error:
        return str(error).startswith("template: t:")
    return True


@pytest.mark.slow
@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=40), DATA)
def test_any_text_over_any_data_gives_output_or_an_error_of_templates(text: str, data: object) -> None:
    assert said_by_a_template(text, data)


ACTIONS = st.lists(PIECES, min_size=1, max_size=6).map(lambda parts: "{{" + " ".join(parts) + "}}")


@pytest.mark.slow
@given(st.lists(ACTIONS | st.just("text"), max_size=6).map("".join), DATA)
def test_actions_over_any_data_give_output_or_an_error_of_templates(text: str, data: object) -> None:
    assert said_by_a_template(text, data)


@pytest.mark.slow
@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_quoted_text_reads_back(text: str) -> None:
    assert unquote(quote(text)) == text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


@pytest.mark.slow
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_floats_read_back(number: float) -> None:
    for verb in ("%v", "%e", "%g", "%x"):
        precise = verb if verb != "%e" else "%.17e"
        text = Template("t", f'{{{{printf "{precise}" .}}}}').render(number)
        assert (float.fromhex(text) if verb == "%x" else float(text)) == number
