"""Compilation of x-kubernetes-validations, with all reasons for which kube-apiserver rejects one.

A rule's `fieldPath` leads by dots and quoted keys through the schema to the field of its error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from unbounded_apiserver.cel import CelProgram, Checked, CompileError, ProgramError, check_expression
from unbounded_apiserver.cel.declare import MAX_REQUEST_BYTES, declare
from unbounded_apiserver.cel.types import Decl, optional_of
from unbounded_apiserver.schema.errors import FieldError, forbidden, go_json, invalid, not_supported, required
from unbounded_apiserver.schema.structure import Raw

_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)*)'\]")
_WORD: Final = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]]+")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}
RULE_LIMIT: Final = 10_000_000  # limit of a rule's estimated cost, over all values that it applies to
SCHEMA_LIMIT: Final = 100_000_000  # limit of the estimated cost of all rules of a schema
REASONS: Final = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_MOST_EXPENSIVE: Final = 4


class BadFieldPath(Exception):
    """The path leads to no field of the schema."""


@dataclass(frozen=True, slots=True)
class CelRule:
    """A compiled rule.

    Attributes:
        label: the name of the rule in errors: its message, else its source.
        field: the path of failures below the value, "" for the value itself.
        reads_old: the rule is about a change, and runs only where there is an old value.
        optional_old: the rule runs on creation too; oldSelf is an optional.
    """

    program: CelProgram
    source: str
    message: str
    message_program: CelProgram | None
    reason: str
    field: str
    reads_old: bool
    optional_old: bool

    @property
    def label(self) -> str:
        return self.message or self.source


@dataclass
class RuleNode:
    """The rules of one schema and of those below it, without branches that have no rules."""

    rules: list[CelRule]
    properties: dict[str, RuleNode]
    items: RuleNode | None
    additional: RuleNode | None
    map_keys: tuple[str, ...] | None  # keys by which list elements correspond to old ones; None if they do not
    granular: bool  # whether the fields of the value correspond to those of the old one

    @cached_property
    def reads_old(self) -> bool:
        """True if any of the rules is about a change."""
        below = (*self.properties.values(), self.items, self.additional)
        return any(rule.reads_old for rule in self.rules) or any(node.reads_old for node in below if node is not None)


@dataclass(slots=True)
class Costs:
    """The estimated costs of the rules so far: path and cost."""

    charged: list[tuple[str, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(cost for _, cost in self.charged)


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of a schema: the greatest number of its values, None if nothing limits it."""

    cardinality: int | None = 1
    uncorrelatable: str | None = None  # the path below which old values have no counterpart

    def below(self, bound: Any, uncorrelatable: str | None = None) -> _Context:
        count = None if bound is None or self.cardinality is None else self.cardinality * max(int(bound), 0)
        return _Context(count, self.uncorrelatable or uncorrelatable)


def compile_rules(raw: Raw, path: str, *, root: bool = True) -> tuple[RuleNode | None, list[FieldError]]:
    """Return the rules of a structural schema, and their errors; with errors, the rules cannot be used.

    Args:
        root: the schema is that of a whole resource.
    """
    compiler = _Compiler()
    node = compiler.node(raw, path, _Context(), root=root)
    return node, [*compiler.errors, *_total_errors(compiler.costs, path)]


