"""Tables of renames on small repositories (`scripts.rename`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from scripts.rename import Report, Table, apply
from scripts.renaming.tree import RenameError

MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-site-packages", "src"]


class Repository:
    """A git repository of a few files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "init", "-q", root], check=True)

    def write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(dedent(text))
        subprocess.run(["git", "add", "."], cwd=self.root, check=True)

    def rename(self, rows: str) -> Report:
        table = Table()
        table.add(rows, "rows")
        return apply(self.root, table, MYPY)[1]

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def paths(self) -> set[str]:
        listed = [path for path in self.root.rglob("*") if path.is_file() and ".git" not in path.parts]
        return {str(path.relative_to(self.root)) for path in listed}

    def state(self) -> dict[str, str]:
        return {path: self.read(path) for path in self.paths() if "cache" not in path}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.slow
def test_module_moves_with_its_imports_and_mentions(repository: Repository) -> None:
    repository.write(
        {
            "src/unbounded/ops/__init__.py": "",
            "src/unbounded/ops/memory.py": "X = 1\n",
            "src/unbounded/use.py": """\
                from unbounded.ops import memory, other
                from unbounded.ops.memory import X
                import unbounded.ops.memory
                def f(n): return memory.X + unbounded.ops.memory.X + X, f"{memory.X} memory.X"
                def g(memory): return memory.X
                """,
            "src/unbounded/ops/other.py": "from . import memory\nfrom .memory import X\nY = memory.X + X\n",
            "src/unbounded/taken.py": "from unbounded.ops import memory\ndef f(run_state): return memory.X\n",
            "tests/ops/test_memory.py": 'TARGET = "unbounded.ops.memory.X"\n',
            "a.md": "`ops/memory.py`, src/unbounded/ops/memory.py, tests/ops/test_memory.py; unbounded.ops.memory\n",
        }
    )
    rows = (
        "move unbounded.ops.memory unbounded.work.run_state\nmovetest tests/ops/test_memory.py tests/ops/test_state.py"
    )
    repository.rename(rows)
    assert repository.read("src/unbounded/use.py") == dedent(
        """\
        from unbounded.ops import other
        from unbounded.work import run_state
        from unbounded.work.run_state import X
        import unbounded.work.run_state
        def f(n): return run_state.X + unbounded.work.run_state.X + X, f"{run_state.X} memory.X"
        def g(memory): return memory.X
        """
    )
    other = "from unbounded.work import run_state\nfrom unbounded.work.run_state import X\nY = run_state.X + X\n"
    assert repository.read("src/unbounded/ops/other.py") == other
    taken = "from unbounded.work import run_state as memory\ndef f(run_state): return memory.X\n"
    assert repository.read("src/unbounded/taken.py") == taken
    assert repository.read("tests/ops/test_state.py") == 'TARGET = "unbounded.work.run_state.X"\n'
    docs = "`work/run_state.py`, src/unbounded/work/run_state.py, tests/ops/test_state.py; unbounded.work.run_state\n"
    assert repository.read("a.md") == docs
    assert {"src/unbounded/work/__init__.py", "src/unbounded/work/run_state.py"} <= repository.paths()
    before = repository.state()
    repository.rename(rows)
    assert repository.state() == before


def test_package_moves_whole_and_keeps_its_relative_imports(repository: Repository) -> None:
    repository.write(
        {
            "src/unbounded/fetch/__init__.py": "",
            "src/unbounded/fetch/a.py": "X = 1\n",
            "src/unbounded/fetch/b.py": "from .a import X\nfrom unbounded.fetch import a\n",
            "src/unbounded/fetch/data.json": "{}",
            "pyproject.toml": 'x = "unbounded.fetch"\ny = "tests/fetch/**"\nz = "unbounded.fetching"\n',
        }
    )
    repository.rename("move unbounded.fetch unbounded.artifacts")
    folder = "src/unbounded/artifacts"
    assert {f"{folder}/{name}" for name in ("__init__.py", "a.py", "b.py", "data.json")} <= repository.paths()
    assert not any("fetch" in path for path in repository.paths())
    moved = "from unbounded.artifacts.a import X\nfrom unbounded.artifacts import a\n"
    assert repository.read(f"{folder}/b.py") == moved
    toml = 'x = "unbounded.artifacts"\ny = "tests/fetch/**"\nz = "unbounded.fetching"\n'
    assert repository.read("pyproject.toml") == toml


