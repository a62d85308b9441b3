"""Names that packages of other authors use keep their form while the version of the provider API stays."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from unbounded.machineops import provider

RECORD: Final = Path(__file__).with_name("provider_api_v1.txt")


def described() -> Iterator[str]:
    """Describe each public name: its parameters, its members, and those of its methods."""
    for name in sorted(set(provider.__all__)):
        thing = getattr(provider, name)
        if inspect.isclass(thing) and issubclass(thing, Enum):
            yield from (f"{name}.{member.name}" for member in thing)  # further members change nothing for a provider
        elif inspect.isclass(thing):
            is_protocol = getattr(thing, "_is_protocol", False)
            yield name if is_protocol or "__init__" not in vars(thing) else f"{name}{_parameters(thing)}"
            yield from _members(name, thing)
        else:
            yield f"{name}{_parameters(thing)}" if callable(thing) else name


def _members(name: str, one: type) -> Iterator[str]:
    for member, value in sorted(vars(one).items()):
        if inspect.isfunction(value) and not member.startswith("_"):
            yield f"{name}.{member}{_parameters(value)}"
        elif isinstance(value, property):
            yield f"{name}.{member}"


def _parameters(function: object) -> str:
    assert callable(function)
    return f"({', '.join(inspect.signature(function).parameters)})"


def test_no_name_of_the_version_is_gone() -> None:
    assert provider.API_VERSION == "v1", f"record {RECORD.name} anew, under the name of the version"
    gone = set(RECORD.read_text().splitlines()) - set(described())
    assert not gone, "keep these names and parameters, or change API_VERSION"
