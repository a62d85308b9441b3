"""Definitions of resources whose schemas and rules are damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from tests.apiserver.fuzz.corpus import DEFINITIONS, Ask
from tests.apiserver.fuzz.values import bent, objects, odd

OPERATORS: Final = ("+", "-", "*", "/", "%", "==", "<", ">=", "&&", "||", " in ", "? 1 :", ".")
WORDS: Final = (
    "self",
    "oldSelf",
    "self.x",
    "self.spec",
    "1",
    "-9223372036854775808",
    "1u",
    "1e308",
    "'a'",
    "b'\\xff'",
    "''.repeat(9)",
    "[1,2]",
    "{'a':1}",
    "size(self)",
    "self.all(x, self.all(y, self.all(z, x == y)))",
    "self.map(x, self.map(y, y))",
    "self.exists_one(a, true)",
    "has(self.x)",
    "'a'.matches('(a+)+$')",
    "'a'.matches('(')",
    "quantity('1e99999')",
    "duration('9999999999h')",
    "timestamp('0000-01-01T00:00:00Z')",
    "ip('::ffff:1.2.3.4')",
    "cidr('1.2.3.4/99')",
    "url('http://[')",
    "optional.of(1).orValue(2)",
    "type(self)",
    "dyn(self)",
    "string(1)+string(2)",
    "'%d'.format([1,2,'x'])",
    "sets.contains([1],[1])",
    "x",
    "__proto__",
    "null",
    "true",
    "(",
    ")",
    "'",
    '"""',
    "//",
    "\\",
    "@",
)


def rule(rng: random.Random) -> str:
    """A CEL expression: right now and then, deep and expensive now and then."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(("(", "[", "!", "-", "{'a':", "self.all(x,")) * rng.choice((50, 300, 3000)) + "true"
    if kind == 1:
        return rng.choice(OPERATORS).join([rng.choice(WORDS)] * rng.choice((10, 100, 2000)))
    words = [rng.choice(WORDS) for _ in range(rng.randrange(1, 7))]
    return "".join(word + rng.choice(OPERATORS) for word in words) + rng.choice(WORDS)


def definition(ask: Ask, rng: random.Random) -> Ask:
    """Definitions with damaged schemas and rules, under a few names, so that they do not pile up."""
    body: Any = json.loads(json.dumps(ask.body))
    name = rng.choice(("fa", "fb", "fc"))
    body["metadata"] = {"name": f"{name}s.fuzz.example"}
    body["spec"]["group"] = "fuzz.example"
    body["spec"]["names"] = {"plural": f"{name}s", "singular": name, "kind": name.capitalize()}
    for version in body["spec"]["versions"]:
        holders = [o for o in objects(version.get("schema")) if "type" in o]
        for holder in rng.sample(holders, min(len(holders), rng.choice((1, 2, 5)))):
            rng.choice(SCHEMA_BENDS)(holder, rng)
    if rng.random() < 0.3:
        body = bent(body, rng)
    method, path = ("POST", DEFINITIONS) if rng.random() < 0.7 else ("PUT", f"{DEFINITIONS}/{name}s.fuzz.example")
    return Ask(method, path, {}, body)


def _with_rule(holder: dict[str, Any], rng: random.Random) -> None:
    holder["x-kubernetes-validations"] = [{"rule": rule(rng), **rng.choice(({}, {"messageExpression": rule(rng)}))}]


def _with_word(holder: dict[str, Any], rng: random.Random) -> None:
    word = rng.choice(SCHEMA_WORDS)
    holder[word] = rng.choice(
        ("(a+)+$", "[", "a{1000}{1000}", "array", "string", "date-time", True, 5, -1, [], {}, odd(rng))
    )


def _deep(holder: dict[str, Any], rng: random.Random) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(rng.choice((20, 100, 200))):
        schema = (
            {"type": "object", "properties": {"a": schema}}
            if rng.random() < 0.9
            else {"type": "array", "items": schema}
        )
    holder.update({"type": "object", "properties": {"deep": schema}})


def _wide(holder: dict[str, Any], rng: random.Random) -> None:
    holder.setdefault("properties", {}).update({f"p{n}": {"type": "string"} for n in range(rng.choice((10, 300)))})


SCHEMA_BENDS: Final[tuple[Callable[[dict[str, Any], random.Random], None], ...]] = (
    _with_rule,
    _with_rule,
    _with_rule,
    _with_word,
    _with_word,
    _deep,
    _wide,
)
SCHEMA_WORDS: Final = (
    "pattern",
    "type",
    "format",
    "enum",
    "default",
    "items",
    "properties",
    "additionalProperties",
    "required",
    "minimum",
    "maxLength",
    "multipleOf",
    "uniqueItems",
    "nullable",
    "allOf",
    "anyOf",
    "not",
    "oneOf",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-map-type",
    "externalDocs",
    "$ref",
    "definitions",
)
