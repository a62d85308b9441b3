"""Reading and writing of a site's bootstrap tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.api.names import LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.cli.deploy import token_plan
from unbounded.cli.deploy.token_plan import CreateToken, KeepToken, RenewToken, SiteTokens, TokenStep
from unbounded.join.tokens import NAMESPACE, UsableToken, default_token, newest_usable, secret_name
from unbounded.kube.clock import utc_now
from unbounded.kube.errors import Conflict, NotFound
from unbounded.kube.port import Api

ATTEMPTS: Final = 3


@dataclass(frozen=True)
class WrittenToken:
    """Result for one token. `until` is None for one that never expires."""

    name: str
    verb: str
    until: datetime | None


async def tokens_for(
    api: Api, site: str, good_for: timedelta, *, now: Callable[[], datetime] = utc_now
) -> tuple[WrittenToken, ...]:
    """Make or renew tokens with which hosts of the site can join for the given time.

    Raises:
        Conflict: other clients changed them at each attempt.
    """
    for left in reversed(range(ATTEMPTS)):
        at = now()
        try:
            steps = token_plan.steps(site, await _existing_tokens(api, site), now=at, good_for=good_for)
            return tuple([await _write(api, step, at, good_for) for step in steps])
        except Conflict:
            if not left:
                raise
    raise AssertionError


async def _existing_tokens(api: Api, site: str) -> SiteTokens:
    listing, machines = await asyncio.gather(
        api.list(SECRETS, namespace=NAMESPACE, labels=f"{LABEL_SITE}={site}"),
        api.list(MACHINES, labels=f"{LABEL_SITE}={site}"),
    )
    named = {secret.metadata.name for secret in listing.items}
    waited_for = sorted({name for machine in machines.items if (name := _awaited_token(machine))})
    gone = [name for name in waited_for if name not in named and await _is_missing(api, name)]
    return SiteTokens(listing.items, gone, [name for name in waited_for if name in named])


def _awaited_token(machine: Machine) -> str:
    """Return the Secret with the token for a Machine's join; empty for one that has joined, or names none."""
    kubernetes = machine.spec.kubernetes
    if machine.status.phase == MachinePhase.READY or kubernetes is None or kubernetes.bootstrap_token_ref is None:
        return ""
    return kubernetes.bootstrap_token_ref.name


async def _is_missing(api: Api, name: str) -> bool:
    try:
        await api.get(SECRETS, name, namespace=NAMESPACE)
    except NotFound:
        return True
    return False


async def _write(api: Api, step: TokenStep, now: datetime, good_for: timedelta) -> WrittenToken:
    until = token_plan.good_until(step, now=now, good_for=good_for)
    match step:
        case CreateToken(manifest=manifest):
            await api.create(SECRETS, manifest, namespace=NAMESPACE)
            return WrittenToken(step.name, "created", until)
        case RenewToken(name=name, data=data, resource_version=version):
            patch = {"metadata": {"resourceVersion": version}, "data": dict(data)}
            await api.patch(SECRETS, name, patch, namespace=NAMESPACE)
            return WrittenToken(name, "renewed", until)
        case KeepToken(name=name):
            return WrittenToken(name, "unchanged", until)


@dataclass(frozen=True)
class JoinToken:
    """A token with which hosts of a site can join now.

    Args:
        secret: the Secret of the site's own token; empty for the cluster's default one, which Machines need not name.
    """

    token: UsableToken
    secret: str


async def token_of(api: Api, site: str, *, now: Callable[[], datetime] = utc_now) -> JoinToken | None:
    """Return the newest token of the site, else the default one; None if there is neither."""
    of_site = (await api.list(SECRETS, namespace=NAMESPACE, labels=f"{LABEL_SITE}={site}")).items
    if (token := newest_usable(of_site, site, now=now())) is not None:
        return JoinToken(token, secret_name(token.id))
    defaults = (await api.list(SECRETS, namespace=NAMESPACE, labels=f"{LABEL_DEFAULT_BOOTSTRAP_TOKEN}=true")).items
    token = default_token(defaults, site, now=now())
    return None if token is None else JoinToken(token, "")
