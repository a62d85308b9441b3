"""The check of names and docstrings finds what it is for, and its list of exceptions can only shrink."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from scripts.language import faults, raised_in, shared_names, trees


def parsed(**modules: str) -> dict[str, ast.Module]:
    return {f"{name}.py": ast.parse(text) for name, text in modules.items()}


@pytest.mark.parametrize(
    "text",
    [
        '"""What it does."""',
        'class Disk:\n    """Where data is."""',
        'class Disk:\n    def size(self):\n        """How large it is."""',
        'async def read():\n    """Whether it is there."""',
    ],
)
def test_a_docstring_that_begins_with_a_question_word_is_refused(text: str) -> None:
    assert len(faults(parsed(a=text), frozenset())) == 1


@pytest.mark.parametrize("first", ["Return whether it is there.", "Whatever happens, stop.", "Howitzer.", ""])
def test_other_docstrings_pass(first: str) -> None:
    assert not faults(parsed(a=f'def read():\n    """{first}"""'), frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "Read it. Raises Absent.",
        "Read it. Raises ValueError, or Absent where it is gone.",
        "Read it.\n\n    Raises:\n        Absent: it is gone.\n    ",
        "Read it.\n\n    Args:\n        a: b.\n    Raises:\n        ValueError\n        Present, Absent\n    ",
    ],
)
def test_an_error_that_does_not_exist_is_refused(text: str) -> None:
    present = "class Present(Exception): ...\n"
    (fault,) = faults(parsed(a=f'{present}def read(a):\n    """{text}"""'), frozenset())
    assert fault == "a.py:2: the docstring says that it raises Absent, which does not exist"
    assert not faults(parsed(a=f'{present}def read(a):\n    """{text}"""', b="from x import y as Absent"), frozenset())


def test_only_names_of_classes_count_as_errors() -> None:
    text = "It raises PCR 7. Raises ssl.SSLError.\n\nRaises:\n    OSError: Other words.\n        More: words.\n"
    assert raised_in(text) == ["OSError"]


def test_two_public_classes_of_one_name_are_refused_unless_listed() -> None:
    two = parsed(a="class Disk: ...", b="class Disk: ...")
    assert list(shared_names(two)) == ["Disk"]
    (fault,) = faults(two, frozenset())
    assert "a.py:1" in fault
    assert "b.py:1" in fault
    assert not faults(two, frozenset({"Disk"}))


def test_a_listed_name_that_is_shared_no_more_is_refused() -> None:
    (fault,) = faults(parsed(a="class Disk: ..."), frozenset({"Disk"}))
    assert "remove it from PENDING" in fault


def test_roles_private_and_inner_classes_may_share_a_name() -> None:
    text = "class Settings: ...\nclass _Disk: ...\nclass Outer{}:\n    class Disk: ..."
    assert not faults(parsed(a=text.format("A"), b=text.format("B")), frozenset())


def test_all_modules_below_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("class Disk: ...")
    assert list(trees(tmp_path)) == ["deep/a.py"]