class _Compiler:
    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self.costs = Costs()

    def node(self, raw: Raw, path: str, context: _Context, *, root: bool = False) -> RuleNode | None:
        rules = self._rules(raw, path, context, root=root) if raw.get("x-kubernetes-validations") else []
        granular = raw.get("x-kubernetes-map-type") != "atomic"
        fields = context.below(1, None if granular else path)
        properties = {
            name: child
            for name, inner in (raw.get("properties") or {}).items()
            if (child := self.node(inner, f"{path}.properties[{name}]", fields)) is not None
        }
        additional = raw.get("additionalProperties")
        others = None
        if isinstance(additional, Mapping):
            values = context.below(raw.get("maxProperties"), None if granular else path)
            others = self.node(additional, f"{path}.additionalProperties", values)
        keys = tuple(raw.get("x-kubernetes-list-map-keys") or ()) or None
        items = None
        if isinstance(raw.get("items"), Mapping):
            elements = context.below(raw.get("maxItems"), None if keys else path)
            items = self.node(raw["items"], f"{path}.items", elements)
        if not (rules or properties or others or items):
            return None
        return RuleNode(rules, properties, items, others, keys, granular)

    def _rules(self, raw: Raw, path: str, context: _Context, *, root: bool) -> list[CelRule]:
        decl = declare(raw, resource_root=root or bool(raw.get("x-kubernetes-embedded-resource")))
        if decl is None:
            shown = str(bool(raw.get("x-kubernetes-preserve-unknown-fields"))).lower()
            why = (
                "Internal error: rule declared on schema that does not support validation rules "
                f"type: '{raw.get('type', '')}' x-kubernetes-preserve-unknown-fields: '{shown}'"
            )
            self.errors.append(FieldError("InternalError", f"{path}.x-kubernetes-validations", why))
            return []
        found = []
        for index, rule in enumerate(raw["x-kubernetes-validations"]):
            where = f"{path}.x-kubernetes-validations[{index}]"
            self.errors.extend(_form_errors(rule, raw, where))
            compiled = self._rule(rule, raw, decl, where, context)
            if compiled is not None:
                found.append(compiled)
        return found

    def _rule(self, rule: Raw, raw: Raw, decl: Decl, path: str, context: _Context) -> CelRule | None:
        if not rule.get("rule", "").strip():
            return None
        optional_old = bool(rule.get("optionalOldSelf"))
        old = Decl(optional_of(decl.type)) if optional_old else decl
        variables = {"self": decl, "oldSelf": old}
        compiled = self._expression(rule, "rule", "", "bool", variables, path)
        message = None
        if rule.get("messageExpression", "").strip():
            message = self._expression(rule, "messageExpression", "messageExpression ", "string", variables, path)
        for found, name, words in ((compiled, "rule", "rule"), (message, "messageExpression", "messageExpression")):
            if found is not None:
                self._charge(found[0], decl, f"{path}.{name}", words, context)
        if rule.get("optionalOldSelf") is not None and (compiled is None or "oldSelf" not in compiled[0].reads):
            why = "may not be set if oldSelf is not used in rule"
            self.errors.append(invalid(f"{path}.optionalOldSelf", optional_old, why))
        if compiled is None:
            return None
        reads_old = "oldSelf" in compiled[0].reads
        if reads_old and not optional_old and context.uncorrelatable is not None:
            within = context.uncorrelatable
            why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
            self.errors.append(invalid(f"{path}.rule", rule["rule"], why))
        return CelRule(
            program=compiled[1],
            source=rule["rule"].strip(),
            message=rule.get("message", "").strip(),
            message_program=None if message is None else message[1],
            reason=rule.get("reason") or "FieldValueInvalid",
            field=_normalized(rule.get("fieldPath", ""), raw),
            reads_old=reads_old,
            optional_old=optional_old,
        )

    def _expression(
        self, rule: Raw, name: str, words: str, desired: str, variables: dict[str, Decl], path: str
    ) -> tuple[Checked, CelProgram] | None:
        """Compile one expression of a rule, which must be of the given type; report problems in `errors`."""
        try:
            checked = check_expression(rule[name], variables)
            if str(checked.type) != desired:
                subject = "cel expression" if name == "rule" else name
                problem = f"{subject} must evaluate to a {desired}"
            else:
                return checked, checked.program()
        except CompileError as error:
            problem = f"{words}compilation failed: {error}"
        except ProgramError as error:
            problem = f"{words}program instantiation failed: {error}"
        self.errors.append(
            FieldError("FieldValueInvalid", f"{path}.{name}", f"Invalid value: {_dump(rule)}: {problem}")
        )
        return None

    def _charge(self, checked: Checked, decl: Decl, path: str, words: str, context: _Context) -> None:
        count = context.cardinality
        if count is None:
            count = MAX_REQUEST_BYTES // (decl.min_size + 1)
        cost = checked.max_cost * count
        self.costs.charged.append((path, cost))
        if cost > RULE_LIMIT:
            self.errors.append(forbidden(path, _exceeds(f"estimated {words} cost", cost, RULE_LIMIT)))


def _total_errors(costs: Costs, path: str) -> Iterator[FieldError]:
    if costs.total <= SCHEMA_LIMIT:
        return
    expensive = sorted(costs.charged, key=lambda charged: charged[1], reverse=True)[:_MOST_EXPENSIVE]
    for where, cost in expensive:
        if cost > SCHEMA_LIMIT // 100:
            why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
            yield forbidden(where, why)
    words = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
    yield forbidden(path, _exceeds(words, costs.total, SCHEMA_LIMIT))


