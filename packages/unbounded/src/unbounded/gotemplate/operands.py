"""Operands, commands and pipelines as functions over a `RenderState`: compiled once, called for each rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from unbounded.gotemplate import access, nodes, types
from unbounded.gotemplate.access import MISSING, as_object, checked
from unbounded.gotemplate.functions import BUILTINS, wrapped
from unbounded.gotemplate.run import Argument, Eval, RenderState, Stage

Functions = Mapping[str, types.Signature]
_EXPECTED: Final = {
    types.GoKind.BOOL: "bool",
    types.GoKind.STRING: "string",
    types.GoKind.INT: "integer",
    types.GoKind.UINT: "unsigned integer",
    types.GoKind.FLOAT: "float",
    types.GoKind.COMPLEX: "complex",
}


def pipeline(pipe: nodes.Pipe, functions: Functions) -> Eval:
    """Compile a pipeline: its value is that of the last command, and its variables are set to it."""
    stages = [_command(command, functions) for command in pipe.commands]
    first, rest = stages[0], stages[1:]
    names, assigns = pipe.variables, pipe.assigns

    def plain(run: RenderState, dot: types.Value | None) -> types.Value | None:
        run.node = pipe
        value = first(run, dot, MISSING)
        return value if value is None or value.type.kind is not types.GoKind.INTERFACE else types.inside(value)

    def full(run: RenderState, dot: types.Value | None) -> types.Value | None:
        value = plain(run, dot)
        for stage in rest:
            value = types.inside(stage(run, dot, value))
        for name in names:
            if assigns:
                run.assign(name, value)
            else:
                run.vars.append((name, value))
        return value

    return full if rest or names else plain


def _command(command: nodes.CommandNode, functions: Functions) -> Stage:
    first = command.args[0]
    args = [_argument(arg, functions) for arg in command.args[1:]]
    if isinstance(first, nodes.Identifier):
        return _function(first, command, args, functions)
    if isinstance(first, nodes.FieldNode | nodes.ChainNode) or (
        isinstance(first, nodes.Variable) and len(first.names) > 1
    ):
        return _chain(first, args, functions)
    give = _pipe_or_constant(first, functions)

    def alone(run: RenderState, dot: types.Value | None, final: types.Value | None) -> types.Value | None:
        if not isinstance(first, nodes.Pipe):
            run.node = first
        if args or final is not MISSING:
            raise run.error(f"can't give argument to non-function {first}")
        return give(run, dot)

    return alone


def _pipe_or_constant(node: nodes.Operand, functions: Functions) -> Eval:
    match node:
        case nodes.Pipe():
            return pipeline(node, functions)
        case nodes.Dot():
            return lambda _, dot: dot
        case nodes.Variable(names=(name,)):
            return lambda run, _: run.variable(name)
        case nodes.Nil():
            return lambda run, _: run.fail("nil is not a command")
    value = _constant(node)
    if value is None:
        return lambda run, _: run.fail(f"{node} overflows int")
    return lambda _, __: value


def _constant(node: nodes.Operand) -> types.Value | None:
    """Return a literal without a required type; None if it is too big for an int."""
    match node:
        case nodes.Bool(true=true):
            return types.Value(types.BOOL, true)
        case nodes.Text(text=text):
            return types.Value(types.STRING, text)
        case nodes.NumberNode(text=text, number=number):
            if number.complex is not None:
                return types.Value(types.COMPLEX128, number.complex)
            hexadecimal = text[:2] in ("0x", "0X") and not ("p" in text or "P" in text)
            if number.real is not None and not hexadecimal and text[0] != "'" and any(c in text for c in ".eEpP"):
                return types.Value(types.FLOAT64, number.real)
            return None if number.integer is None else types.Value(types.INT, number.integer)
    raise AssertionError(node)


def _chain(
    node: nodes.FieldNode | nodes.ChainNode | nodes.Variable, args: Sequence[Argument], functions: Functions
) -> Stage:
    """Compile `.A.B`, `$a.B` and `(…).A`; the last name may be a method that takes the arguments."""
    start: Eval
    match node:
        case nodes.FieldNode(names=names):
            start = lambda _, dot: dot  # noqa: E731 - one of three
        case nodes.Variable(names=(variable, *names)):
            start = lambda run, _: run.variable(variable)  # noqa: E731 - one of three
        case nodes.ChainNode(node=operand, names=names):
            inner = _argument(operand, functions)

            def start(run: RenderState, dot: types.Value | None) -> types.Value | None:
                if isinstance(operand, nodes.Nil):
                    raise run.error(f"indirection through explicit nil in {node}")
                return cast("types.Value | None", inner(run, dot, types.RAW))

    *path, last = names

    def walk(run: RenderState, dot: types.Value | None, final: types.Value | None) -> types.Value | None:
        run.node = node
        value = start(run, dot)
        for name in path:
            value = access.field(run, dot, name, node, (), MISSING, value)
        return access.field(run, dot, last, node, args, final, value)

    return walk


def _function(node: nodes.Identifier, whole: nodes.Node, args: Sequence[Argument], functions: Functions) -> Stage:
    name = node.name
    signature = functions[name]
    builtin = BUILTINS.get(name) is signature
    if builtin and name in ("and", "or"):
        return _short_circuit(node, signature, args)
    insert = None
    if builtin and name == "call" and isinstance(whole, nodes.CommandNode) and len(whole.args) > 1:
        callee = whole.args[1]
        shown = f"{callee}"
        insert = lambda: shown  # noqa: E731 - or None
    elif builtin and name == "call":
        insert = lambda: "<value>"  # noqa: E731 - the function itself comes from the stage before

    def invoke(run: RenderState, dot: types.Value | None, final: types.Value | None) -> types.Value | None:
        run.node = node
        run.step()
        return access.call(run, dot, signature, name, whole, args, final, insert)

    return invoke


def _short_circuit(node: nodes.Identifier, signature: types.Signature, args: Sequence[Argument]) -> Stage:
    """Compile `and` and `or`: the first argument that decides is the value, and no later one is evaluated."""
    desired = node.name == "or"

    def invoke(run: RenderState, dot: types.Value | None, final: types.Value | None) -> types.Value | None:
        run.node = node
        run.step()
        access.parameter_types(run, signature, node.name, len(args), final is not MISSING)
        value: types.Value | None = None
        for arg in args:
            value = cast("types.Value | None", arg(run, dot, types.RAW))
            if types.truth(value) is desired:
                return value
        return value if final is MISSING else final

    return invoke


def _argument(node: nodes.Operand, functions: Functions) -> Argument:
    """Compile an operand as an argument of a function: it has to fit the type of the parameter."""
    match node:
        case nodes.Dot():
            give: Eval = lambda _, dot: dot  # noqa: E731 - one of several
        case nodes.Nil():
            return lambda run, _, wanted: _nil(run, node, wanted)
        case nodes.Bool() | nodes.Text() | nodes.NumberNode():
            return _literal(node)
        case nodes.Pipe():
            give = pipeline(node, functions)
        case nodes.Variable(names=(name,)):
            give = lambda run, _: run.variable(name)  # noqa: E731 - one of several
        case nodes.Identifier():
            stage = _function(node, node, (), functions)
            give = lambda run, dot: stage(run, dot, MISSING)  # noqa: E731 - one of several
        case _:
            chain = _chain(node, (), functions)
            give = lambda run, dot: chain(run, dot, MISSING)  # noqa: E731 - one of several

    def argument(run: RenderState, dot: types.Value | None, desired: types.GoType) -> object:
        run.node = node
        return as_object(checked(run, give(run, dot), desired), desired)

    return argument


def _nil(run: RenderState, node: nodes.Nil, desired: types.GoType) -> object:
    run.node = node
    if desired.kind not in types.NILABLE:
        raise run.error(f"cannot assign nil to {desired}")
    return None if desired.kind in (types.GoKind.RAW, types.GoKind.INTERFACE) else types.zero(desired).data


def _literal(node: nodes.Bool | nodes.Text | nodes.NumberNode) -> Argument:
    ideal = _constant(node)
    plain = None if ideal is None else ideal.data

    def argument(run: RenderState, _: types.Value | None, desired: types.GoType) -> object:
        run.node = node
        if desired is types.RAW or desired is types.ANY:
            return ideal if ideal is not None else run.fail(f"{node} overflows int")
        if desired is types.STRING and type(plain) is str:
            return plain
        return _fitted(run, node, desired)

    return argument


def _fitted(run: RenderState, node: nodes.Bool | nodes.Text | nodes.NumberNode, desired: types.GoType) -> object:
    """Convert a literal to the required type."""
    match desired.kind, node:
        case types.GoKind.BOOL, nodes.Bool(true=true):
            return true
        case types.GoKind.STRING, nodes.Text(text=text):
            return text
        case types.GoKind.INT, nodes.NumberNode(number=number) if number.integer is not None:
            return wrapped(number.integer, desired)
        case types.GoKind.UINT, nodes.NumberNode(number=number) if number.unsigned is not None:
            return wrapped(number.unsigned, desired)
        case types.GoKind.FLOAT, nodes.NumberNode(number=number) if number.real is not None:
            return number.real
        case types.GoKind.COMPLEX, nodes.NumberNode(number=number) if (
            number.complex is not None or number.real is not None
        ):
            return number.complex if number.complex is not None else complex(number.real or 0)
    if desired.kind not in _EXPECTED:
        raise run.error(f"can't handle {node} for arg of type {desired}")
    raise run.error(f"expected {_EXPECTED[desired.kind]}; found {node}")
