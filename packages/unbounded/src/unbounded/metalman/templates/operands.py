"""Operands, commands and pipelines as functions over a `RenderState`: compiled once, called for each rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from unbounded.metalman.templates import access
from unbounded.metalman.templates.access import MISSING, as_object, checked
from unbounded.metalman.templates.functions import BUILTINS, wrapped
from unbounded.metalman.templates.nodes import (
    Bool,
    ChainNode,
    CommandNode,
    Dot,
    FieldNode,
    Identifier,
    Nil,
    Node,
    NumberNode,
    Operand,
    Pipe,
    Text,
    Variable,
)
from unbounded.metalman.templates.run import Argument, Eval, RenderState, Stage
from unbounded.metalman.templates.types import (
    ANY,
    BOOL,
    COMPLEX128,
    FLOAT64,
    INT,
    NILABLE,
    RAW,
    STRING,
    GoKind,
    GoType,
    Signature,
    Value,
    inside,
    truth,
    zero,
)

Functions = Mapping[str, Signature]
_EXPECTED: Final = {
    GoKind.BOOL: "bool",
    GoKind.STRING: "string",
    GoKind.INT: "integer",
    GoKind.UINT: "unsigned integer",
    GoKind.FLOAT: "float",
    GoKind.COMPLEX: "complex",
}


def pipeline(pipe: Pipe, functions: Functions) -> Eval:
    """Compile a pipeline: its value is that of the last command, and its variables are set to it."""
    stages = [_command(command, functions) for command in pipe.commands]
    first, rest = stages[0], stages[1:]
    names, assigns = pipe.variables, pipe.assigns

    def plain(run: RenderState, dot: Value | None) -> Value | None:
        run.node = pipe
        value = first(run, dot, MISSING)
        return value if value is None or value.type.kind is not GoKind.INTERFACE else inside(value)

    def full(run: RenderState, dot: Value | None) -> Value | None:
        value = plain(run, dot)
        for stage in rest:
            value = inside(stage(run, dot, value))
        for name in names:
            if assigns:
                run.assign(name, value)
            else:
                run.vars.append((name, value))
        return value

    return full if rest or names else plain


def _command(command: CommandNode, functions: Functions) -> Stage:
    first = command.args[0]
    args = [_argument(arg, functions) for arg in command.args[1:]]
    if isinstance(first, Identifier):
        return _function(first, command, args, functions)
    if isinstance(first, FieldNode | ChainNode) or (isinstance(first, Variable) and len(first.names) > 1):
        return _chain(first, args, functions)
    give = _pipe_or_constant(first, functions)

    def alone(run: RenderState, dot: Value | None, final: Value | None) -> Value | None:
        if not isinstance(first, Pipe):
            run.node = first
        if args or final is not MISSING:
            raise run.error(f"can't give argument to non-function {first}")
        return give(run, dot)

    return alone


def _pipe_or_constant(node: Operand, functions: Functions) -> Eval:
    match node:
        case Pipe():
            return pipeline(node, functions)
        case Dot():
            return lambda _, dot: dot
        case Variable(names=(name,)):
            return lambda run, _: run.variable(name)
        case Nil():
            return lambda run, _: run.fail("nil is not a command")
    value = _constant(node)
    if value is None:
        return lambda run, _: run.fail(f"{node} overflows int")
    return lambda _, __: value


def _constant(node: Operand) -> Value | None:
    """Return a literal without a required type; None if it is too big for an int."""
    match node:
        case Bool(true=true):
            return Value(BOOL, true)
        case Text(text=text):
            return Value(STRING, text)
        case NumberNode(text=text, number=number):
            if number.complex is not None:
                return Value(COMPLEX128, number.complex)
            hexadecimal = text[:2] in ("0x", "0X") and not ("p" in text or "P" in text)
            if number.real is not None and not hexadecimal and text[0] != "'" and any(c in text for c in ".eEpP"):
                return Value(FLOAT64, number.real)
            return None if number.integer is None else Value(INT, number.integer)
    raise AssertionError(node)


def _chain(node: FieldNode | ChainNode | Variable, args: Sequence[Argument], functions: Functions) -> Stage:
    """Compile `.A.B`, `$a.B` and `(…).A`; the last name may be a method that takes the arguments."""
    start: Eval
    match node:
        case FieldNode(names=names):
            start = lambda _, dot: dot  # noqa: E731 - one of three
        case Variable(names=(variable, *names)):
            start = lambda run, _: run.variable(variable)  # noqa: E731 - one of three
        case ChainNode(node=operand, names=names):
            inner = _argument(operand, functions)

            def start(run: RenderState, dot: Value | None) -> Value | None:
                if isinstance(operand, Nil):
                    raise run.error(f"indirection through explicit nil in {node}")
                return cast("Value | None", inner(run, dot, RAW))

    *path, last = names

    def walk(run: RenderState, dot: Value | None, final: Value | None) -> Value | None:
        run.node = node
        value = start(run, dot)
        for name in path:
            value = access.field(run, dot, name, node, (), MISSING, value)
        return access.field(run, dot, last, node, args, final, value)

    return walk


def _function(node: Identifier, whole: Node, args: Sequence[Argument], functions: Functions) -> Stage:
    name = node.name
    signature = functions[name]
    builtin = BUILTINS.get(name) is signature
    if builtin and name in ("and", "or"):
        return _short_circuit(node, signature, args)
    insert = None
    if builtin and name == "call" and isinstance(whole, CommandNode) and len(whole.args) > 1:
        callee = whole.args[1]
        shown = f"{callee}"
        insert = lambda: shown  # noqa: E731 - or None
    elif builtin and name == "call":
        insert = lambda: "<value>"  # noqa: E731 - the function itself comes from the stage before

    def invoke(run: RenderState, dot: Value | None, final: Value | None) -> Value | None:
        run.node = node
        run.step()
        return access.call(run, dot, signature, name, whole, args, final, insert)

    return invoke


def _short_circuit(node: Identifier, signature: Signature, args: Sequence[Argument]) -> Stage:
    """Compile `and` and `or`: the first argument that decides is the value, and no later one is evaluated."""
    desired = node.name == "or"

    def invoke(run: RenderState, dot: Value | None, final: Value | None) -> Value | None:
        run.node = node
        run.step()
        access.parameter_types(run, signature, node.name, len(args), final is not MISSING)
        value: Value | None = None
        for arg in args:
            value = cast("Value | None", arg(run, dot, RAW))
            if truth(value) is desired:
                return value
        return value if final is MISSING else final

    return invoke


def _argument(node: Operand, functions: Functions) -> Argument:
    """Compile an operand as an argument of a function: it has to fit the type of the parameter."""
    match node:
        case Dot():
            give: Eval = lambda _, dot: dot  # noqa: E731 - one of several
        case Nil():
            return lambda run, _, wanted: _nil(run, node, wanted)
        case Bool() | Text() | NumberNode():
            return _literal(node)
        case Pipe():
            give = pipeline(node, functions)
        case Variable(names=(name,)):
            give = lambda run, _: run.variable(name)  # noqa: E731 - one of several
        case Identifier():
            stage = _function(node, node, (), functions)
            give = lambda run, dot: stage(run, dot, MISSING)  # noqa: E731 - one of several
        case _:
            chain = _chain(node, (), functions)
            give = lambda run, dot: chain(run, dot, MISSING)  # noqa: E731 - one of several

    def argument(run: RenderState, dot: Value | None, desired: GoType) -> object:
        run.node = node
        return as_object(checked(run, give(run, dot), desired), desired)

    return argument


def _nil(run: RenderState, node: Nil, desired: GoType) -> object:
    run.node = node
    if desired.kind not in NILABLE:
        raise run.error(f"cannot assign nil to {desired}")
    return None if desired.kind in (GoKind.RAW, GoKind.INTERFACE) else zero(desired).data


def _literal(node: Bool | Text | NumberNode) -> Argument:
    ideal = _constant(node)
    plain = None if ideal is None else ideal.data

    def argument(run: RenderState, _: Value | None, desired: GoType) -> object:
        run.node = node
        if desired is RAW or desired is ANY:
            return ideal if ideal is not None else run.fail(f"{node} overflows int")
        if desired is STRING and type(plain) is str:
            return plain
        return _fitted(run, node, desired)

    return argument


def _fitted(run: RenderState, node: Bool | Text | NumberNode, desired: GoType) -> object:
    """Convert a literal to the required type."""
    match desired.kind, node:
        case GoKind.BOOL, Bool(true=true):
            return true
        case GoKind.STRING, Text(text=text):
            return text
        case GoKind.INT, NumberNode(number=number) if number.integer is not None:
            return wrapped(number.integer, desired)
        case GoKind.UINT, NumberNode(number=number) if number.unsigned is not None:
            return wrapped(number.unsigned, desired)
        case GoKind.FLOAT, NumberNode(number=number) if number.real is not None:
            return number.real
        case GoKind.COMPLEX, NumberNode(number=number) if number.complex is not None or number.real is not None:
            return number.complex if number.complex is not None else complex(number.real or 0)
    if desired.kind not in _EXPECTED:
        raise run.error(f"can't handle {node} for arg of type {desired}")
    raise run.error(f"expected {_EXPECTED[desired.kind]}; found {node}")
