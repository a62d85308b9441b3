"""The bootstrap tokens of a site: renewed under their names, and created again under them if a Machine waits."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS, Secret
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE
from unbounded.cli.deploy.site_tokens import (
    CreateToken,
    KeepToken,
    RenewToken,
    SiteTokens,
    WrittenToken,
    token_of,
    token_steps,
    tokens_for,
)
from unbounded.join.bootstrap_tokens import site_token_manifest, token_in
from unbounded.kube.api import Conflict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY = timedelta(hours=24)
SITE = "rack1"


def token(*, age: timedelta = timedelta(0), good_for: timedelta = DAY, **changed: str) -> Secret:
    """The Secret of a token that was made so long ago."""
    body = site_token_manifest(SITE, now=NOW - age, good_for=good_for, default=True)
    body["metadata"] |= {"resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["data"] |= {key.replace("_", "-"): b64encode(value.encode()).decode() for key, value in changed.items()}
    return msgspec.convert(body, Secret)


def renewed(secret: Secret, step: RenewToken) -> Secret:
    return msgspec.structs.replace(secret, data={**secret.data, **step.data})


def plan(*secrets: Secret, gone: tuple[str, ...] = (), waited_for: tuple[str, ...] = ()) -> Any:
    return token_steps(SITE, SiteTokens(secrets, gone, waited_for), now=NOW, good_for=DAY)


def test_a_site_without_one_gets_one() -> None:
    (step,) = plan()
    assert isinstance(step, CreateToken)
    made = token_in(msgspec.convert(step.manifest, Secret), now=NOW)
    assert (made.expires, step.manifest["metadata"]["labels"][LABEL_SITE]) == (NOW + DAY, SITE)


def test_one_that_is_good_for_long_enough_is_left() -> None:
    long = token(good_for=DAY * 3)
    assert plan(long) == (KeepToken(long.metadata.name, NOW + DAY * 3),)


def test_token_renewal_extends_expiry_and_keeps_the_secret() -> None:
    old = token(age=timedelta(hours=20))
    (step,) = plan(old)
    assert isinstance(step, RenewToken)
    assert (step.name, step.resource_version) == (old.metadata.name, "7")
    after = token_in(renewed(old, step), now=NOW)
    assert (after.expires, after.text) == (NOW + DAY, token_in(old, now=NOW - timedelta(hours=20)).text)


def test_expired_token_of_a_waiting_machine_is_renewed_with_new_secret() -> None:
    old = token(age=DAY * 2)
    (step,) = plan(old, waited_for=(old.metadata.name,))
    assert isinstance(step, RenewToken)
    before = token_in(old, now=NOW - DAY * 2)
    after = token_in(renewed(old, step), now=NOW)
    assert (after.id, after.expires) == (before.id, NOW + DAY)
    assert after.text != before.text


def test_expired_token_without_waiting_machines_is_not_renewed() -> None:
    (step,) = plan(token(age=DAY * 2))
    assert isinstance(step, CreateToken)


def test_one_that_is_gone_comes_back_under_its_name() -> None:
    (step,) = plan(gone=("bootstrap-token-123456",))
    assert isinstance(step, CreateToken)
    assert token_in(msgspec.convert(step.manifest, Secret), now=NOW).id == "123456"
    (made,) = plan(gone=("somebody-elses",))
    assert made.name != "somebody-elses"


def test_one_that_cannot_be_mended_by_time_is_not_touched() -> None:
    broken = token(auth_extra_groups="system:bootstrappers:others")
    (step,) = plan(broken, waited_for=(broken.metadata.name,))
    assert isinstance(step, CreateToken)


async def test_expired_tokens_are_renewed_for_waiting_but_not_ready_machines() -> None:
    api = MemoryApi()
    first = await written(api)
    assert [one.verb for one in first] == ["created"]
    name = first[0].name
    for machine, phase, ref in (
        ("m1", "Failed", name),
        ("m2", "Failed", "bootstrap-token-aaaaaa"),
        ("m3", "Ready", "bootstrap-token-bbbbbb"),
    ):
        body = {
            "metadata": {"name": machine, "labels": {LABEL_SITE: SITE}},
            "spec": {"kubernetes": {"bootstrapTokenRef": {"name": ref}}},
        }
        await api.create(MACHINES, body)
        await api.patch(MACHINES, machine, {"status": {"phase": phase}}, subresource="status")
    assert sorted((one.name, one.verb) for one in await written(api)) == sorted(
        [(name, "unchanged"), ("bootstrap-token-aaaaaa", "created")]
    )
    later = NOW + DAY * 2
    again = {one.name: one for one in await written(api, later)}
    assert {one.verb for one in again.values()} == {"renewed"}
    assert {one.until for one in again.values()} == {later + DAY}
    found = await token_of(api, SITE, now=lambda: later)
    assert found is not None
    assert found.token.expires == later + DAY
    assert found.secret == f"bootstrap-token-{found.token.id}"


async def test_site_without_its_own_token_uses_the_unnamed_default_token() -> None:
    api = MemoryApi()
    assert await token_of(api, SITE, now=lambda: NOW) is None
    body = site_token_manifest("", now=NOW, good_for=DAY, default=True)
    del body["metadata"]["labels"][LABEL_SITE]
    await api.create(SECRETS, body, namespace="kube-system")
    found = await token_of(api, SITE, now=lambda: NOW)
    assert found is not None
    assert (found.token.id, found.secret) == (b64decode(body["data"]["token-id"]).decode(), "")
    await tokens_for(api, "another", DAY, now=lambda: NOW)
    assert await token_of(api, SITE, now=lambda: NOW) == found


async def written(api: Any, now: datetime = NOW) -> tuple[WrittenToken, ...]:
    return await tokens_for(api, SITE, DAY, now=lambda: now)


async def test_concurrently_changed_token_is_read_again() -> None:
    api = MemoryApi()
    (made,) = await written(api)
    conflicts = 0

    class Racing:
        def __getattr__(self, name: str) -> Any:
            return getattr(api, name)

        async def patch(self, *args: Any, **named: Any) -> Any:
            nonlocal conflicts
            if conflicts < 2:
                conflicts += 1
                raise Conflict("it has changed")
            return await api.patch(*args, **named)

    (again,) = await written(Racing(), NOW + timedelta(hours=5))
    assert (again.name, again.verb, conflicts) == (made.name, "renewed", 2)
    conflicts = -5
    with pytest.raises(Conflict):
        await written(Racing(), NOW + timedelta(hours=10))
    secret = await api.get(SECRETS, made.name, namespace="kube-system")
    assert b64decode(secret.data["expiration"]).decode() == "2026-01-03T08:04:05Z"