def _exceeds(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    if factor > 100:
        shown = "more than 100x"
    elif factor < 1.5:
        shown = f"{factor:f}x"
    else:
        shown = f"{factor:.1f}x"
    advice = (
        "try simplifying the rule, or adding maxItems, maxProperties, and maxLength "
        "where arrays, maps, and strings are declared"
    )
    return f"{what} exceeds budget by factor of {shown} ({advice})"


def _form_errors(rule: Raw, raw: Raw, path: str) -> Iterator[FieldError]:
    """Yield the errors of a rule's other fields than its expression."""
    source, message = rule.get("rule", ""), rule.get("message", "")
    if not source.strip():
        yield required(f"{path}.rule", "rule is not specified")
    if message and not message.strip():
        yield invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"{path}.message", message, "must not contain line breaks")
    elif "\n" in source.strip() and not message:
        yield required(f"{path}.message", "message must be specified if rule contains line breaks")
    expression = rule.get("messageExpression", "")
    if expression and not expression.strip():
        yield required(f"{path}.messageExpression", "messageExpression must be non-empty if specified")
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        yield not_supported(f"{path}.reason", reason, REASONS)
    problem = _field_path_problem(rule.get("fieldPath", ""), raw)
    if problem is not None:
        yield invalid(f"{path}.fieldPath", rule["fieldPath"], problem)


def _field_path_problem(field_path: str, raw: Raw) -> str | None:
    if not field_path:
        return None
    if not field_path.strip():
        return "must be non-empty if specified"
    if "\n" in field_path:
        return "must not contain line breaks"
    try:
        resolve_field_path(field_path, raw)
    except BadFieldPath as error:
        return str(error)
    return None


def _normalized(field_path: str, raw: Raw) -> str:
    try:
        return resolve_field_path(field_path, raw) if field_path else ""
    except BadFieldPath:
        return ""  # reported by _form_errors


def _dump(rule: Raw) -> str:
    """Return the rule as Go prints its struct."""
    names = {"Rule": "rule", "Message": "message", "MessageExpression": "messageExpression", "Reason": "reason"}
    names |= {"FieldPath": "fieldPath", "OptionalOldSelf": "optionalOldSelf"}
    pointers = ("reason", "optionalOldSelf")
    members = (f'"{go}":{go_json(rule.get(name, None if name in pointers else ""))}' for go, name in names.items())
    return "{" + ",".join(members) + "}"


def selected_field(path: str, raw: Raw) -> Raw:
    """Return the schema of a selectable field such as `.spec.a`.

    Raises:
        BadFieldPath: the path is malformed or leads to no field; the message is kube-apiserver's.
    """
    schema: Any = raw
    words = iter(_WORD.findall(path))
    for word in words:
        if word == "[":
            raise BadFieldPath("array notation is not allowed")
        if word != ".":
            raise BadFieldPath(f"expected [ or . but got: {word}")
        name = next(words, None)
        if name is None:
            raise BadFieldPath("unexpected end of JSON path")
        properties = schema.get("properties")
        schema = schema.get("additionalProperties") if properties is None else properties.get(name)
        if not isinstance(schema, Mapping):
            raise BadFieldPath("does not refer to a valid field")
    return cast(Raw, schema)


def resolve_field_path(path: str, raw: Raw) -> str:
    """Return the path as errors print it (`.spec.a['x.y']` as `spec.a.x.y`, keys of maps in brackets).

    Raises:
        BadFieldPath: the path is malformed or leads to no field.
    """
    schema: Any = raw
    printed: list[str] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or not isinstance(schema, Mapping):
            raise BadFieldPath("must be a valid path")
        name = match[1] if match[1] is not None else _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], ""), match[2])
        additional = schema.get("additionalProperties")
        if schema.get("properties") is None and isinstance(additional, Mapping):
            printed.append(f"[{name}]")
            schema = additional
        elif name in (schema.get("properties") or {}):
            printed.append(f".{name}")
            schema = schema["properties"][name]
        else:
            raise BadFieldPath("must be a valid path")
        at = match.end()
    return "".join(printed).removeprefix(".")
