"""Every command of ours in a document exists, with existing flags.

`test_guides.py`, `test_readme.py` and `packages/unbounded/tests/agent/e2e` run them. The page has a note on each block
that CI cannot run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.runner import DOCS, NOT_RUN, blocks, plugin_calls, unexcused
from tests.support.paths import ROOT
from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.parsing import commands

DOCUMENTS: Final = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
LINKED: Final = (*DOCUMENTS, *sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*/*.md")), ROOT / "images" / "README.md")
PLUGIN: Final = "kubectl unbounded "
FINGERPRINT: Final = f"SHA256:{'A' * 43}"
READ_BY_SHELL: Final = re.compile(r'(?<=--fingerprint )"\$\([^)]*\)"')  # another command prints it


def calls(document: Path) -> Iterator[str]:
    for block in (*blocks(document), *blocks(document, NOT_RUN)):
        code = READ_BY_SHELL.sub(FINGERPRINT, block.code)
        yield from (one.removeprefix(PLUGIN) for one in plugin_calls(code) if one.startswith(PLUGIN))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_understood(document: Path) -> None:
    for call in calls(document):
        words = shlex.split(call)
        while words:
            try:
                command, args = parsing.parse(commands(), words, program=PLUGIN.strip(), others={})
            except SystemExit:
                pytest.fail(f"{document.name}: {PLUGIN}{call}")
            words = words[1:] if command.path == ("plan",) and not args.filename else []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_no_command_holds_none(document: Path) -> None:
    assert not [one for block in blocks(document, "text") for one in plugin_calls(block.code) if one.startswith(PLUGIN)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_ci_does_not_run_says_so(document: Path) -> None:
    assert unexcused(document) == []


def test_all_guides_have_commands() -> None:
    guides = ("quickstart", "ssh", "bare-metal", "operations", "upgrade", "reset", "troubleshooting")
    assert all(list(calls(DOCS / f"{name}.md")) for name in guides)


def test_links_lead_to_files_and_headings() -> None:
    for document in LINKED:
        for target, heading in _links(document):
            path = document.parent / target if target else document
            assert path.exists(), f"{document.name}: {target}"
            if heading:
                assert heading in _anchors(path), f"{document.name}: {target}#{heading}"


MACHINE_COMMAND: Final = re.compile(
    r"(?:kubectl(?: -\S+(?: [^-\s]\S*)?)*\s|[\"'])"
    r"(?:annotate|delete|describe|edit|events --for|explain|get|label|patch|wait)[ \n]"
    r"(?:\w+,)*machines?(?=[\s/.,`'\"\\]|$)(?!\.unbounded-cloud)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kubectl get machines", True),
        ("kubectl --kubeconfig data/kubeconfig get mop,machines -o wide", True),
        ("`kubectl describe\nmachine rack1-01`", True),
        ('("explain machine.spec.pxe", "the fields")', True),
        ("kubectl -n x events --for machine/m1", True),
        ("kubectl get mach,mop", False),
        ("kubectl get machines.unbounded-cloud.io", False),
        ("kubectl get machineoperations", False),
        ("kubectl unbounded machine reboot m1", False),
    ],
)
def test_commands_that_name_machines_of_any_group_are_found(text: str, expected: bool) -> None:
    assert bool(MACHINE_COMMAND.search(text)) is expected


def test_commands_use_the_short_name_that_only_our_machines_have() -> None:
    """Beside Cluster API, `machines` means another group's objects."""
    sources = (*(ROOT / "packages").glob("*/src/**/*.py"), *(ROOT / "examples").glob("**/*.*"))
    texts = {path: path.read_text() for path in (*LINKED, *sources) if path.suffix in {".py", ".md", ".yaml"}}
    assert [
        f"{path}: {match.group()}" for path, text in texts.items() for match in MACHINE_COMMAND.finditer(text)
    ] == []


def _links(document: Path) -> Iterator[tuple[str, str]]:
    for part in document.read_text().split("](")[1:]:
        target, _, heading = part.partition(")")[0].partition("#")
        if "://" not in target:
            yield target, heading


def _anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub and static site generators give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
