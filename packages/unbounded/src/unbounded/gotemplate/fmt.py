"""Values of any type under any verb, and format strings: the upper half of Go's package fmt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unbounded.gotemplate.fmt_writer import Flags
from unbounded.gotemplate.types import (
    BYTES,
    CallFailed,
    GoKind,
    Method,
    Value,
    elements,
    inside,
    is_nil,
    sorted_items,
)

Args = Sequence[Value | None]
LONGEST: Final = 4 << 20  # letters that one call may produce; more is an error
WIDEST: Final = 10_000  # the width or precision of one value; more is an error
MAX_NUMBER: Final = 1_000_000  # for width, precision and argument numbers
_REAL_PRECISION: Final = {"v": -1, "b": -1, "g": -1, "G": -1, "x": -1, "X": -1, "f": 6, "F": 6, "e": 6, "E": 6}
_BASES: Final = {"d": 10, "v": 10, "b": 2, "o": 8, "O": 8, "x": 16, "X": 16}
_FLAGS: Final = {"#": "sharp", "+": "plus", "-": "minus", " ": "space", "0": "zero"}
_ADDRESS: Final = 0xC000000000  # of every object: an output must not change from one rendering to the next


def sprint(args: Args) -> str:
    """fmt.Sprint: a space between two operands when neither is a string."""
    if len(args) == 1:
        return format_arg(Flags(), args[0], "v")
    out = _Output()
    previous_string = True
    for arg in args:
        string = arg is not None and arg.type.kind is GoKind.STRING
        if not string and not previous_string:
            out.add(" ")
        out.add(format_arg(Flags(), arg, "v"))
        previous_string = string
    return "".join(out.parts)


def sprintln(args: Args) -> str:
    """fmt.Sprintln: a space between all operands, and a newline."""
    out = _Output()
    for arg in args:
        out.add(format_arg(Flags(), arg, "v"))
    return " ".join(out.parts) + "\n"


def sprintf(template: str, args: Args) -> str:
    """fmt.Sprintf, with its error texts (`%!d(string=x)`) in the result."""
    if "%" not in template and not args:
        return template
    return _FormatPass(template, args).run()


class _Output:
    """Pieces of text, up to a limit."""

    __slots__ = ("parts", "room")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.room = LONGEST

    def add(self, text: str) -> None:
        self.room -= len(text)
        if self.room < 0:
            raise CallFailed(f"result is longer than {LONGEST} characters")
        self.parts.append(text)


class _FormatPass:
    """Pass over a format string."""

    def __init__(self, template: str, args: Args) -> None:
        self.template = template
        self.args = args
        self.place = 0
        self.arg = 0
        self.indexed = False  # the last thing read was [n]
        self.reordered = False
        self.good = True  # the [n] of this verb are well formed
        self.out = _Output()

    def run(self) -> str:
        end = len(self.template)
        while self.place < end:
            percent = self.template.find("%", self.place)
            self.out.add(self.template[self.place : percent if percent >= 0 else end])
            if percent < 0:
                break
            self.place = percent + 1
            self.out.add(self.verb())
        if not self.reordered and self.arg < len(self.args):
            self.out.add(self.extra())
        return "".join(self.out.parts)

    def peek(self) -> str:
        return self.template[self.place : self.place + 1]

    def verb(self) -> str:
        flags = Flags()
        while (name := _FLAGS.get(self.peek())) is not None:
            setattr(flags, name, True)
            self.place += 1
        self.good, self.indexed = True, False
        self.argument_number()
        complaint = self.width(flags) + self.precision(flags)
        if not self.indexed:
            self.argument_number()
        if max(flags.width or 0, flags.precision or 0) > WIDEST:
            raise CallFailed(f"width or precision is above {WIDEST}")
        verb = self.peek()
        self.place += 1
        return complaint + self.formatted(flags, verb)

    def formatted(self, flags: Flags, verb: str) -> str:
        if not verb:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        if not self.good:
            return f"%!{verb}(BADINDEX)"
        if self.arg >= len(self.args):
            return f"%!{verb}(MISSING)"
        if verb == "v":
            flags.sharp_v, flags.sharp = flags.sharp, False
            flags.plus_v, flags.plus = flags.plus, False
        self.arg += 1
        return format_arg(flags, self.args[self.arg - 1], verb)

    def width(self, flags: Flags) -> str:
        if self.peek() == "*":
            self.place += 1
            flags.width = self.number_argument()
            if flags.width is None:
                return "%!(BADWIDTH)"
            if flags.width < 0:
                flags.width, flags.minus, flags.zero = -flags.width, True, False
            return ""
        flags.width = self.number()
        if self.indexed and flags.width is not None:
            self.good = False
        return ""

    def precision(self, flags: Flags) -> str:
        if self.peek() != ".":
            return ""
        self.place += 1
        if self.indexed:
            self.good = False
        self.argument_number()
        if self.peek() != "*":
            flags.precision = self.number() or 0
            return ""
        self.place += 1
        flags.precision = self.number_argument()
        if flags.precision is None:
            return "%!(BADPREC)"
        if flags.precision < 0:
            flags.precision = None
            return "%!(BADPREC)"
        return ""

    def number(self) -> int | None:
        """Read a number; None if there is none, or if it is too large, which also skips to the end."""
        start = self.place
        while self.peek().isascii() and self.peek().isdigit():
            self.place += 1
            if int(self.template[start : self.place]) > MAX_NUMBER:
                self.place = len(self.template)
                return None
        return int(self.template[start : self.place]) if self.place > start else None

    def number_argument(self) -> int | None:
        """Return the argument of a `*` if it is an integer of a sensible size."""
        self.indexed = False
        if self.arg >= len(self.args):
            return None
        value = self.args[self.arg]
        self.arg += 1
        if value is None or value.type.kind not in (GoKind.INT, GoKind.UINT) or abs(value.data) > MAX_NUMBER:
            return None
        return int(value.data)

    def argument_number(self) -> None:
        """Read `[n]` if it follows."""
        if self.peek() != "[":
            return
        self.reordered = True
        close = self.template.find("]", self.place)
        digits = self.template[self.place + 1 : close] if close > 0 else ""
        if close < 0:
            self.place += 1
            self.good = False
            return
        self.place = close + 1
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 7 else 0
        if 1 <= number <= len(self.args):
            self.arg = number - 1
            self.indexed = True
        else:
            self.good = False

    def extra(self) -> str:
        rest = self.args[self.arg :]
        shown = ("<nil>" if arg is None else f"{arg.type}={format_arg(Flags(), arg, 'v')}" for arg in rest)
        return f"%!(EXTRA {', '.join(shown)})"


def format_arg(flags: Flags, arg: Value | None, verb: str) -> str:
    """Format an argument under a verb."""
    if arg is None:
        return flags.string("<nil>") if verb in "Tv" else f"%!{verb}(<nil>)"
    if verb == "T":
        return flags.string(arg.type.name)
    if verb == "p":
        if arg.type.kind not in (GoKind.POINTER, GoKind.MAP, GoKind.SLICE, GoKind.FUNC):
            return bad_verb(arg, verb)
        return flags.pointer(_address(arg), prefix=not flags.sharp)
    return _value(flags, arg, verb, 0)


def bad_verb(arg: Value, verb: str, flags: Flags | None = None) -> str:
    return f"%!{verb}({arg.type}={_value(flags or Flags(), arg, 'v', 0, methods=False)})"


def _value(flags: Flags, arg: Value, verb: str, depth: int, *, methods: bool = True) -> str:
    kind, data = arg.type.kind, arg.data
    if methods and verb in "vsxXq" and not flags.sharp_v:
        text = _described(arg)
        if text is not None:
            return _string(flags, text, verb, arg)
    match kind:
        case GoKind.STRING:
            return _string(flags, data, verb, arg)
        case GoKind.BOOL:
            return flags.boolean(data) if verb in "tv" else bad_verb(arg, verb, flags)
        case GoKind.INT | GoKind.UINT:
            return _integer(flags, arg, verb)
        case GoKind.FLOAT | GoKind.COMPLEX:
            return _real(flags, arg, verb)
        case GoKind.SLICE | GoKind.ARRAY:
            return _sequence(flags, arg, verb, depth)
        case GoKind.MAP:
            return _map(flags, arg, verb, depth)
        case GoKind.STRUCT:
            return _struct(flags, arg, verb, depth)
        case GoKind.INTERFACE:
            return _interface_content(flags, arg, verb, depth)
    return _pointer(flags, arg, verb, depth)


def _real(flags: Flags, arg: Value, verb: str) -> str:
    """Format a real or complex number."""
    if verb not in _REAL_PRECISION:
        return bad_verb(arg, verb, flags)
    named, precision = {"v": "g", "F": "f"}.get(verb, verb), _REAL_PRECISION[verb]
    if arg.type.kind is GoKind.COMPLEX:
        return flags.complex(arg.data, named, precision)
    return flags.real(arg.data, named, precision, arg.type.bits)


def _described(arg: Value) -> str | None:
    """Return the result of the value's String() or Error(), if it has one."""
    method = next((found for name in ("Error", "String") if (found := _method(arg, name))), None)
    if method is None:
        return None
    if arg.type.kind is GoKind.POINTER and arg.data is None:
        return "<nil>"
    return str(method.signature.call(arg.data))


