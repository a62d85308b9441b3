"""Field numbers of the protobuf form of built-in types, from the generated.proto of Kubernetes 1.36.

    Volume: name=1 *VolumeSource=2

A line begins a type; `name=number` is a field by its name in JSON. The shapes have the types of fields. A `*` marks a
message whose fields are the type's own in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from unbounded_apiserver.field_numbers.core import CORE
from unbounded_apiserver.field_numbers.groups import GROUPS
from unbounded_apiserver.notation import CORE as CORE_PACKAGE

INLINE: Final = "*"
Numbers: TypeAlias = Mapping[int, str]  # the name of a field, or `*` and the name of a type


def _read(package: str, text: str) -> Iterator[tuple[tuple[str, str], Numbers]]:
    for line in text.replace("\n  ", " ").split("\n"):
        name, _, given = line.partition(":")
        if name:
            pairs = (pair.rpartition("=") for pair in given.split())
            yield (package, name), {int(number): field for field, _, number in pairs}


NUMBERS: Final[Mapping[tuple[str, str], Numbers]] = dict(
    row for package, text in {CORE_PACKAGE: CORE, **GROUPS}.items() for row in _read(package, text)
)
