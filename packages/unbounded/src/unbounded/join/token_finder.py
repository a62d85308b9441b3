"""Selection of a Machine's bootstrap token: the one that it names, else a default one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import msgspec

from unbounded.api import core
from unbounded.api.conditions import ConditionReason
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.join.bootstrap_tokens import NAMESPACE, UsableToken, default_token, is_secret_name, token_in
from unbounded.kube.api import READ_FORBIDDEN, Api, Forbidden
from unbounded.kube.clock import WallClock, utc_now

LIST_EVERY_S: Final = 2.0
_DEFAULTS: Final = f"{LABEL_DEFAULT_BOOTSTRAP_TOKEN}=true"
_NAMED: Final = "spec.kubernetes.bootstrapTokenRef"


class Secrets(Protocol):
    """Reads of Secrets."""

    async def get(self, namespace: str, name: str) -> core.Secret | None:
        """Return the Secret; None where there is none. Raises Forbidden, or any other ApiError of the read."""
        ...

    async def pace(self) -> None:
        """Wait until one more read may be made."""
        ...


@dataclass(frozen=True)
class FoundToken:
    """Result of a selection.

    Args:
        token: None where no token lets the host join now.
        need: what is missing in that case, for a message.
        reason: of condition Provisioning in that case.
    """

    token: UsableToken | None
    need: str | None = None
    reason: ConditionReason = ConditionReason.TOKEN_UNUSABLE


class TokenFinder:
    """Finds tokens. Default tokens are listed at most every two seconds, for all callers together."""

    def __init__(self, api: Api, secrets: Secrets, *, now: WallClock = utc_now) -> None:
        self._api = api
        self._secrets = secrets
        self._wall = now
        self._lock = asyncio.Lock()
        self._defaults: tuple[core.Secret, ...] = ()
        self._listed_at: float | None = None

    async def find(self, machine: Machine) -> FoundToken:
        """Return the token of a Machine, or what is missing.

        Raises:
            ApiError: of a read that may succeed the next time.
        """
        kubernetes = machine.spec.kubernetes
        ref = kubernetes.bootstrap_token_ref if kubernetes is not None else None
        if ref is None:
            return await self._default(machine)
        return await self._named(machine, ref.name)

    async def _named(self, machine: Machine, name: str) -> FoundToken:
        where = f"Secret {NAMESPACE}/{name}"
        try:
            secret = await self._secrets.get(NAMESPACE, name)
        except Forbidden as error:
            words = f"{_NAMED}: {where} {READ_FORBIDDEN}: {error}"
            return FoundToken(None, words, ConditionReason.TOKEN_FORBIDDEN)
        if secret is None:
            return _not_usable(machine, f"{where} does not exist", can_come_back=is_secret_name(name))
        now = self._wall()
        try:
            return FoundToken(token_in(secret, now=now, machine_uid=machine.metadata.uid))
        except Rejected as error:
            return _not_usable(machine, str(error), can_come_back=_is_only_old(secret, machine, now))

    async def _default(self, machine: Machine) -> FoundToken:
        try:
            there = await self._listed()
        except Forbidden as error:
            words = f"default bootstrap tokens {READ_FORBIDDEN} ({error}): name one in {_NAMED}"
            return FoundToken(None, words, ConditionReason.TOKEN_FORBIDDEN)
        token = default_token(there, machine.site, now=self._wall())
        if token is not None:
            return FoundToken(token)
        return FoundToken(None, f"{self._why_none(there, machine)}; {_advice(machine)}, or name a token in {_NAMED}")

    def _why_none(self, there: tuple[core.Secret, ...], machine: Machine) -> str:
        """Return why no default token is usable; the message is about the first one."""
        place = f" for site {machine.site}" if machine.site else ""
        for secret in there:
            try:
                token_in(secret, now=self._wall())
            except Rejected as error:
                return f"no default bootstrap token{place} is valid: {error}"
        return f"no default bootstrap token{place} exists (label {_DEFAULTS} on a Secret of {NAMESPACE})"

    async def _listed(self) -> tuple[core.Secret, ...]:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._listed_at is None or now - self._listed_at > LIST_EVERY_S:
                await self._secrets.pace()
                self._defaults = await list_default_tokens(self._api)
                self._listed_at = asyncio.get_running_loop().time()
            return self._defaults


async def list_default_tokens(api: Api) -> tuple[core.Secret, ...]:
    """Read the default bootstrap tokens of all sites."""
    return (await api.list(SECRETS, namespace=NAMESPACE, labels=_DEFAULTS)).items


def _advice(machine: Machine) -> str:
    return f"`kubectl unbounded site init --name {machine.site or 'SITE'}` creates one"


def _not_usable(machine: Machine, why: str, *, can_come_back: bool) -> FoundToken:
    """Return the fault of a token that a Machine names: `site init` creates those of its site again by name."""
    if machine.site and can_come_back:
        return FoundToken(None, f"{_NAMED}: {why}; {_advice(machine)}")
    another = f"name another one in {_NAMED}, or none, so that it joins with a default token; {_advice(machine)}"
    return FoundToken(None, f"{_NAMED}: {why}; {another}", ConditionReason.TOKEN_NOT_RENEWABLE)


def _is_only_old(secret: core.Secret, machine: Machine, now: datetime) -> bool:
    """Return whether a token of the Machine's site has no fault but its expiry."""
    if secret.metadata.labels.get(LABEL_SITE) != machine.site:
        return False
    lasting = {key: value for key, value in secret.data.items() if key != "expiration"}
    try:
        token_in(msgspec.structs.replace(secret, data=lasting), now=now, machine_uid=machine.metadata.uid)
    except Rejected:
        return False
    return True
