"""Rules of roles, without storage: their rights, and comparison of rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded_apiserver.auth import AuthAttributes

ALL: Final = "*"


@dataclass(frozen=True)
class PolicyRule:
    """One rule of a role: for resources, or for paths that are not resources (`urls`)."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def read(cls, rule: Mapping[str, Any]) -> PolicyRule:
        """Parse a stored PolicyRule."""
        return cls(*(tuple(rule.get(field) or ()) for field in _FIELDS))

    def write(self) -> dict[str, list[str]]:
        """Return the rule as a PolicyRule."""
        values = (self.verbs, self.groups, self.resources, self.names, self.urls)
        return {field: list(value) for field, value in zip(_FIELDS, values, strict=True) if value}

    def allows(self, attributes: AuthAttributes) -> bool:
        if not _has(self.verbs, attributes.verb):
            return False
        if attributes.path:
            return any(_url_matches(url, attributes.path) for url in self.urls)
        return (
            _has(self.groups, attributes.group)
            and any(_resource_matches(known, attributes.resource, attributes.subresource) for known in self.resources)
            and (not self.names or attributes.name in self.names)
        )

    def expand(self) -> Iterator[PolicyRule]:
        """Yield the same rights as rules of one verb and one resource or path each."""
        for url, verb in itertools.product(self.urls, self.verbs):
            yield PolicyRule((verb,), urls=(url,))
        for group, resource, verb in itertools.product(self.groups, self.resources, self.verbs):
            for name in self.names or ("",):
                yield PolicyRule((verb,), (group,), (resource,), (name,) if name else ())

    def covers(self, other: PolicyRule) -> bool:
        """Return whether this rule alone includes all rights of `other`, a simple rule."""
        return (
            _has(self.verbs, other.verbs[0])
            and all(_has(self.groups, group) for group in other.groups)
            and all(any(_resource_matches(known, *_split(r)) for known in self.resources) for r in other.resources)
            and (not self.names or (bool(other.names) and set(other.names) <= set(self.names)))
            and all(any(_url_matches(known, url) for known in self.urls) for url in other.urls)
        )

    def __str__(self) -> str:
        named = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.urls),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{name}:{go_list(value)}" for name, value in named if value) + "}"


EVERYTHING: Final = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), urls=(ALL,)))
_FIELDS: Final = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")


def uncovered_rules(granted: Sequence[PolicyRule], desired: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Return the rights of `desired` that no rule of `held` covers; verbs of one resource are joined."""
    found: dict[PolicyRule, list[str]] = {}
    for simple in itertools.chain.from_iterable(rule.expand() for rule in desired):
        if not any(rule.covers(simple) for rule in granted):
            verbs = found.setdefault(replace(simple, verbs=()), [])
            if simple.verbs[0] not in verbs:
                verbs.append(simple.verbs[0])
    return [replace(thing, verbs=tuple(verbs)) for thing, verbs in found.items()]


def go_list(values: Iterable[str]) -> str:
    """Format a list of strings as Go prints it with %q."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "[" + " ".join(f'"{value}"' for value in quoted) + "]"


def _has(known: Sequence[str], value: str) -> bool:
    return ALL in known or value in known


def _split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource


def _resource_matches(known: str, resource: str, subresource: str) -> bool:
    if known == ALL:
        return True
    if subresource and known == f"{ALL}/{subresource}":
        return True
    return known == (f"{resource}/{subresource}" if subresource else resource)


def _url_matches(known: str, path: str) -> bool:
    return known in {ALL, path} or (known.endswith(ALL) and path.startswith(known.rstrip(ALL)))
