"""Running the rules over an object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from unbounded_apiserver.cel import CostExceeded, EvalError, Meter
from unbounded_apiserver.cel.values import NONE, some
from unbounded_apiserver.schema import errors
from unbounded_apiserver.schema.rules import CelRule, RuleNode

OBJECT_LIMIT: Final = 10_000_000  # cost limit of all rules of one object
_MAX_MESSAGE_BYTES: Final = 5 * 1024
_EXHAUSTED: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class _Missing:
    """Marks an absent old value; null is a value."""


MISSING: Final = _Missing()


class _Parent(NamedTuple):
    """The nearest value above that corresponds to an old one; if it is unchanged, failures below it are ignored."""

    value: Any
    old: Any


class _OutOfBudget(Exception):
    pass


def run_rules(node: RuleNode, value: Any, old: Any, warnings: list[str] | None = None) -> list[errors.FieldError]:
    """Return the failures of the rules; `old` is MISSING on creation.

    Rules about changes run only where there is an old value. A failure of another rule is ignored where the value did
    not change, and goes to `warnings`.
    """
    if (old is MISSING or not node.reads_old) and _all_hold(node, value):
        return []
    runner = _Runner()
    with suppress(_OutOfBudget):
        runner.visit(node, value, old, None, _Parent(value, old))
    if warnings is not None:
        warnings += runner.warnings
    return runner.errors


def _all_hold(node: RuleNode, value: Any) -> bool:
    """Return whether all rules hold without an old value. They usually do, and this check needs no paths."""
    try:
        return _hold(node, value, Meter(OBJECT_LIMIT))
    except (EvalError, CostExceeded):
        return False


def _hold(node: RuleNode, value: Any, budget: Meter) -> bool:
    for rule in node.rules:
        if rule.reads_old and not rule.optional_old:
            continue
        given = NONE if rule.optional_old else None
        if rule.program.evaluate(value, given, budget=budget) is not True:
            return False
    others: RuleNode | None = None
    below: Iterable[Any] = ()
    if isinstance(value, dict):
        for name, child in node.properties.items():
            if (inner := value.get(name)) is not None and not _hold(child, inner, budget):
                return False
        others, below = node.additional, value.values()
    elif isinstance(value, list):
        others, below = node.items, value
    return others is None or all(item is None or _hold(others, item, budget) for item in below)


class _Runner:
    def __init__(self) -> None:
        self.errors: list[errors.FieldError] = []
        self.warnings: list[str] = []
        self.budget = Meter(OBJECT_LIMIT)

    def visit(self, node: RuleNode, value: Any, old: Any, path: errors.Path, parent: _Parent) -> None:
        if value is None:
            return
        if old is not MISSING:
            parent = _Parent(value, old)
        for rule in node.rules:
            self._run(rule, value, old, path, parent)
        for child, inner, inner_old, inner_path in _children(node, value, old, path):
            self.visit(child, inner, inner_old, inner_path, parent)

    def _run(self, rule: CelRule, value: Any, old: Any, path: errors.Path, parent: _Parent) -> None:
        if old is None:
            old = MISSING
        if rule.reads_old and old is MISSING and not rule.optional_old:
            return
        given: Any = None if old is MISSING else old
        if rule.optional_old:
            given = NONE if old is MISSING else some(old)
        kind = errors.JSON_TYPES.get(type(value), "object")
        try:
            passed = rule.program.evaluate(value, given, budget=self.budget)
        except EvalError as error:
            if str(error).startswith("no such overload"):
                problem = (
                    f"'{error}': call arguments did not match a supported operator, function or macro signature for "
                    f"rule: {rule.label}"
                )
            else:
                problem = f"{error} evaluating rule: {rule.label}"
            self.errors.append(errors.invalid(errors.render(path) or errors.NO_FIELD, kind, problem))
            return
        except CostExceeded as error:
            problem = _EXHAUSTED
            if self.budget.left >= 0:
                problem = (
                    f"'{error}': no further validation rules will be run due to call cost exceeds limit for "
                    f"rule: {rule.label}"
                )
            self.errors.append(errors.invalid(errors.render(path) or errors.NO_FIELD, kind, problem))
            raise _OutOfBudget from None
        if passed is not True:
            failure = self._failure(rule, value, given, path)
            if rule.reads_old or not _unchanged(parent):
                self.errors.append(failure)
            else:
                self.warnings.append(f"{failure.field}: {failure.message}")

    def _failure(self, rule: CelRule, value: Any, given: Any, path: errors.Path) -> errors.FieldError:
        where = errors.render(path)
        if rule.field:
            joint = "" if not where or rule.field.startswith("[") else "."
            where = f"{where}{joint}{rule.field}"
        where = where or errors.NO_FIELD
        detail = self._message(rule, value, given) or rule.message or f"failed rule: {rule.source}"
        match rule.reason:
            case "FieldValueForbidden":
                return errors.forbidden(where, detail)
            case "FieldValueRequired":
                return errors.required(where, detail)
            case "FieldValueDuplicate":
                return errors.duplicate(
                    where, value if not isinstance(value, (dict, list)) else errors.JSON_TYPES[type(value)]
                )
        if isinstance(value, (dict, list)):
            return errors.FieldError("FieldValueInvalid", where, f"Invalid value: {detail}")
        return errors.invalid(where, value, detail)

    def _message(self, rule: CelRule, value: Any, given: Any) -> str | None:
        """Return the value of messageExpression, unless it fails or cannot be shown."""
        if rule.message_program is None:
            return None
        try:
            message = rule.message_program.evaluate(value, given, budget=self.budget)
        except (EvalError, CostExceeded):
            return None
        message = message.strip() if isinstance(message, str) else ""
        return None if "\n" in message or len(message.encode()) > _MAX_MESSAGE_BYTES else message


def _unchanged(parent: _Parent) -> bool:
    return parent.old is not MISSING and errors.json_equal(parent.value, parent.old)


def _children(
    node: RuleNode, value: Any, old: Any, path: errors.Path
) -> Iterator[tuple[RuleNode, Any, Any, errors.Path]]:
    """Yield the values below that have rules, each with the old value that it corresponds to."""
    if isinstance(value, dict):
        before = old if isinstance(old, dict) and node.granular else {}
        for name, child in node.properties.items():
            if name in value:
                yield child, value[name], before.get(name, MISSING), (path, name)
        if node.additional is not None:
            for name, item in value.items():
                yield node.additional, item, before.get(name, MISSING), (path, errors.MapKey(name))
    elif isinstance(value, list) and node.items is not None:
        known = _by_key(old, node.map_keys)
        for index, item in enumerate(value):
            yield node.items, item, known.get(key_of(item, node.map_keys), MISSING), (path, index)


def key_of(item: Any, keys: tuple[str, ...] | None) -> str | None:
    """Return the key of an element of a map list, None if it has none."""
    if keys is None or not isinstance(item, dict):
        return None
    return repr([item.get(key) for key in keys])


def _by_key(old: Any, keys: tuple[str, ...] | None) -> dict[str | None, Any]:
    if not isinstance(old, list) or keys is None:
        return {}
    return {key: item for item in old if (key := key_of(item, keys)) is not None}
