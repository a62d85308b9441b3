"""The scopes of a Python module: which binding a name refers to, and where each reference stands in the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from scripts.renaming.tree import Edit, SourceFile


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension, with the names that it binds."""

    kind: str
    parent: Scope | None
    names: set[str] = field(default_factory=set)
    outer: dict[str, str] = field(default_factory=dict)  # names declared global or nonlocal
    imports: dict[str, str] = field(default_factory=dict)  # bound name to the qualified name behind it

    def binding(self, name: str) -> Scope | None:
        """Return the scope whose binding a use of the name in this scope refers to; None for a builtin."""
        scope: Scope | None = self
        while scope is not None:
            if scope.outer.get(name) == "global":
                return scope.module
            visible = scope is self or scope.kind != "class"
            if visible and name in scope.names and name not in scope.outer:
                return scope
            scope = scope.parent
        return None

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module


@dataclass(frozen=True)
class Reference:
    """A use or binding of a name. `inside` is "text" where it stands in a string: then the span is the string's."""

    name: str
    scope: Scope
    start: int
    end: int
    inside: str = ""  # "f" for an f-string, "text" for a quoted annotation


@dataclass(frozen=True)
class ImportedName:
    """One alias of a `from … import …`, with the absolute module that it imports from."""

    node: ast.alias
    statement: ast.ImportFrom
    scope: Scope
    source: str

    @property
    def target(self) -> str:
        return f"{self.source}.{self.node.name}"

    @property
    def bound(self) -> str:
        return self.node.asname or self.node.name


@dataclass(frozen=True)
class Member:
    """An attribute access; `inside` as in `Reference`."""

    node: ast.Attribute
    scope: Scope
    start: int
    end: int
    inside: str = ""