def test_empty_package_is_removed_after_its_last_module(repository: Repository) -> None:
    repository.write({"src/unbounded/a/__init__.py": '"""A."""\n', "src/unbounded/a/b.py": ""})
    repository.rename("move unbounded.a.b unbounded.b")
    assert repository.paths() == {"src/unbounded/b.py", "src/unbounded/__init__.py"}


def test_name_follows_imports_re_exports_strings_and_quoted_annotations(repository: Repository) -> None:
    repository.write(
        {
            "src/unbounded/p/__init__.py": 'from unbounded.p.m import Old\n__all__ = ["Old"]\n',
            "src/unbounded/p/m.py": '''\
                class Old:
                    """An `Old` of the Old kind."""
                def make(Old: int = 0) -> "Old | None": return None
                def text() -> str: return f"{Old()!r} {'Old'} Old {{Old}} {'Old':>{Old}}"
                def change() -> None:
                    global Old
                    Old = None
                ''',
            "src/unbounded/use.py": """\
                from unbounded import p
                from unbounded.p import Old
                from unbounded.p.m import Old as Other
                import unbounded.p.m as m
                def f(x: "list[Old]", Old=1): return Old, Other, m.Old, p.Old
                def g(): return f(Old=2), [Old for Old in ()], Old, isinstance(1, p.m.Old)
                def h(): return cast("Old", 1), "unbounded.p.m.Old.x", "unbounded.p:Old", f"{p.Old}"
                """,
            "src/unbounded/script.py": "S = 'from unbounded.p import Old; Old()', 'Old'\n",
            "src/unbounded/local.py": "def f():\n from unbounded.p import Old\n return Old\ndef g(): return Old\n",
        }
    )
    rows = "name unbounded.p.m.Old New"
    repository.rename(rows)
    assert repository.read("src/unbounded/p/__init__.py") == 'from unbounded.p.m import New\n__all__ = ["New"]\n'
    assert repository.read("src/unbounded/p/m.py") == dedent(
        '''\
        class New:
            """An `New` of the Old kind."""
        def make(Old: int = 0) -> "New | None": return None
        def text() -> str: return f"{New()!r} {'Old'} Old {{Old}} {'Old':>{New}}"
        def change() -> None:
            global New
            New = None
        '''
    )
    assert repository.read("src/unbounded/use.py") == dedent(
        """\
        from unbounded import p
        from unbounded.p import New
        from unbounded.p.m import New as Other
        import unbounded.p.m as m
        def f(x: "list[New]", Old=1): return Old, Other, m.New, p.New
        def g(): return f(Old=2), [Old for Old in ()], New, isinstance(1, p.m.New)
        def h(): return cast("New", 1), "unbounded.p.m.New.x", "unbounded.p:New", f"{p.New}"
        """
    )
    local = "def f():\n from unbounded.p import New\n return New\ndef g(): return Old\n"
    assert repository.read("src/unbounded/local.py") == local
    script = "S = 'from unbounded.p import New; New()', 'Old'\n"
    assert repository.read("src/unbounded/script.py") == script
    before = repository.state()
    repository.rename(rows)
    assert repository.state() == before


def test_names_are_swapped_and_their_module_moves_in_one_table(repository: Repository) -> None:
    repository.write(
        {
            "src/unbounded/a.py": "X = 1\nY = 2\n",
            "src/unbounded/use.py": "from unbounded.a import X, Y\nprint(X, Y)\n",
        }
    )
    repository.rename("move unbounded.a unbounded.b\nname unbounded.b.X Y\nname unbounded.a.Y X")
    assert repository.read("src/unbounded/b.py") == "Y = 1\nX = 2\n"
    assert repository.read("src/unbounded/use.py") == "from unbounded.b import Y, X\nprint(Y, X)\n"


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("from unbounded.a import old\nnew = 1\n", "that name is there already"),
        ("from unbounded.a import old\ndef f(new): return old, new\n", "new is a local name where old is used"),
        ("from unbounded.a import old\nprint(new)\n", "new already means something else"),
    ],
)
def test_new_name_that_clashes_is_refused_before_anything_is_written(
    repository: Repository, user: str, reason: str
) -> None:
    repository.write({"src/unbounded/a.py": "old = 1\n", "src/unbounded/use.py": user})
    before = repository.state()
    with pytest.raises(RenameError, match=reason):
        repository.rename("name unbounded.a.old new")
    assert repository.state() == before


