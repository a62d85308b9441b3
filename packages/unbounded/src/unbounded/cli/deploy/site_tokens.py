"""Bootstrap tokens of a site: which to make and which to renew, and their Secrets.

A Machine names its token. So a token is renewed under its name. A deleted token that a Machine still waits for is
made again under its name: its id is no secret, and its secret half is a new one. `token_steps` decides, and is pure.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.api.names import LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.join import bootstrap_tokens
from unbounded.kube.api import Api, Conflict, NotFound
from unbounded.kube.clock import rfc3339, utc_now

Raw = dict[str, Any]

PREFIX: Final = bootstrap_tokens.secret_name("")
SLACK: Final = timedelta(minutes=1)  # a token that expires this much too early is not renewed
ATTEMPTS: Final = 3


@dataclass(frozen=True)
class CreateToken:
    """Creation of a Secret."""

    manifest: Raw

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class RenewToken:
    """Update of a Secret of this version.

    Args:
        data: base64, by key.
    """

    name: str
    data: Mapping[str, str]
    resource_version: str


@dataclass(frozen=True)
class KeepToken:
    """No change: the token is valid for long enough. `until` is None for one that never expires."""

    name: str
    until: datetime | None


TokenStep = CreateToken | RenewToken | KeepToken


@dataclass(frozen=True)
class SiteTokens:
    """Existing tokens, and the demand for them.

    Args:
        secrets: those with the label of the site.
        gone: names of Secrets that Machines of the site wait for, and that do not exist.
        waited_for: those that exist, with the label.
    """

    secrets: Sequence[Secret] = ()
    gone: Sequence[str] = ()
    waited_for: Sequence[str] = ()


def token_steps(site: str, existing: SiteTokens, *, now: datetime, good_for: timedelta) -> tuple[TokenStep, ...]:
    """Return the steps after which hosts of the site can join from now on until `good_for` has passed."""
    by_name = {secret.metadata.name: secret for secret in existing.secrets}
    newest = bootstrap_tokens.newest_usable(existing.secrets, site, now=now)
    desired = dict.fromkeys((*([bootstrap_tokens.secret_name(newest.id)] if newest else []), *existing.waited_for))
    found = [step for name in desired if (step := _again(by_name[name], site, now=now, good_for=good_for)) is not None]
    made = [
        _under(name, site, now=now, good_for=good_for)
        for name in existing.gone
        if bootstrap_tokens.is_secret_name(name)
    ]
    if not found and not made:
        return (CreateToken(bootstrap_tokens.site_token_manifest(site, now=now, good_for=good_for, default=True)),)
    return (*found, *made)


def _again(secret: Secret, site: str, *, now: datetime, good_for: timedelta) -> TokenStep | None:
    """Return the step that extends an existing token; None for one that is unusable for other reasons than its time."""
    name = secret.metadata.name
    try:
        token = bootstrap_tokens.token_in(secret, now=now)
    except Rejected:
        return _revived(secret, site, now=now, good_for=good_for)
    if token.expires is None or token.expires + SLACK >= now + good_for:
        return KeepToken(name, token.expires)
    return RenewToken(name, {"expiration": _encoded(rfc3339(now + good_for))}, secret.metadata.resource_version)


def _revived(secret: Secret, site: str, *, now: datetime, good_for: timedelta) -> TokenStep | None:
    """Renew an expired token with a new secret half: the old one may have leaked."""
    fresh = bootstrap_tokens.site_token_manifest(site, now=now, good_for=good_for, default=True)["data"]
    data = {key: fresh[key] for key in ("expiration", "token-secret")}
    try:
        bootstrap_tokens.token_in(msgspec.structs.replace(secret, data={**secret.data, **data}), now=now)
    except Rejected:
        return None
    return RenewToken(secret.metadata.name, data, secret.metadata.resource_version)


def _under(name: str, site: str, *, now: datetime, good_for: timedelta) -> CreateToken:
    """Make a new token under a name that was used before."""
    manifest = bootstrap_tokens.site_token_manifest(site, now=now, good_for=good_for, default=True)
    manifest["metadata"]["name"] = name
    manifest["data"]["token-id"] = _encoded(name.removeprefix(PREFIX))
    return CreateToken(manifest)


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def good_until(step: TokenStep, *, now: datetime, good_for: timedelta) -> datetime | None:
    """Return the expiry of the token of a step; None if it never expires."""
    return step.until if isinstance(step, KeepToken) else now + good_for


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
            steps = token_steps(site, await _existing_tokens(api, site), now=at, good_for=good_for)
            return tuple([await _write(api, step, at, good_for) for step in steps])
        except Conflict:
            if not left:
                raise
    raise AssertionError


async def _existing_tokens(api: Api, site: str) -> SiteTokens:
    listing, machines = await asyncio.gather(
        api.list(SECRETS, namespace=bootstrap_tokens.NAMESPACE, labels=f"{LABEL_SITE}={site}"),
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
        await api.get(SECRETS, name, namespace=bootstrap_tokens.NAMESPACE)
    except NotFound:
        return True
    return False


async def _write(api: Api, step: TokenStep, now: datetime, good_for: timedelta) -> WrittenToken:
    until = good_until(step, now=now, good_for=good_for)
    match step:
        case CreateToken(manifest=manifest):
            await api.create(SECRETS, manifest, namespace=bootstrap_tokens.NAMESPACE)
            return WrittenToken(step.name, "created", until)
        case RenewToken(name=name, data=data, resource_version=version):
            patch = {"metadata": {"resourceVersion": version}, "data": dict(data)}
            await api.patch(SECRETS, name, patch, namespace=bootstrap_tokens.NAMESPACE)
            return WrittenToken(name, "renewed", until)
        case KeepToken(name=name):
            return WrittenToken(name, "unchanged", until)


@dataclass(frozen=True)
class JoinToken:
    """A token with which hosts of a site can join now.

    Args:
        secret: the Secret of the site's own token; empty for the cluster's default one, which Machines need not name.
    """

    token: bootstrap_tokens.UsableToken
    secret: str


async def token_of(api: Api, site: str, *, now: Callable[[], datetime] = utc_now) -> JoinToken | None:
    """Return the newest token of the site, else the default one; None if there is neither."""
    of_site = (await api.list(SECRETS, namespace=bootstrap_tokens.NAMESPACE, labels=f"{LABEL_SITE}={site}")).items
    if (token := bootstrap_tokens.newest_usable(of_site, site, now=now())) is not None:
        return JoinToken(token, bootstrap_tokens.secret_name(token.id))
    defaults = (
        await api.list(SECRETS, namespace=bootstrap_tokens.NAMESPACE, labels=f"{LABEL_DEFAULT_BOOTSTRAP_TOKEN}=true")
    ).items
    token = bootstrap_tokens.default_token(defaults, site, now=now())
    return None if token is None else JoinToken(token, "")
