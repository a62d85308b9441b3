"""Objects survive encoding and decoding, and what this version does not know is skipped, not refused."""

import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbounded.api.crd import CONTAINER_CLOUD_DEFINITIONS, DEFINITIONS
from unbounded.api.fields import ApiStruct
from unbounded.api.meta import Object

KINDS: list[type[Object]] = [definition.kind.type for definition in (*DEFINITIONS, *CONTAINER_CLOUD_DEFINITIONS)]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return values(arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values(arguments[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, ApiStruct):
        return st.deferred(lambda: structs(hint))
    plain = {
        str: st.text(max_size=8),
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        types.NoneType: st.none(),
        Any: st.dictionaries(st.text(max_size=5), st.booleans() | st.text(max_size=5), max_size=2),
    }
    return plain[hint]


def structs(kind: type[ApiStruct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in msgspec.structs.fields(kind)})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_an_object_is_what_it_was_after_encoding_and_decoding(kind: type[Object], data: st.DataObject) -> None:
    made = data.draw(structs(kind))
    assert msgspec.json.decode(msgspec.json.encode(made), type=kind) == made


def test_unknown_fields_and_values_out_of_the_limits_are_read() -> None:
    machine = {
        "metadata": {"name": "W_1", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"provider": "", "new": {"a": 1}, "pxe": {"image": "", "architecture": "riscv64"}},
        "status": {"phase": "Hibernating"},
    }
    read = msgspec.json.decode(msgspec.json.encode(machine), type=DEFINITIONS[0].kind.type)
    assert read.spec.pxe.architecture == "riscv64"
    assert read.status.phase == "Hibernating"
