"""Suggestions for misspelt words."""

from __future__ import annotations

import pytest

from unbounded.operations.executor_selection import nearest

KNOWN = ("AzureVM", "LocalProcess", "OCIInstance")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("azurevm", "AzureVM"),
        ("az/AzureVM", "AzureVM"),
        ("Azure", "AzureVM"),
        ("AzrueVM", "AzureVM"),
        ("oci", "OCIInstance"),
        ("oci-instance", "OCIInstance"),
        ("OCIIstance", "OCIInstance"),
        ("Acme", ""),
        ("vm", ""),
        ("", ""),
    ],
)
def test_the_nearest_of_what_there_is(text: str, meant: str) -> None:
    assert nearest(text, KNOWN) == meant
