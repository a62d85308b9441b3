"""Answers held against the models of Oracle's SDK: each field is known there and of its type, and none that is required
is missing. The SDK itself would let all of that pass.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import ModuleType
from typing import Any, Final

PRIMITIVES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
}
NULLABLE: Final = frozenset({("Image", "compartmentId"), ("InstanceAvailabilityConfig", "isLiveMigrationPreferred")})
"""Fields that the real service sends as null: of platform images, and where nothing was chosen."""


def faults(body: Any, kind: str, models: ModuleType, where: str = "$") -> Iterator[str]:
    """What is wrong with an answer; nothing, if it is sound. Its type is named as in the SDK: `list[Instance]`."""
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        for number, each in enumerate(body):
            yield from faults(each, found[1], models, f"{where}[{number}]")
    elif found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for key, each in body.items():
            yield from faults(each, found[1], models, f"{where}.{key}")
    elif kind in PRIMITIVES:
        if not isinstance(body, PRIMITIVES[kind]) or (isinstance(body, bool) and kind not in ("bool", "object")):
            yield f"{where}: {body!r} is no {kind}"
    elif kind == "datetime":
        if not _is_time(body):
            yield f"{where}: {body!r} is no time"
    else:
        yield from _model_faults(body, getattr(models, kind), models, where)


def _is_time(value: Any) -> bool:
    try:
        return str(value).endswith("Z") and bool(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _model_faults(body: Any, model: Any, models: ModuleType, where: str) -> Iterator[str]:
    if not isinstance(body, dict):
        yield f"{where}: {body!r} is no {model.__name__}"
        return
    if hasattr(model, "get_subtype"):
        model = getattr(models, model.get_subtype(body))
    blank = model()
    names = {wire: name for name, wire in blank.attribute_map.items()}
    for wire in body.keys() - names.keys():
        yield f"{where}.{wire}: not known to {model.__name__}"
    for wire, name in names.items():
        value, nullable = body.get(wire), _is_nullable(model, wire)
        if wire in body and (value is not None or not nullable):
            yield from _value_faults(value, model, blank.swagger_types[name], name, models, f"{where}.{wire}")
        elif wire not in body and "[Required]" in (inspect.getdoc(getattr(model, name)) or ""):
            yield f"{where}.{wire}: required by {model.__name__}, and missing"


def _is_nullable(model: Any, wire: str) -> bool:
    return (model.__name__, wire) in NULLABLE


def _value_faults(value: Any, model: Any, kind: str, name: str, models: ModuleType, where: str) -> Iterator[str]:
    if value is None:
        yield f"{where}: null"
        return
    allowed = [each for label, each in vars(model).items() if label.startswith(f"{name.upper()}_")]
    if kind == "str" and allowed and value not in allowed:
        yield f"{where}: {value!r} is none of {allowed}"
    yield from faults(value, kind, models, where)