def _method(arg: Value, name: str) -> Method | None:
    if arg.type.kind is GoKind.POINTER and arg.type.elem is not None:
        return arg.type.elem.methods.get(name)
    method = arg.type.methods.get(name)
    return method if method and not method.pointer else None


def _string(flags: Flags, text: str, verb: str, arg: Value) -> str:
    if verb == "s" or (verb == "v" and not flags.sharp_v):
        return flags.string(text)
    if verb in "vq":
        return flags.quoted(text)
    if verb in "xX":
        return flags.hexadecimal(text.encode("utf-8", "surrogateescape"), upper=verb == "X")
    return bad_verb(arg, verb, flags)


def _integer(flags: Flags, arg: Value, verb: str) -> str:
    if verb == "v" and flags.sharp_v and arg.type.kind is GoKind.UINT:
        return flags.pointer(arg.data, prefix=True)
    if verb in _BASES:
        return flags.integer(arg.data, _BASES[verb], verb)
    match verb:
        case "c":
            return flags.rune(arg.data)
        case "q":
            return flags.quoted_rune(arg.data)
        case "U":
            return flags.code_point(arg.data)
    return bad_verb(arg, verb, flags)


def _interface_content(flags: Flags, arg: Value, verb: str, depth: int) -> str:
    """Format the content of an interface."""
    held = inside(arg)
    if held is None:
        return f"{arg.type}(nil)" if flags.sharp_v else "<nil>"
    return _value(flags, held, verb, depth + 1)


