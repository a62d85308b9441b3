"""Rights of one user to watch objects, as the API server has them.

A question for each right costs the server a request, again and again. The rules of the user stand for them: while the
rules that decide on a right are the same, so is the answer. Where the server cannot list the rules whole, as with an
authorization webhook, they prove nothing, and each right is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from unbounded.api.core import SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_RULES_REVIEWS
from unbounded.api.meta import Kind
from unbounded.kube.api import ApiError

Raw = dict[str, Any]
Ask = Callable[[Kind[Raw], Raw], Awaitable[Raw]]  # creates a review
Rules = Mapping[str, bytes]  # digests, by namespace

EVERYWHERE: Final = "*"  # no namespace has this name: its rules are those that hold in all of them
NEVER_LISTED: Final = frozenset({403, 404})  # answers of a server that lists no rules for this user


class WatchRight(NamedTuple):
    """The right to watch objects of a kind: all of them, unless a namespace or a name is given."""

    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    @property
    def of_kind(self) -> WatchRight:
        """Return the right to watch all objects of the kind, which includes this one."""
        return WatchRight(self.group, self.resource)

    @property
    def namespaces(self) -> frozenset[str]:
        """Return the namespaces whose rules decide on the right."""
        return frozenset({EVERYWHERE, self.namespace or EVERYWHERE})

    def attributes(self) -> dict[str, str]:
        """Return the right as the resourceAttributes of a review."""
        found = {"verb": "watch", **self._asdict()}
        return {name: value for name, value in found.items() if value or name == "group"}


@dataclass(frozen=True)
class _Answer:
    """An answer: the cause where the user does not have a right, and the namespaces whose rules decide on it."""

    denial: str | None
    namespaces: frozenset[str]


@dataclass(frozen=True)
class _Proven:
    """An answer, with the rules by which it was given."""

    answer: _Answer
    rules: Rules

    def holds(self, rules: Rules) -> bool:
        """Return whether the same rules are in force."""
        return all(rules.get(one) == self.rules[one] for one in self.answer.namespaces)


class UserRights:
    """The rights of one user.

    Args:
        ask: creates a review with the credentials of the user.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._proven: dict[WatchRight, _Proven] = {}
        self._lists_rules = True
        self._narrow: set[WatchRight] = set()  # kinds of which the user may not watch all objects

    async def check(self, uses: Mapping[WatchRight, Collection[bool]]) -> AsyncIterator[tuple[WatchRight, str | None]]:
        """Yield each right that was asked for, and why the user does not have it; None where they have it.

        A right is not asked for whose rules are as they were, unless one of its uses contradicts the answer.

        Args:
            uses: by right, whether its uses are denied at present.

        Raises:
            ApiError: the server does not answer.
        """
        self._proven = {right: known for right, known in self._proven.items() if right in uses}
        namespaces = frozenset[str]().union(*(self._deciding(right) for right in uses))
        rules = await self._rules(namespaces)
        asked: dict[WatchRight, str | None] = {}
        answers: dict[WatchRight, _Answer] = {}
        for right, denied in uses.items():
            known = self._proven.get(right)
            if known and known.holds(rules) and set(denied) == {known.answer.denial is not None}:
                continue
            try:
                answer = answers[right] = await self._answer(right, asked)
            except ApiError as error:
                if not error.code:
                    raise
                continue  # it changes no rights
            yield right, answer.denial
        if answers:
            await self._prove(answers, rules)

    def _deciding(self, right: WatchRight) -> frozenset[str]:
        known = self._proven.get(right)
        return right.namespaces if known is None else known.answer.namespaces

    async def _prove(self, answers: Mapping[WatchRight, _Answer], rules: Rules) -> None:
        """Remember answers if the rules were the same before and after them."""
        after = await self._rules(frozenset(rules))
        for right, answer in answers.items():
            self._proven.pop(right, None)
            if all(one in rules and rules[one] == after.get(one) for one in answer.namespaces):
                self._proven[right] = _Proven(answer, {one: rules[one] for one in answer.namespaces})

    async def _answer(self, right: WatchRight, asked: dict[WatchRight, str | None]) -> _Answer:
        """Ask for the whole kind first: its answer serves all parts, and rests on fewer rules."""
        questions = (right,) if right.of_kind in self._narrow else (right.of_kind, right)
        for question in questions:
            if question not in asked:
                asked[question] = await self._denial(question)
            if asked[question] is None:
                return _Answer(None, question.namespaces)
            if question == right.of_kind:
                self._narrow.add(question)
        return _Answer(asked[right], right.namespaces)

    async def _denial(self, right: WatchRight) -> str | None:
        desired = {"spec": {"resourceAttributes": right.attributes()}}
        status = (await self._ask(SELF_SUBJECT_ACCESS_REVIEWS, desired)).get("status") or {}
        return None if status.get("allowed") else str(status.get("reason") or f"you may not watch {right.resource}")

    async def _rules(self, namespaces: Iterable[str]) -> Rules:
        """Return the digests of the user's rules in namespaces, without those that the server cannot list whole."""
        found: dict[str, bytes] = {}
        for namespace in sorted(namespaces):
            if not self._lists_rules:
                return {}
            try:
                review = await self._ask(SELF_SUBJECT_RULES_REVIEWS, {"spec": {"namespace": namespace}})
            except ApiError as error:
                if not error.code:
                    raise
                self._lists_rules = error.code not in NEVER_LISTED
                continue
            status = review.get("status") or {}
            if status.get("incomplete"):
                self._lists_rules = False
            elif not status.get("evaluationError"):
                found[namespace] = _digest(status.get("resourceRules") or ())
        return found


def _digest(rules: Iterable[Raw]) -> bytes:
    """Return a digest of rules, whose order and number mean nothing."""
    return hashlib.sha256(b"\n".join(sorted({msgspec.json.encode(one, order="sorted") for one in rules}))).digest()
