"""The implementations of the API port that the contract runs against."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from unbounded.kube.port import Api


@pytest.fixture(params=["memory"])
def api(request: pytest.FixtureRequest) -> Api:
    """Each implementation in turn."""
    return MemoryApi()