def _sequence(flags: Flags, arg: Value, verb: str, depth: int) -> str:
    elem = arg.type.of_elements
    if elem.name == "uint8" and verb in "sqxX":
        data = bytes(arg.data or b"")
        if verb in "xX":
            return flags.hexadecimal(data, upper=verb == "X")
        text = data.decode("utf-8", "surrogateescape")
        return flags.string(text) if verb == "s" else flags.quoted(text)
    if flags.sharp_v and arg.data is None:
        return f"{arg.type}(nil)"
    if elem.name == "uint8" and verb == "d" and arg.type.name == BYTES.name:
        verb = "v"
    parts = [_value(flags, item, verb, depth + 1) for item in elements(arg)]
    return f"{arg.type}{{{', '.join(parts)}}}" if flags.sharp_v else f"[{' '.join(parts)}]"


def _map(flags: Flags, arg: Value, verb: str, depth: int) -> str:
    if flags.sharp_v and arg.data is None:
        return f"{arg.type}(nil)"
    parts = [
        f"{_value(flags, key, verb, depth + 1)}:{_value(flags, item, verb, depth + 1)}"
        for key, item in sorted_items(arg)
    ]
    return f"{arg.type}{{{', '.join(parts)}}}" if flags.sharp_v else f"map[{' '.join(parts)}]"


def _struct(flags: Flags, arg: Value, verb: str, depth: int) -> str:
    parts = []
    for name in arg.type.own:
        found = arg.type.fields[name]
        value = Value(found.type, found.get(arg.data), arg.addressable)
        if found.type.kind is GoKind.INTERFACE:
            value = inside(value) or value
        text = _value(flags, value, verb, depth + 1, methods=found.exported)
        parts.append(f"{name}:{text}" if flags.plus_v or flags.sharp_v else text)
    return f"{arg.type}{{{', '.join(parts)}}}" if flags.sharp_v else f"{{{' '.join(parts)}}}"


def _pointer(flags: Flags, arg: Value, verb: str, depth: int) -> str:
    elem = arg.type.elem
    if (
        elem
        and depth == 0
        and arg.data is not None
        and elem.kind in (GoKind.ARRAY, GoKind.SLICE, GoKind.STRUCT, GoKind.MAP)
    ):
        return "&" + _value(flags, Value(elem, arg.data, addressable=True), verb, depth + 1)
    address = _address(arg)
    if verb == "v":
        if flags.sharp_v:
            return f"({arg.type})({flags.pointer(address, prefix=True) if address else 'nil'})"
        return flags.pointer(address, prefix=not flags.sharp) if address else flags.pad("<nil>")
    if verb in _BASES:
        return flags.integer(address, _BASES[verb], verb)
    return bad_verb(arg, verb, flags)


def _address(arg: Value) -> int:
    return 0 if is_nil(arg) else _ADDRESS
