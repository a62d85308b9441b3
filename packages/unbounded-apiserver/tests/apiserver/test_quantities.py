"""Amounts of resources: read, and written in the one canonical way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver import quantity

# As `kubectl set image --local -o json`, which decodes and encodes with Kubernetes' own types, writes them.
CANONICAL = {
    "1": "1",
    "0": "0",
    "0.0": "0",
    "1000m": "1",
    "1500m": "1500m",
    "0.5": "500m",
    "1000": "1k",
    "1e3": "1e3",
    "100k": "100k",
    "1024Mi": "1Gi",
    "1.5Gi": "1536Mi",
    "0.5Ki": "512",
    "0.1Ki": "102400m",
    "2147483648": "2147483648",
    "1E": "1E",
    "-1000m": "-1",
    "1u": "1u",
    "0.0000000001": "1n",
}


@pytest.mark.parametrize(("text", "written"), CANONICAL.items())
def test_an_amount_is_written_as_kubernetes_writes_it(text: str, written: str) -> None:
    assert quantity.canonical(text) == written


@pytest.mark.parametrize("text", ["", "abc", "1Kii", "1 Gi", "1e", "--1", ".", "1ki"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    assert quantity.canonical(text) is None


SUFFIXES = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3", "e-3"])


@pytest.mark.slow
@given(st.integers(-(10**9), 10**9), st.integers(0, 999), SUFFIXES)
def test_the_canonical_form_is_the_same_amount_and_stays_as_it_is(whole: int, fraction: int, suffix: str) -> None:
    text = f"{whole}.{fraction:03}{suffix}"
    written = quantity.canonical(text)
    assert written is not None
    assert quantity.parse(written) == quantity.parse(text)
    assert quantity.canonical(written) == written
