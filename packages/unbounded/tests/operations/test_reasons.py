"""Reasons are an interface: each one has a meaning in the reference, and is one that the API accepts."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from unbounded.api.fields import CONDITION_REASON
from unbounded.metalman import reasons as metalman_reasons
from unbounded.operations import reasons


@pytest.mark.parametrize("module", [reasons, metalman_reasons])
def test_each_reason_says_what_it_means(module: ModuleType) -> None:
    texts = {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    names = {value for name, value in texts.items() if not name.endswith("_TEXT")}
    assert set(module.MEANING) == names
    assert all(re.match(CONDITION_REASON, name) for name in names)
