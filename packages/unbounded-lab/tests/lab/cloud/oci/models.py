"""The models of Oracle's SDK as annotations: `tests.lab.cloud.strict` holds answers against them. The SDK itself lets
unknown fields, wrong types and missing ones pass.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache, reduce
from importlib import import_module
from operator import or_
from types import ModuleType
from typing import Any, Final

from tests.lab.cloud.strict import Fields

SIMPLE: Final[Mapping[str, Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "datetime": datetime,
    "object": Any,
}
NULLABLE: Final = frozenset(
    {("Image", "compartment_id"), ("InstanceAvailabilityConfig", "is_live_migration_preferred")}
)
"""Fields that the real service sends as null: of platform images, and where nothing was chosen."""


def annotation(text: str, models: ModuleType) -> Any:
    """A type as the SDK writes it (`list[Instance]`, `dict(str, str)`) as an annotation."""
    if found := re.fullmatch(r"list\[(.+)\]", text):
        return list[annotation(found[1], models)]  # type: ignore[misc]
    if found := re.fullmatch(r"dict\(str, (.+)\)", text):
        return dict[str, annotation(found[1], models)]  # type: ignore[misc]
    if text in SIMPLE:
        return SIMPLE[text]
    model = getattr(models, text)
    kinds = [each for each in vars(models).values() if inspect.isclass(each) and model in each.__bases__]
    return reduce(or_, kinds) if kinds else model  # one of those that the discriminating field may name


@cache
def fields_of(kind: Any) -> Fields | None:
    """The fields of one of the SDK's models."""
    if not (inspect.isclass(kind) and kind.__module__.startswith("oci.")):
        return None
    blank: Any = kind()
    models = import_module(kind.__module__.rpartition(".")[0])
    return {
        wire: (_field(kind, name, blank, models), "[Required]" in (inspect.getdoc(getattr(kind, name)) or ""))
        for name, wire in blank.attribute_map.items()
    }


def _field(kind: Any, name: str, blank: Any, models: ModuleType) -> Any:
    text = blank.swagger_types[name]
    labels = {label: value for each in reversed(kind.__mro__) for label, value in vars(each).items()}
    values = [value for label, value in labels.items() if re.fullmatch(f"{name.upper()}_[A-Z0-9_]+", label)]
    told = getattr(blank, name)  # the discriminator of this model
    if told is not None:
        return _one_of(name, [told], label="told")
    if text in ("str", "list[str]") and values:
        allowed = _one_of(name, values)
        return allowed if text == "str" else list[allowed]  # type: ignore[valid-type]
    wanted = annotation(text, models)
    return wanted | None if (kind.__name__, name) in NULLABLE else wanted


def _one_of(name: str, values: list[str], *, label: str | None = None) -> Any:
    return Enum(name, {label or value: value for value in values})