class Names(ast.NodeVisitor):
    """Everything that a rename needs to know of one Python file."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.tree = ast.parse(file.content)
        self.references: list[Reference] = []
        self.imported: list[ImportedName] = []
        self.members: list[Member] = []
        self.docstrings: list[ast.Constant] = []
        self.scripts: list[ast.expr] = []  # strings that may be source code with imports
        self.exported: list[ast.Constant] = []  # the strings of __all__
        self.classes: list[tuple[ast.ClassDef, Scope, Scope]] = []  # with the scope around and the scope of the body
        self.top = self.scope = Scope("module", None)
        self._inside: list[tuple[str, ast.AST]] = []
        self._annotation = False
        self.visit(self.tree)

    # positions

    @cached_property
    def _lines(self) -> list[int]:
        starts = [0]
        for line in self.file.content.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    def at(self, line: int, column: int) -> int:
        """Return the byte position of a line (from 1) and a byte column (from 0)."""
        return self._lines[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the byte positions of a node."""
        return (
            self.at(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.at(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def line(self, position: int) -> int:
        """Return the line of a byte position."""
        return self.file.content.count(b"\n", 0, position) + 1

    def word(self, name: str, start: int) -> tuple[int, int]:
        """Return the position of the first whole word at or after a position."""
        found = re.compile(rb"(?<!\w)" + name.encode() + rb"(?!\w)").search(self.file.content, start)
        assert found is not None, (self.file.path, name)
        return found.span()

    # resolution

    def qualify(self, node: ast.expr, scope: Scope) -> str:
        """Return the qualified name that an expression stands for; empty where that is unknown."""
        if isinstance(node, ast.Name):
            binding = scope.binding(node.id)
            if binding is None:
                return ""
            if node.id in binding.imports:
                return binding.imports[node.id]
            return f"{self.file.module}.{node.id}" if binding is self.top else ""
        if isinstance(node, ast.Attribute):
            value = self.qualify(node.value, scope)
            return f"{value}.{node.attr}" if value else ""
        return ""

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the absolute module of an import statement."""
        if not node.level:
            return node.module or ""
        package = self.file.module.split(".")
        package = package if self.file.is_package else package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def rename(self, scope: Scope, old: str, new: str) -> list[Edit]:
        """Return the edits that rename a binding of a scope wherever it is used."""
        edits = []
        for one in self.references:
            if one.name == old and one.scope.binding(old) is scope:
                edits += self.inside(one, old, new) if one.inside else [Edit(one.start, one.end, new.encode())]
        return edits

    def captured(self, scope: Scope, old: str, new: str) -> str:
        """Return why a binding cannot take a new name; empty if it can."""
        for one in self.references:
            bound = one.scope.binding(new)
            if one.name == old and one.scope.binding(old) is scope:
                if bound is not None and bound is not scope and _within(bound, scope):
                    return f"{self._where(one)}: {new} is a local name where {old} is used"
            elif one.name == new and _within(one.scope, scope) and (bound is None or not _within(bound, scope)):
                return f"{self._where(one)}: {new} already means something else"
        return ""

    def _where(self, one: Reference) -> str:
        return f"{self.file.path}:{self.line(one.start)}"

    def inside(self, one: Reference | Member, old: str, new: str) -> list[Edit]:
        """Return the edits of a name in the expressions of an f-string or in a quoted annotation."""
        text = self.file.content[one.start : one.end]
        behind = rb"(?<![\w.])" if isinstance(one, Reference) else rb"(?<=\.)"
        pattern = re.compile(behind + re.escape(old.encode()) + rb"(?!\w)")
        spans = _expressions(text) if one.inside == "f" else [(0, len(text))]
        return [
            Edit(one.start + found.start(), one.start + found.end(), new.encode())
            for found in pattern.finditer(text)
            if any(start <= found.start() < end for start, end in spans)
        ]

    # the visit

    @contextmanager
    def _within(self, kind: str) -> Iterator[Scope]:
        before, self.scope = self.scope, Scope(kind, self.scope)
        try:
            yield self.scope
        finally:
            self.scope = before

    def _bind(self, name: str) -> None:
        self.scope.names.add(name)

    def _refer(self, name: str, span: tuple[int, int]) -> None:
        self.references.append(Reference(name, self.scope, *span))

    def _refer_at(self, name: str, start: int) -> None:
        self._bind(name)
        self._refer(name, self.word(name, start))

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)
        if self._inside:
            inside, whole = self._inside[0]
            self.references.append(Reference(node.id, self.scope, *self.span(whole), inside))
        else:
            self._refer(node.id, self.span(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._inside and not self._is_exact(node):
            inside, whole = self._inside[0]
            self.members.append(Member(node, self.scope, *self.span(whole), inside))
        else:
            end = self.span(node)[1]
            self.members.append(Member(node, self.scope, end - len(node.attr.encode()), end))
        self.visit(node.value)

    def _is_exact(self, node: ast.Attribute) -> bool:
        """Return whether the position of an attribute in an f-string is right, which Python 3.11 does not promise."""
        inside, whole = self._inside[0]
        start, end = self.span(whole)
        if inside != "f" or (node.end_lineno or 0) >= len(self._lines):
            return False
        at = self.span(node)[1]
        return start < at < end and self.file.content[:at].endswith(f".{node.attr}".encode())

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if any(isinstance(one, ast.Constant) and "import " in str(one.value) for one in node.values):
            self.scripts.append(node)
        self._inside.append(("f", node))
        self.generic_visit(node)
        self._inside.pop()

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and "import " in node.value and not self._inside:
            self.scripts.append(node)
        if self._annotation and isinstance(node.value, str) and not self._inside:
            try:
                inner = ast.parse(node.value.strip(), mode="eval")
            except SyntaxError:
                return
            self._inside.append(("text", node))
            self.visit(inner.body)
            self._inside.pop()

    def _annotated(self, node: ast.expr | None) -> None:
        if node is not None:
            before, self._annotation = self._annotation, True
            self.visit(node)
            self._annotation = before

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        before = self._annotation
        name = getattr(node.value, "id", getattr(node.value, "attr", ""))
        self._annotation = before and name != "Literal"
        if name == "Annotated" and isinstance(node.slice, ast.Tuple):
            self.visit(node.slice.elts[0])
            self._annotation = False
            for one in node.slice.elts[1:]:
                self.visit(one)
        else:
            self.visit(node.slice)
        self._annotation = before

    def visit_Call(self, node: ast.Call) -> None:
        before, self._annotation = self._annotation, False
        self.visit(node.func)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        for index, argument in enumerate(node.args):
            self._annotated(argument) if name == "cast" and not index else self.visit(argument)
        for keyword in node.keywords:
            self._annotated(keyword.value) if keyword.arg == "bound" else self.visit(keyword.value)
        self._annotation = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotated(node.annotation)
        if node.value is not None:
            alias = "TypeAlias" in ast.unparse(node.annotation)
            self._annotated(node.value) if alias else self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if "__all__" in names and isinstance(node.value, ast.List | ast.Tuple):
            self.exported += [one for one in node.value.elts if isinstance(one, ast.Constant)]

    def _document(self, body: Sequence[ast.stmt]) -> None:
        match body:
            case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                self.docstrings.append(text)

    def visit_Module(self, node: ast.Module) -> None:
        self._document(node.body)
        self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)
        each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        each += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        for argument in each:
            self._annotated(argument.annotation)
        with self._within("function"):
            for argument in each:
                self._bind(argument.arg)
                start = self.span(argument)[0] if not self._inside else 0
                if not self._inside:
                    self._refer(argument.arg, (start, start + len(argument.arg.encode())))
            if isinstance(node, ast.Lambda):
                self.visit(node.body)
            else:
                for statement in node.body:
                    self.visit(statement)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._refer_at(node.name, self.span(node)[0])
        self._annotated(node.returns)
        self._document(node.body)
        self._function(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._refer_at(node.name, self.span(node)[0])
        for base in node.bases:
            self._annotated(base)
        for keyword in node.keywords:
            self.visit(keyword.value)
        self._document(node.body)
        around = self.scope
        with self._within("class") as body:
            self.classes.append((node, around, body))
            for statement in node.body:
                self.visit(statement)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        with self._within("comprehension"):
            for index, generator in enumerate(node.generators):
                self.visit(generator.target)
                if index:
                    self.visit(generator.iter)
                for condition in generator.ifs:
                    self.visit(condition)
            for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                self.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self.scope
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        scope.names.add(node.target.id)
        if self._inside:
            inside, whole = self._inside[0]
            self.references.append(Reference(node.target.id, self.scope, *self.span(whole), inside))
        else:
            self._refer(node.target.id, self.span(node.target))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            self._bind(bound)
            self.scope.imports[bound] = alias.name if alias.asname else bound
            self._refer(bound, self.word(bound, self.span(alias)[0] + (len(alias.name) if alias.asname else 0)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = self.absolute(node)
        for alias in node.names:
            one = ImportedName(alias, node, self.scope, source)
            self.imported.append(one)
            self._bind(one.bound)
            self.scope.imports[one.bound] = one.target

    def _declared(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.outer[name] = "global" if isinstance(node, ast.Global) else "nonlocal"
            self._refer(name, self.word(name, self.span(node)[0] + len("global")))

    visit_Global = visit_Nonlocal = _declared

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.visit(node.type)
        if node.name is not None and node.type is not None:
            self._refer_at(node.name, self.span(node.type)[1])
        for statement in node.body:
            self.visit(statement)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.pattern is not None:
            self.visit(node.pattern)
        if node.name is not None:
            self._refer_at(node.name, self.span(node.pattern)[1] if node.pattern else self.span(node)[0])

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name is not None:
            self._refer_at(node.name, self.span(node)[0])

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest is not None:
            self._refer_at(node.rest, max([self.span(node)[0], *(self.span(one)[1] for one in node.patterns)]))


def _within(inner: Scope, outer: Scope) -> bool:
    scope: Scope | None = inner
    while scope is not None:
        if scope is outer:
            return True
        scope = scope.parent
    return False


def _expressions(text: bytes) -> list[tuple[int, int]]:
    """Return the spans between the braces of an f-string, without the strings in them."""
    spans, depth, start, at = [], 0, 0, 0
    while at < len(text):
        character = text[at : at + 1]
        if not depth and text[at : at + 2] in (b"{{", b"}}"):
            at += 2
            continue
        if character == b"{":
            start = start if depth else at
            depth += 1
        elif depth and character in (b"'", b'"'):  # cannot be the quote of the f-string itself before Python 3.12
            spans.append((start, at))
            close = text.find(character, at + 1) % len(text)
            if text[:at].endswith((b"f", b"F")):
                spans += [(at + 1 + first, at + 1 + last) for first, last in _expressions(text[at + 1 : close])]
            start = at = close
        elif character == b"}" and depth:
            depth -= 1
            if not depth:
                spans.append((start, at))
        at += 1
    return spans
