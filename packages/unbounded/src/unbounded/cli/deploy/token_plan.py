"""Bootstrap tokens of a site: the decision which to make and which to renew. Pure.

A Machine names its token. So a token is renewed under its name. A deleted token that a Machine still waits for is
made again under its name: its id is no secret, and its secret half is a new one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded.api.core import Secret
from unbounded.api.failures import Rejected
from unbounded.join.tokens import is_secret_name, newest_usable, secret_name, site_token_manifest, token_in
from unbounded.kube.clock import rfc3339

Raw = dict[str, Any]

PREFIX: Final = secret_name("")
SLACK: Final = timedelta(minutes=1)  # a token that expires this much too early is not renewed


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


def steps(site: str, existing: SiteTokens, *, now: datetime, good_for: timedelta) -> tuple[TokenStep, ...]:
    """Return the steps after which hosts of the site can join from now on until `good_for` has passed."""
    by_name = {secret.metadata.name: secret for secret in existing.secrets}
    newest = newest_usable(existing.secrets, site, now=now)
    desired = dict.fromkeys((*([secret_name(newest.id)] if newest else []), *existing.waited_for))
    found = [step for name in desired if (step := _again(by_name[name], site, now=now, good_for=good_for)) is not None]
    made = [_under(name, site, now=now, good_for=good_for) for name in existing.gone if is_secret_name(name)]
    if not found and not made:
        return (CreateToken(site_token_manifest(site, now=now, good_for=good_for, default=True)),)
    return (*found, *made)


def _again(secret: Secret, site: str, *, now: datetime, good_for: timedelta) -> TokenStep | None:
    """Return the step that extends an existing token; None for one that is unusable for other reasons than its time."""
    name = secret.metadata.name
    try:
        token = token_in(secret, now=now)
    except Rejected:
        return _revived(secret, site, now=now, good_for=good_for)
    if token.expires is None or token.expires + SLACK >= now + good_for:
        return KeepToken(name, token.expires)
    return RenewToken(name, {"expiration": _encoded(rfc3339(now + good_for))}, secret.metadata.resource_version)


def _revived(secret: Secret, site: str, *, now: datetime, good_for: timedelta) -> TokenStep | None:
    """Renew an expired token with a new secret half: the old one may have leaked."""
    fresh = site_token_manifest(site, now=now, good_for=good_for, default=True)["data"]
    data = {key: fresh[key] for key in ("expiration", "token-secret")}
    try:
        token_in(msgspec.structs.replace(secret, data={**secret.data, **data}), now=now)
    except Rejected:
        return None
    return RenewToken(secret.metadata.name, data, secret.metadata.resource_version)


def _under(name: str, site: str, *, now: datetime, good_for: timedelta) -> CreateToken:
    """Make a new token under a name that was used before."""
    manifest = site_token_manifest(site, now=now, good_for=good_for, default=True)
    manifest["metadata"]["name"] = name
    manifest["data"]["token-id"] = _encoded(name.removeprefix(PREFIX))
    return CreateToken(manifest)


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def good_until(step: TokenStep, *, now: datetime, good_for: timedelta) -> datetime | None:
    """Return the expiry of the token of a step; None if it never expires."""
    return step.until if isinstance(step, KeepToken) else now + good_for
