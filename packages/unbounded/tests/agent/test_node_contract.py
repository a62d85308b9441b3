"""The contract of node images: each clause alone, held against made-up facts; and images/README.md names them all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.paths import ROOT
from unbounded.agent.node.contract import LEAST_SYSTEMD, REQUIREMENTS, ImageFacts, faults

GOOD = ImageFacts(frozenset(one.name for one in REQUIREMENTS), machine=62, systemd=252, sandbox_fault="")
README = ROOT / "images" / "README.md"


def test_an_image_that_keeps_the_contract_has_no_fault() -> None:
    assert faults(GOOD, "amd64") == ()
    assert faults(replace(GOOD, machine=183), "arm64") == ()
    assert faults(replace(GOOD, machine=None, systemd=0), "amd64") == (), "an init that is a script shows neither"


@pytest.mark.parametrize("name", [one.name for one in REQUIREMENTS])
def test_each_file_that_is_missing_is_a_fault_of_its_own(name: str) -> None:
    (fault,) = faults(replace(GOOD, present=GOOD.present - {name}), "amd64")
    assert fault.name == name
    assert fault.message.startswith("no /")


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        (replace(GOOD, machine=183), "architecture", "its systemd is for arm64, but this host is amd64"),
        (replace(GOOD, machine=243), "architecture", "its systemd is for ELF 243, but this host is amd64"),
        (replace(GOOD, systemd=237), "systemd", "version 237 is older than 244"),
        (replace(GOOD, sandbox_fault="no /usr"), "sandbox", "no /usr"),
    ],
)
def test_versions_and_architectures_are_faults_too(facts: ImageFacts, name: str, words: str) -> None:
    (fault,) = faults(facts, "amd64")
    assert (fault.name, fault.message) == (name, words)


def test_the_documented_contract_is_the_one_that_is_checked() -> None:
    text = README.read_text()
    table = text.partition("## The contract of node images")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip().strip("`") for line in table.splitlines() if line.startswith("| `")]
    assert rows == [*(one.name for one in REQUIREMENTS), "architecture", "systemd", "sandbox"]
    assert f"{LEAST_SYSTEMD} or later" in table
