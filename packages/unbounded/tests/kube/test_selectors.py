"""Selectors: text to predicate, and back from the API's form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.meta import LabelSelector, LabelSelectorRequirement
from unbounded.kube.selectors import SelectorError, field_terms, field_value, label_test, selector_of, selector_text

LABELS = {"site": "lab", "unbounded-cloud.io/rack": "r1", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("site=lab", True),
        ("site==lab", True),
        ("site = lab", True),
        ("site!=lab", False),
        ("missing!=x", True),
        ("missing=x", False),
        ("empty=", True),
        ("unbounded-cloud.io/rack=r1,site=lab", True),
        ("unbounded-cloud.io/rack=r1,site=other", False),
        ("site in (lab,other)", True),
        ("site in (a, b)", False),
        ("site notin (a,b)", True),
        ("missing notin (a)", True),
        ("missing in (a)", False),
        ("site", True),
        ("!site", False),
        ("!missing", True),
        ("site in (lab,x),!missing,empty", True),
    ],
)
def test_label_selectors(text: str, matches: bool) -> None:
    assert label_test(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["a b", "=x", "a in b", "a in (b", "a,,b", "-a=b", "a=b c"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        label_test(text)


def test_field_selectors_read_dotted_paths() -> None:
    body = {"metadata": {"name": "a"}, "spec": {"on": True, "count": 3}, "status": None}
    assert field_terms("metadata.name=a, spec.on==true,status.phase!=") == (
        ("metadata.name", True, "a"),
        ("spec.on", True, "true"),
        ("status.phase", False, ""),
    )
    assert [field_value(body, path) for path in ("metadata.name", "spec.on", "spec.count", "status.phase", "x.y")] == [
        "a",
        "true",
        "3",
        "",
        "",
    ]
    with pytest.raises(SelectorError):
        field_terms("metadata.name")


def test_an_objects_selector_and_its_text_agree() -> None:
    selector = LabelSelector(
        match_labels={"site": "lab"},
        match_expressions=(
            LabelSelectorRequirement(key="unbounded-cloud.io/rack", operator="In", values=("r1", "r2")),
            LabelSelectorRequirement(key="gone", operator="DoesNotExist"),
            LabelSelectorRequirement(key="empty", operator="Exists"),
            LabelSelectorRequirement(key="site", operator="NotIn", values=("x",)),
        ),
    )
    text = selector_text(selector)
    assert text == "site=lab,unbounded-cloud.io/rack in (r1,r2),!gone,empty,site notin (x)"
    assert label_test(text)(LABELS)
    assert not label_test(text)({**LABELS, "gone": "1"})
    with pytest.raises(SelectorError, match="In"):
        selector_text(LabelSelector(match_expressions=(LabelSelectorRequirement(key="a", operator="In"),)))


_PARTS = st.sampled_from(
    ["a=b", "a==b", "a!=b", "a in (b,c)", "a in (b)", "a notin (b)", "a", "!a", "a=", "b=c", "b in (c,d)", "a=c", "!b"]
)
_LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "b", "c", "d"]))


@pytest.mark.slow
@given(st.lists(_PARTS, min_size=1, max_size=5).map(",".join), _LABELS)
def test_a_text_and_the_object_that_it_becomes_select_the_same(text: str, labels: dict[str, str]) -> None:
    assert label_test(selector_text(selector_of(text)))(labels) is label_test(text)(labels)


@pytest.mark.parametrize("text", ["", "a b", "a in (b", "a,,b"])
def test_no_object_is_made_of_what_is_no_selector(text: str) -> None:
    with pytest.raises(SelectorError):
        selector_of(text)
