"""The Go types and functions that the recordings of Go were made with."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, Final

from unbounded.gotemplate import types as go
from unbounded.gotemplate.fmt import sprint, sprintf
from unbounded.gotemplate.types import CallFailed, GoField, GoKind, GoType, Method, Signature, Value

NIL_POINTER: Final = "runtime error: invalid memory address or nil pointer dereference"


def _getter(name: str, type_: GoType) -> Callable[[Any], Any]:
    default = go.zero(type_).data if type_.kind is not GoKind.STRUCT else {}

    def get(data: Any) -> Any:
        value = data.get(name)
        return default if value is None else value

    return get


def _struct(name: str, methods: dict[str, Method] | None = None, **types: GoType) -> GoType:
    fields = {each: GoField(each, type_, _getter(each, type_)) for each, type_ in types.items()}
    return GoType(GoKind.STRUCT, f"main.{name}", named=True, fields=fields, own=tuple(types), methods=methods or {})


def _method(result: GoType, call: Callable[..., Any], *params: GoType, pointer: bool = False, **more: Any) -> Method:
    def guarded(receiver: Any, *args: Any) -> Any:
        if receiver is None:
            raise CallFailed(NIL_POINTER)
        return call(receiver, *args)

    return Method(Signature(params, result, guarded, **more), pointer)


def _fail(message: str) -> Any:
    raise CallFailed(message)


STATES: Final = ("off", "on", "broken")
STATE: Final = GoType(
    GoKind.INT, "main.State", named=True, methods={"String": _method(go.STRING, lambda state: STATES[state])}
)
DURATION: Final = GoType(
    GoKind.INT,
    "time.Duration",
    named=True,
    methods={
        "String": _method(go.STRING, lambda ns: f"{ns // 60_000_000_000}m{ns // 1_000_000_000 % 60}s"),
        "Seconds": _method(go.FLOAT64, lambda ns: ns / 1e9),
    },
)
RACK: Final = _struct(
    "Rack",
    {"Label": _method(go.STRING, lambda rack: f"{rack['Row']}-{rack['Unit']:02d}", pointer=True)},
    Row=go.STRING,
    Unit=go.INT,
)
SITE: Final = _struct("Site", Name=go.STRING, Rack=go.pointer_to(RACK))
NIC: Final = _struct("NIC", Name=go.STRING, MAC=go.STRING, IPs=go.slice_of(go.STRING), MTU=go.INT)
DISK: Final = _struct("Disk", Name=go.STRING, SizeGB=go.INT64, Rotational=go.BOOL, Health=go.FLOAT64)
BASE: Final = _struct("Base", Owner=go.STRING, Rev=go.INT)

_METHODS: Final = {
    "FQDN": _method(go.STRING, lambda m: f"{m.get('Hostname', '')}.{m.get('Domain', '')}"),
    "Power": _method(go.STRING, lambda m: STATES[m.get("State", 0)], pointer=True),
    "Add": _method(go.INT, lambda _, a, b: a + b, go.INT, go.INT),
    "Join": _method(go.STRING, lambda _, sep, *xs: sep.join(xs), go.STRING, go.STRING, variadic=True),
    "Fail": _method(go.STRING, lambda _: _fail("bmc unreachable")),
    "Two": _method(go.INT, lambda _: 1, invalid="second return value should be error; is int"),
    "Scale": _method(go.FLOAT64, lambda m, f: m["Load"] * f, go.FLOAT64),
    "First": _method(go.pointer_to(NIC), lambda m: m["NICs"][0]),
}


def _machine() -> GoType:
    methods: dict[str, Method] = dict(_METHODS)
    fields: dict[str, GoField] = {}
    machine = GoType(GoKind.STRUCT, "main.Machine", named=True, fields=fields, methods=methods)
    types = {
        "Hostname": go.STRING,
        "Domain": go.STRING,
        "ID": go.INT,
        "Enabled": go.BOOL,
        "Load": go.FLOAT64,
        "Temp": GoType(GoKind.FLOAT, "float32", bits=32),
        "Small": go.UINT8,
        "Big": GoType(GoKind.UINT, "uint64"),
        "Neg": GoType(GoKind.INT, "int8", bits=8),
        "State": STATE,
        "Timeout": DURATION,
        "Site": SITE,
        "Parent": go.pointer_to(machine),
        "Primary": go.pointer_to(NIC),
        "NICs": go.slice_of(NIC),
        "Disks": go.slice_of(go.pointer_to(DISK)),
        "Labels": go.map_of(go.STRING, go.STRING),
        "Counts": go.map_of(go.STRING, go.INT),
        "Attrs": go.ANY_MAP,
        "Ports": go.map_of(go.INT, go.STRING),
        "NICByName": go.map_of(go.STRING, go.pointer_to(NIC)),
        "Serial": go.pointer_to(go.STRING),
        "Cores": go.pointer_to(go.INT),
        "Tags": go.slice_of(go.STRING),
        "Matrix": go.slice_of(go.slice_of(go.INT)),
        "Raw": go.BYTES,
        "Arr": GoType(GoKind.ARRAY, "[3]int", elem=go.INT),
        "Extra": go.ANY,
        "Sum": GoType(GoKind.FUNC, "func(int, int) int"),
        "Check": GoType(GoKind.FUNC, "func(string) (string, error)"),
        "NilFunc": GoType(GoKind.FUNC, "func() string"),
    }
    fields.update({name: GoField(name, type_, _getter(name, type_)) for name, type_ in types.items()})
    fields["Base"] = GoField("Base", BASE, lambda m: {key: m[key] for key in ("Owner", "Rev") if key in m})
    fields.update(BASE.fields)
    fields["secret"] = GoField("secret", go.STRING, lambda _: "hidden", exported=False)
    return machine


MACHINE: Final = _machine()


def _as_machine(data: Any) -> Any:
    if data is None:
        return None
    machine = dict(data)
    machine["Sum"] = Signature((go.INT, go.INT), go.INT, lambda a, b: a + b)
    machine["Check"] = Signature(
        (go.STRING,), go.STRING, lambda s: _fail(f"check failed: {s}") if s == "bad" else f"ok:{s}"
    )
    if "Raw" in machine:
        machine["Raw"] = base64.b64decode(machine["Raw"])
    if "Ports" in machine:
        machine["Ports"] = {int(port): name for port, name in machine["Ports"].items()}
    if "Temp" in machine:
        machine["Temp"] = struct.unpack("f", struct.pack("f", machine["Temp"]))[0]
    return machine


def _floats(data: Any) -> Any:
    """JSON as encoding/json decodes it into interfaces: all numbers are float64."""
    if isinstance(data, dict):
        return {key: _floats(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_floats(value) for value in data]
    return float(data) if isinstance(data, int) and not isinstance(data, bool) else data


_TYPES: Final = {
    "map[string]string": go.map_of(go.STRING, go.STRING),
    "[]string": go.slice_of(go.STRING),
    "[]int": go.slice_of(go.INT),
    "map[string]*NIC": go.map_of(go.STRING, go.pointer_to(NIC)),
    "map[string]int": go.map_of(go.STRING, go.INT),
    "string": go.STRING,
    "int": go.INT,
    "float64": go.FLOAT64,
    "bool": go.BOOL,
}


def typed(data: Any, name: str) -> Value | None:
    """The data of a recorded case as the Go value that it was rendered with."""
    match name:
        case "nil":
            return None
        case "map[string]any, whole numbers as int":
            return Value(go.ANY_MAP, data)
        case "map[string]any":
            return Value(go.ANY_MAP, _floats(data))
        case "*Machine" | "(*Machine)(nil)":
            if data is not None and "Attrs" in data:
                data = {**data, "Attrs": _floats(data["Attrs"])}
            return Value(go.pointer_to(MACHINE), _as_machine(data))
        case "Machine":
            return Value(MACHINE, _as_machine(data))
        case "[]Machine":
            return Value(go.slice_of(MACHINE), [_as_machine(each) for each in data])
        case "map[int]string":
            return Value(go.map_of(go.INT, go.STRING), {int(key): value for key, value in data.items()})
    return Value(_TYPES[name], data)


def _default(fallback: Value | None, value: Value | None) -> Value | None:
    return value if go.truth(value) else fallback


_INTS: Final = go.slice_of(go.INT)
FUNCTIONS: Final = {
    "upper": Signature((go.STRING,), go.STRING, str.upper),
    "join": Signature((go.slice_of(go.STRING), go.STRING), go.STRING, lambda xs, sep: sep.join(xs or ())),
    "add": Signature((go.INT, go.INT), go.INT, lambda a, b: a + b),
    "addf": Signature((go.FLOAT64, go.FLOAT64), go.FLOAT64, lambda a, b: a + b),
    "i64": Signature((go.INT64,), go.INT64, lambda a: a),
    "u8": Signature((go.UINT8,), go.UINT8, lambda a: a),
    "isnil": Signature((go.ANY,), go.BOOL, lambda a: a is None),
    "typeof": Signature((go.ANY,), go.STRING, lambda a: sprintf("%T", [a])),
    "fail": Signature((go.STRING,), go.STRING, _fail),
    "boom": Signature((), go.STRING, lambda: _fail("boom")),
    "seq": Signature((go.INT,), _INTS, lambda n: list(range(n))),
    "vari": Signature(
        (go.STRING, go.INT), go.STRING, lambda sep, *xs: sep.join(sprint([Value(go.INT, x)]) for x in xs), variadic=True
    ),
    "default": Signature((go.ANY, go.ANY), go.ANY, _default),
    "indent": Signature((go.INT, go.STRING), go.STRING, lambda n, s: s.replace("\n", "\n" + " " * n)),
    "noargs": Signature((), go.STRING, lambda: "none"),
}
