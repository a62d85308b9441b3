"""Templates give what Go gives: each recorded case, its output and its errors to the letter."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.gotemplate.machines import FUNCTIONS, typed
from tests.support.paths import GOLDENS
from unbounded.gotemplate.template import Template
from unbounded.gotemplate.types import ParseError, RenderError

RECORDED: Final[list[dict[str, Any]]] = json.loads((GOLDENS / "gotemplates.json").read_text())["cases"]

OURS: Final = {
    "recursion infinite": (
        "exceeded maximum template depth (100000)",
        "exceeded maximum template depth (100)",
        "a rendering is bounded; no template for a machine nests a hundred others",
    ),
}


def _option(case: dict[str, Any]) -> str:
    return str(case.get("option", "missingkey=default")).removeprefix("missingkey=")


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_a_template_gives_what_go_gives(case: dict[str, Any]) -> None:
    expected: str | None = case.get("error")
    if case["name"] in OURS:
        theirs, ours, _ = OURS[case["name"]]
        assert expected is not None
        assert theirs in expected
        expected = expected.replace(theirs, ours)
    written: list[str] = []
    found = None
    try:
        left, right = case.get("delims", ("{{", "}}"))
        template = Template("t", case["template"], FUNCTIONS, delimiters=(left, right), missing_key=_option(case))
        written.extend(template.parts(typed(case["data"], case["typed"])))
    except ParseError as error:
        assert case["stage"] == "parse"
        found = str(error)
    except RenderError as error:
        assert case["stage"] == "execute"
        found = str(error)
    assert found == expected
    if expected is None:
        assert "".join(written) == case["result"]
    elif case["stage"] == "execute":
        assert "".join(written) == case["output_before_error"]
