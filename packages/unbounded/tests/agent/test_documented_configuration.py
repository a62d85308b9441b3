"""The configuration in docs/agent.md is the one that the agent reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tests.support.authority import BASE64
from tests.support.paths import ROOT
from unbounded.agent.settings import KEYS
from unbounded.join.agent_config import AgentConfig, Downloads
from unbounded.join.agent_config_file import read_agent_config, unknown_keys

DOCUMENT: Final = (ROOT / "docs" / "agent.md").read_text()
SOURCES: Final = [field.encode_name for field in msgspec.structs.fields(Downloads)]


def documented() -> set[str]:
    """Return the keys in the first column of the table; NAME represents each source."""
    table = re.search(r"^\| key \|.*?\n\n", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert table is not None
    first = [row.split("|")[1] for row in table[0].splitlines()[2:] if row]
    keys = [key for column in first for key in re.findall("`([^`]+)`", column)]
    assert len(keys) == len(set(keys)), "a key stands there twice"
    return {key.replace("NAME", name) for key in keys for name in (SOURCES if "NAME" in key else [""])}


def leaves(kind: Any, above: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from leaves(field.type, f"{above}{field.encode_name}.")
        else:
            yield f"{above}{field.encode_name}"


def test_its_table_has_the_keys_that_are_read_and_no_others() -> None:
    assert documented() == set(leaves(AgentConfig))


def test_its_smallest_configuration_is_one() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    content = text.replace("LS0t…", BASE64).encode()
    assert read_agent_config(content, "docs/agent.md").machine_name == "worker-01"
    assert unknown_keys(content) == ()


def test_variables_stand_for_keys_that_there_are() -> None:
    assert {*KEYS.values()} <= set(leaves(AgentConfig))
    assert [name for name in KEYS if f"`{name}`" not in DOCUMENT] == []
