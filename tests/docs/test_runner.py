"""What a document is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.runner import Elsewhere, Shell, blocks, commands, follow, plain, plugin_calls

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


async def test_what_cannot_be_run_has_something_in_its_place(document: Path, tmp_path: Path) -> None:
    done: list[str] = []

    async def two() -> None:
        done.append("two")

    shell = Shell(tmp_path, tmp_path / "none", {})
    here = Elsewhere("tests/docs/test_runner.py")
    said = await follow(
        document, shell, None, {"echo one": "echo nine", "echo two three": two, "cat <<'EOF' four EOF": here}
    )
    assert "$ echo one\nnine\n" in said
    assert "four\nfour" not in said
    assert done == ["two"]
    with pytest.raises(AssertionError, match="no commands"):
        await follow(document, shell, None, {"echo ten": "echo nine"})
    with pytest.raises(AssertionError, match="no_such"):
        Elsewhere("tests/docs/no_such.py")


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
