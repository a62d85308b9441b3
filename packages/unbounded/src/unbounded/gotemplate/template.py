"""Templates that are compiled once and render any number of times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from unbounded.gotemplate import types
from unbounded.gotemplate.fmt import sprint, sprintf
from unbounded.gotemplate.functions import BUILTINS, printable
from unbounded.gotemplate.literals import quote
from unbounded.gotemplate.nodes import ActionNode, Branch, Include, Item, Jump, List, TemplateLiteral
from unbounded.gotemplate.operands import Functions, pipeline
from unbounded.gotemplate.parser import parse
from unbounded.gotemplate.run import Eval, RenderState, TemplateLimits, TemplateSource, Walk

Pair = tuple[types.Value | None, types.Value]
DEFAULT_LIMITS: Final = TemplateLimits()


class Template:
    """Parsed template without state of a rendering: concurrent renderings are safe."""

    def __init__(
        self,
        name: str,
        text: str,
        functions: Mapping[str, types.Signature] | None = None,
        *,
        delimiters: tuple[str, str] = ("{{", "}}"),
        missing_key: str = "default",
        limits: TemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        """Parse and compile.

        Args:
            name: the template's name in errors; the name of its file.
            functions: further ones; one of Go's own names replaces Go's function.
            missing_key: value of an absent key of a map, as Go's option: default (or invalid), zero, error.
        Raises:
            ParseError: the text is not a template.
        """
        known = {**BUILTINS, **(functions or {})}
        self.name = name
        self._source = TemplateSource(name, text, missing_key, limits)
        trees = parse(name, text, known, delimiters)
        self._trees = {each: _list(tree, known) for each, tree in trees.items()}

    def render(self, data: object) -> str:
        """Return the output for this data: a `Value`, or plain Python data. Bytes that are not UTF-8 become surrogates.

        Raises:
            RenderError: the data does not fit, or a limit is reached.
        """
        return "".join(self.parts(data))

    def parts(self, data: object) -> Iterator[str]:
        """Yield the output in pieces; the output before an error comes before the error."""
        value = types.of(data)
        run = RenderState(self.name, self._source, self._trees, value)
        failed: types.RenderError | None = None
        try:
            self._trees[self.name](run, value)
        except types.RenderError as error:
            failed = error
        except RecursionError:
            failed = run.error(f"exceeded maximum template depth ({run.limits.depth})")
        yield from run.out
        if failed is not None:
            raise failed


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def _list(tree: List, functions: Functions) -> Walk:
    walks = [_item(item, functions) for item in tree.items]
    if len(walks) == 1:
        return walks[0]

    def walk(run: RenderState, dot: types.Value | None) -> None:
        for each in walks:
            each(run, dot)

    return walk


def _item(item: Item, functions: Functions) -> Walk:
    match item:
        case TemplateLiteral(text=text):
            return lambda run, _: run.write(text)
        case ActionNode():
            return _action(item, functions)
        case Branch(word="range"):
            return _range(item, functions)
        case Branch():
            return _choice(item, functions)
        case Include():
            return _include(item, functions)
        case Jump(word=word):
            return _break if word == "break" else _continue


def _break(_: RenderState, __: types.Value | None) -> None:
    raise _Break


def _continue(_: RenderState, __: types.Value | None) -> None:
    raise _Continue


def _action(node: ActionNode, functions: Functions) -> Walk:
    give = pipeline(node.pipe, functions)
    if node.pipe.variables:

        def declare(run: RenderState, dot: types.Value | None) -> None:
            run.step()
            give(run, dot)

        return declare

    def show(run: RenderState, dot: types.Value | None) -> None:
        run.step()
        value = give(run, dot)
        if value is not None and value.type is types.STRING:
            run.write(value.data)
            return
        run.node = node
        shown = printable(value)
        if shown is None and value is not None:
            raise run.error(f"can't print {node} of type {value.type}")
        run.write(sprint((shown,)))

    return show


def _choice(node: Branch, functions: Functions) -> Walk:
    """`if` and `with`."""
    give = pipeline(node.pipe, functions)
    body = _list(node.body, functions)
    otherwise = _list(node.otherwise, functions) if node.otherwise else None
    sets_dot = node.word == "with"

    def walk(run: RenderState, dot: types.Value | None) -> None:
        run.step()
        mark = len(run.vars)
        value = give(run, dot)
        if types.truth(value):
            body(run, value if sets_dot else dot)
        elif otherwise is not None:
            otherwise(run, dot)
        del run.vars[mark:]

    return walk


def _range(node: Branch, functions: Functions) -> Walk:
    give = pipeline(node.pipe, functions)
    body = _list(node.body, functions)
    otherwise = _list(node.otherwise, functions) if node.otherwise else None
    names, assigns = node.pipe.variables, node.pipe.assigns

    def walk(run: RenderState, dot: types.Value | None) -> None:
        outside = len(run.vars)
        pairs = _pairs(run, give, dot, len(names))
        mark, turns = len(run.vars), 0
        try:
            for key, value in pairs:
                turns += 1
                run.step()
                if names:
                    _set(run, names, assigns, key, value)
                with suppress(_Continue):
                    body(run, value)
                del run.vars[mark:]
            if not turns and otherwise is not None:
                otherwise(run, dot)
        except _Break:  # one in the else part ends this range too, not the one around it
            pass
        del run.vars[outside:]

    return walk


def _set(run: RenderState, names: Sequence[str], assigns: bool, key: types.Value | None, value: types.Value) -> None:
    """Set the variables of a range for this iteration; one variable gets the element."""
    values = (value,) if len(names) == 1 else (key, value)
    for back, (name, each) in enumerate(zip(names, values, strict=True), -len(names)):
        if assigns:
            run.assign(name, each)
        else:
            run.vars[back] = (name, each)


def _pairs(run: RenderState, give: Eval, dot: types.Value | None, variables: int) -> Iterator[Pair] | Sequence[Pair]:
    """Return the keys and elements that a range iterates over."""
    value, nil = types.indirect(give(run, dot))
    if value is None or (nil and value.type.kind is types.GoKind.INTERFACE):
        return ()
    match value.type.kind:
        case types.GoKind.SLICE | types.GoKind.ARRAY:
            return [(types.Value(types.INT, place), item) for place, item in enumerate(types.elements(value))]
        case types.GoKind.MAP:
            return types.sorted_items(value)
        case types.GoKind.INT | types.GoKind.UINT:
            if variables > 1:
                raise run.error(f"can't use {value.data} to iterate over more than one variable")
            return ((None, types.Value(value.type, number)) for number in range(value.data))
    raise run.error(f"range can't iterate over {sprintf('%v', (value,))}")


def _include(node: Include, functions: Functions) -> Walk:
    give = pipeline(node.pipe, functions) if node.pipe else None

    def walk(run: RenderState, dot: types.Value | None) -> None:
        run.node = node
        run.step()
        tree = run.trees.get(node.name)
        if tree is None:
            raise run.error(f"template {quote(node.name)} not defined")
        if run.depth >= run.limits.depth:
            raise run.error(f"exceeded maximum template depth ({run.limits.depth})")
        inner = give(run, dot) if give else None
        outside = run.vars, run.name
        run.vars, run.name = [("$", inner)], node.name
        run.depth += 1
        tree(run, inner)
        run.depth -= 1
        run.vars, run.name = outside

    return walk
