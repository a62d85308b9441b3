"""Credentials: which one is used, why none is, and what becomes of a session when its credential changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.machineops.world import SITE, CloudWorld, cloud_story
from tests.operations.staging import result
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.fields import Cause
from unbounded.api.names import NAMESPACE
from unbounded.machineops import reasons
from unbounded.machineops.provider import Refusal
from unbounded.machineops.reasons import credential_cause, secret_cause
from unbounded.operations import reasons as common

REF: dict[str, Any] = {"mode": "ExternalPlugin", "secretRef": {"namespace": NAMESPACE, "name": "sim-auth"}}
ELSEWHERE: dict[str, Any] = {"mode": "ExternalPlugin", "secretRef": {"namespace": "default", "name": "sim-auth"}}

INCOMPLETE = secret_cause(reasons.SECRET_INCOMPLETE, "unbounded-kube/sim-auth", "token")
CAUSES = {
    reasons.AUTH_INVALID: credential_cause(reasons.CREDENTIAL_INVALID, "sim-0"),
    reasons.AUTH_SECRET_FORBIDDEN: credential_cause(reasons.CREDENTIAL_INVALID, "sim-0"),
    reasons.AUTH_SECRET_NOT_FOUND: secret_cause(reasons.SECRET_MISSING, "unbounded-kube/sim-auth", "token", "sim-0"),
}


async def _failed(world: CloudWorld) -> tuple[str | None, str, Cause | None]:
    """The reason, the words and the cause with which an operation fails that cannot log in."""
    await world.instance()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostPowerOff", "m1")
    ended = await world.ended("op", within_s=10)
    assert ended.status.phase == "Failed"
    assert world.cloud.calls == []
    return ended.status.reason, ended.status.message or "", ended.status.cause


@pytest.mark.parametrize(
    ("credentials", "reason", "words"),
    [
        ((), reasons.AUTH_NOT_FOUND, "no MachineOperationCredential has spec.siteName 'lab' and spec.provider 'Sim'"),
        (({}, {}), reasons.AUTH_AMBIGUOUS, "sim-0, sim-1 all have spec.siteName 'lab' and spec.provider 'Sim'"),
        (({"mode": "Sesame"},), reasons.AUTH_INVALID, "sim-0: spec.auth.mode is 'Sesame'; Sim supports: External"),
        (({"mode": "ExternalPlugin"},), reasons.AUTH_INVALID, "sim-0: mode ExternalPlugin needs name and namespace"),
        ((ELSEWHERE,), reasons.AUTH_SECRET_FORBIDDEN, "sim-0: spec.auth.secretRef.namespace is 'default'"),
        ((REF,), reasons.AUTH_SECRET_NOT_FOUND, "Secret unbounded-kube/sim-auth (spec.auth.secretRef of Mach"),
    ],
)
@cloud_story(credential=False)
async def test_each_reason_names_the_object_and_the_field(
    world: CloudWorld, credentials: tuple[dict[str, Any], ...], reason: str, words: str
) -> None:
    for number, auth in enumerate(credentials):
        await world.credential(f"sim-{number}", **auth)
    found, message, cause = await _failed(world)
    assert found == reason
    assert words in message
    assert cause == CAUSES.get(reason)


@pytest.mark.parametrize(
    ("data", "words", "cause"),
    [
        ({"other": "eA=="}, "Secret unbounded-kube/sim-auth lacks token, which Sim needs; its keys: other", INCOMPLETE),
        ({"token": ""}, "lacks token, which Sim needs; its keys: token", INCOMPLETE),
        (
            {"token": "bWFsZm9ybWVk"},
            "MachineOperationCredential sim: Secret unbounded-kube/sim-auth is invalid in token: "
            "key token is malformed",
            secret_cause(reasons.SECRET_INVALID, "unbounded-kube/sim-auth", "token", "sim"),
        ),
    ],
)
@cloud_story(credential=False)
async def test_a_secret_that_cannot_be_used_says_why_without_what_it_holds(
    world: CloudWorld, data: dict[str, str], words: str, cause: Cause
) -> None:
    await world.credential(**REF)
    await world.api.create(SECRETS, {"metadata": {"name": "sim-auth"}, "data": data}, namespace=NAMESPACE)
    reason, message, found = await _failed(world)
    assert (reason, found) == (reasons.AUTH_INVALID, cause)
    assert words in message
    assert "eA" not in message


@cloud_story()
async def test_a_machine_without_a_site_is_told_to_have_one(world: CloudWorld) -> None:
    await world.instance(site="")
    world.steward().start()
    world.controller(site="").start()
    await world.operation("op", "HostPowerOff", "m1")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", reasons.AUTH_INVALID)
    assert "the label unbounded-cloud.io/site" in (ended.status.message or "")


@pytest.mark.parametrize("where", ["spec", "annotation"])
@cloud_story()
async def test_provider_name_with_a_site_prefix_is_rejected(world: CloudWorld, where: str) -> None:
    wrong = f"{SITE}/Sim"
    await (world.instance(site="", provider=wrong) if where == "spec" else world.instance(site="", annotated=wrong))
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", common.UNSUPPORTED_TARGET)
    assert "'lab/Sim', an invalid provider name" in (ended.status.message or "")
    assert world.cloud.calls == []


@cloud_story()
async def test_the_annotation_names_the_provider_of_a_machine_whose_spec_names_none(world: CloudWorld) -> None:
    await world.instance(annotated="Sim")
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    assert result(await world.ended("op", within_s=60)) == ("Complete", "Succeeded")


@cloud_story(credential=False)
async def test_changed_secret_opens_a_new_session_after_open_calls_end(world: CloudWorld) -> None:
    await world.credential(**REF)
    await world.secret("one")
    await world.instance()
    await world.instance("m2", "sub-2")
    world.steward().start()
    world.controller().start()
    world.cloud.stalled["sub-1"] = 28.0  # a call of the old session is under way when it is replaced
    await world.operation("op1", "HostPowerOff", "m1")
    await asyncio.sleep(31)
    await world.api.patch(SECRETS, "sim-auth", {"data": {"token": "dHdv"}}, namespace=NAMESPACE)
    await world.operation("op2", "HostPowerOff", "m2")
    assert result(await world.ended("op2", within_s=60)) == ("Complete", "Succeeded")
    world.cloud.stalled.clear()
    assert result(await world.ended("op1", within_s=120)) == ("Complete", "Succeeded")
    old, new = world.providers[0].sessions
    assert [session.login.secret["token"].reveal() for session in (old, new)] == ["one", "two"]
    assert (old.closed, new.closed) == (True, False)


@pytest.mark.parametrize("data", [{"token": "bWFsZm9ybWVk"}, {"other": "eA=="}])
@cloud_story(credential=False)
async def test_a_secret_that_cannot_be_used_is_read_anew(world: CloudWorld, data: dict[str, str]) -> None:
    await world.credential(**REF)
    await world.api.create(SECRETS, {"metadata": {"name": "sim-auth"}, "data": data}, namespace=NAMESPACE)
    assert (await _failed(world))[0] == reasons.AUTH_INVALID
    await world.api.patch(SECRETS, "sim-auth", {"data": {"token": "dHdv"}}, namespace=NAMESPACE)
    await world.operation("op2", "HostPowerOff", "m1")
    assert result(await world.ended("op2", within_s=25)) == ("Complete", "Succeeded")


@cloud_story(credential=False)
async def test_a_login_that_is_refused_is_read_anew(world: CloudWorld) -> None:
    await world.credential(**REF)
    await world.secret("one")
    await world.instance()
    world.steward().start()
    world.controller().start()
    world.cloud.raises["look"] = Refusal(reasons.AUTH_REFUSED, "the key has expired")
    await world.operation("op1", "HostPowerOff", "m1")
    assert result(await world.ended("op1", within_s=10)) == ("Failed", reasons.AUTH_REFUSED)
    await world.api.patch(SECRETS, "sim-auth", {"data": {"token": "dHdv"}}, namespace=NAMESPACE)
    await world.operation("op2", "HostPowerOff", "m1")
    assert result(await world.ended("op2", within_s=25)) == ("Complete", "Succeeded")
    assert world.providers[0].sessions[-1].login.secret["token"].reveal() == "two"


@cloud_story()
async def test_a_credential_that_changes_gives_a_new_session(world: CloudWorld) -> None:
    await world.instance()
    world.steward().start()
    world.controller().start()
    await world.operation("op1", "HostPowerOff", "m1")
    await world.ended("op1", within_s=60)
    await world.secret("one")
    await world.api.patch(MACHINE_OPERATION_CREDENTIALS, "sim", {"spec": {"auth": REF}})
    await world.operation("op2", "HostPowerOn", "m1")
    await world.ended("op2", within_s=60)
    assert [one.login.mode for one in world.providers[0].sessions] == ["WorkloadIdentity", "ExternalPlugin"]
    assert [one.closed for one in world.providers[0].sessions] == [True, False]
