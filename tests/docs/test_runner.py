"""Parsing of a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.runner import Shell, blocks, commands, follow, plain, plugin_calls, unexcused, unprinted

DOCUMENT = """\
# Title

```
echo one
echo two \\
  three
```

```text
exit 1
```

## Below

```
cat <<'EOF'
four
EOF
for number in 5 6; do
  echo $number
done
false || echo seven
```
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.md"
    path.write_text(DOCUMENT)
    return path


def test_only_code_without_a_language_is_run(document: Path) -> None:
    assert [(one.heading, one.line) for one in blocks(document)] == [("Title", 4), ("Below", 16)]
    assert [one.code for one in blocks(document, "text")] == ["exit 1\n"]


def test_output_that_was_not_printed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "document.md"
    path.write_text("```text\ncopied 12 objects (5 KiB)\n…\n10:00:00 a: InProgress · On\na long …\nnever\n```\n")
    assert unprinted(path, "$ copy\ncopied 7 objects (80 KiB)\na long line\n") == ["never"]
    assert unprinted(path, "copied 7 objects (80 MiB)\na long line\nnever\n") == ["copied 12 objects (5 KiB)"]


def test_what_continues_is_one_command(document: Path) -> None:
    assert [len(commands(one.code)) for one in blocks(document)] == [2, 3]


async def test_commands_run_in_their_order_with_what_is_different_replaced(document: Path, tmp_path: Path) -> None:
    staged: list[str] = []

    async def stage() -> None:
        staged.append("Below")

    said = await follow(document, Shell(tmp_path, tmp_path / "none", {"seven": "eight"}), {"Below": stage})
    printed = [line for line in said.splitlines() if not line.startswith(("$", " ", "cat", "EOF", "for", "done"))]
    assert printed == ["one", "two three", "four", "four", "5", "6", "eight"]
    assert staged == ["Below"]


async def test_a_command_that_fails_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wrong.md"
    path.write_text("# Wrong\n\n```\necho before\nls /does/not/exist\n```\n")
    with pytest.raises(AssertionError, match="No such file") as failed:
        await follow(path, Shell(tmp_path, tmp_path / "none", {}))
    assert "wrong.md:4 (Wrong)" in failed.value.__notes__[0]


async def test_a_stage_that_no_heading_has_is_an_error(document: Path, tmp_path: Path) -> None:
    async def never() -> None: ...

    with pytest.raises(AssertionError, match="no commands below"):
        await follow(document, Shell(tmp_path, tmp_path / "none", {}), {"Elsewhere": never})


async def test_a_command_that_does_not_end_is_started_by_the_test(document: Path, tmp_path: Path) -> None:
    started: list[str] = []

    async def two() -> None:
        started.append("two")

    shell = Shell(tmp_path, tmp_path / "none", {})
    said = await follow(document, shell, None, {"echo two three": two})
    assert "two three\ntwo three" not in said
    assert started == ["two"]
    with pytest.raises(AssertionError, match="no commands"):
        await follow(document, shell, None, {"echo ten": two})


@pytest.mark.parametrize(
    ("below", "excused"),
    [
        ("(CI does not run this block: it has none. [a test](../tests/docs/runner.py) does.)", True),
        ("(CI does not run this block: it has none.\n[a test](../tests/docs/runner.py) does.)", True),
        ("(CI does not run this block.)", False),
        ("(CI does not run this block: [a test](../tests/docs/no_such.py) does.)", False),
        ("[a test](../tests/docs/runner.py) does it.", False),
        ("", False),
    ],
)
def test_a_block_that_is_not_run_names_the_test_that_covers_it(below: str, excused: bool, tmp_path: Path) -> None:
    (tmp_path / "tests" / "docs").mkdir(parents=True)
    (tmp_path / "tests" / "docs" / "runner.py").touch()
    (tmp_path / "pages").mkdir()
    page = tmp_path / "pages" / "page.md"
    page.write_text(f"# Page\n\n```sh\nexit 1\n```\n\n{below}\n\nMore.\n")
    assert unexcused(page) == ([] if excused else ["page.md:4"])


def test_a_command_is_known_without_its_comment_and_its_lines() -> None:
    assert plain("make run      # a control plane\n") == "make run"
    assert plain("one \\\n  --two # three\n") == "one --two # three"
    assert plain("# stop it first\n") == "# stop it first"


def test_calls_of_the_plugin_are_found_wherever_they_stand() -> None:
    code = (
        "kubectl unbounded why a >out\nfor n in 1; do\n  kubectl unbounded machine register --host 10.0.0.$n \\\n"
        "    --site a\ndone\nunbounded backup --data data x.backup\nsudo -E kubectl unbounded site serve-pxe --site a\n"
        "kubectl get machines\n"
    )
    assert plugin_calls(code) == [
        "kubectl unbounded why a",
        "kubectl unbounded machine register --host 10.0.0.$n --site a",
        "unbounded backup --data data x.backup",
        "kubectl unbounded site serve-pxe --site a",
    ]
