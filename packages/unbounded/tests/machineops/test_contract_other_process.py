"""Faults that the contract finds with another process: providers with state that only one process has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.machineops.conftest import EXAMPLE
from unbounded.machineops.provider import Refusal
from unbounded.machineops.testing import ProviderContract

TEST = "test_another_process_continues_a_requested_call"
OURS = ("unbounded_process_provider", "tests.machineops.forgetful", "contract_of_the_sample")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    yield importlib.import_module("tests.machineops.forgetful")
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, forgetful: ModuleType) -> Iterator[Any]:
    """The subject of the sample's own tests."""
    spec = importlib.util.spec_from_file_location("contract_of_the_sample", EXAMPLE / "tests/test_contract.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.Folder(tmp_path)
    yield found
    for path in found.there():
        module.machines.remove(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("HandlesInTheModule", "KeyError"),
        ("LocalTime", "another process cannot follow Restart"),
        ("LooksInTheModule", "Stopped.* is not seen"),
        ("MadeInTheModule", "is left of an earlier replacement"),
        ("Unpicklable", "`anew = None` in the subject leaves this out"),
    ],
)
def test_the_contract_finds_what_only_one_process_knows(
    folder: Any, forgetful: ModuleType, fault: str, told: str
) -> None:
    contract = ProviderContract()
    contract.within_s = 5.0  # type: ignore[misc]
    folder.provider = getattr(forgetful, fault)()
    with pytest.raises((AssertionError, Refusal, pytest.fail.Exception), match=told):
        getattr(contract, TEST)(folder)


@pytest.mark.slow
def test_a_subject_can_say_how_another_process_makes_the_provider(folder: Any, forgetful: ModuleType) -> None:
    folder.provider = forgetful.Unpicklable()
    folder.anew = forgetful.Unpicklable
    getattr(ProviderContract(), TEST)(folder)