def test_rows_with_the_same_target_are_refused(repository: Repository) -> None:
    repository.write({"src/unbounded/a.py": "one = 1\ntwo = 2\n", "src/unbounded/b.py": "", "src/unbounded/c.py": ""})
    with pytest.raises(RenameError) as refused:
        repository.rename(
            "name unbounded.a.one new\nname unbounded.a.two new\n"
            "move unbounded.a unbounded.d\nmove unbounded.b unbounded.d"
        )
    assert "becomes that too" in str(refused.value)
    assert "src/unbounded/d.py" in str(refused.value)


@pytest.mark.slow
def test_attribute_is_renamed_wherever_mypy_finds_its_class(repository: Repository) -> None:
    repository.write(
        {
            "mypy.ini": "[mypy]\nmypy_path = src\nexplicit_package_bases = true\n",
            "src/unbounded/a.py": """\
                from dataclasses import dataclass
                from typing import Protocol

                class Port(Protocol):
                    def look(self) -> int: ...

                @dataclass
                class Item:
                    seen: int = 0

                    @property
                    def twice(self) -> int:
                        return self.seen * 2

                class Real:
                    @property
                    def said(self) -> str:
                        return ""
                    @said.setter
                    def said(self, value: str) -> None: ...
                    def look(self) -> int:
                        return 1

                class Sub(Real):
                    def look(self) -> int:
                        return super().look()
                """,
            "src/unbounded/b.py": """\
                from dataclasses import replace
                from unbounded.a import Item, Port, Real, Sub

                class Fake:
                    def look(self) -> int:
                        return 2

                class Unrelated:
                    seen = 1
                    def look(self) -> int:
                        return 3

                def use(port: Port, items: list[Item], maybe: Item | None) -> str:
                    port.look()
                    Sub().look()
                    Unrelated().look()
                    first = replace(Item(seen=1), seen=items[0].seen)
                    match maybe:
                        case Item(seen=seen):
                            return f"{first.seen} {seen} {Unrelated.seen} seen"
                    return Real().said

                use(Fake(), [], None)
                """,
        }
    )
    rows = """
        attr unbounded.a.Port.look observe
        attr unbounded.a.Real.look observe
        attr unbounded.a.Real.said message
        attr unbounded.a.Item.seen evidence
    """
    assert repository.rename(rows).reports == []
    first, second = repository.read("src/unbounded/a.py"), repository.read("src/unbounded/b.py")
    assert not {"look", "seen", "said"} & set(first.replace("(", " ").replace(".", " ").replace(":", " ").split())
    assert second.split("class Fake:")[1] == dedent(
        """
            def observe(self) -> int:
                return 2

        class Unrelated:
            seen = 1
            def look(self) -> int:
                return 3

        def use(port: Port, items: list[Item], maybe: Item | None) -> str:
            port.observe()
            Sub().observe()
            Unrelated().look()
            first = replace(Item(evidence=1), evidence=items[0].evidence)
            match maybe:
                case Item(evidence=seen):
                    return f"{first.evidence} {seen} {Unrelated.seen} seen"
            return Real().message

        use(Fake(), [], None)
        """
    )
    before = repository.state()
    repository.rename(rows)
    assert repository.state() == before


def test_field_on_the_wire_and_attribute_that_is_there_are_refused(repository: Repository) -> None:
    source = "import msgspec\nclass A(msgspec.Struct):\n    old: int = 0\nclass B(A):\n    new: int = 0\n"
    repository.write({"src/unbounded/a.py": source})
    with pytest.raises(RenameError) as refused:
        repository.rename("attr unbounded.a.A.old new")
    assert "goes on the wire" in str(refused.value)
    assert "unbounded.a.B.old: new is there already" in str(refused.value)
    assert repository.read("src/unbounded/a.py") == source


def test_word_is_replaced_in_the_files_of_its_globs_alone(repository: Repository) -> None:
    repository.write({"docs/a.md": "old older `old`\n", "b.md": "old\n"})
    repository.rename("word old 'new one' docs/*.md  # a comment")
    assert repository.read("docs/a.md") == "new one older `new one`\n"
    assert repository.read("b.md") == "old\n"
