"""A session over sockets and threads, as in a controller: every way to log in, and endpoints that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from oci.auth.security_token_container import SecurityTokenContainer

from unbounded.api.credential import AuthMode
from unbounded.api.operation import OperationKind
from unbounded.machineops import reasons
from unbounded.machineops.installed_providers import faults
from unbounded.machineops.provider import (
    Action,
    Job,
    Login,
    Power,
    Provider,
    Refusal,
    SecretStr,
    Session,
    Transient,
    Uncertain,
)
from unbounded.machineops.providers.oci import PROVIDER, instances
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.providers.oci.sdk_client import OciClient, Wire
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.oci import InstanceState, LabOci

NO_KEY: Mapping[str, str] = {}


def key_of(cloud: LabOci) -> Login:
    secret = {name: SecretStr(value) for name, value in cloud.secret_data.items()}
    return Login("oci", AuthMode.EXTERNAL_PLUGIN, secret)


@asynccontextmanager
async def session(cloud: LabOci, login: Login, **wire: Any) -> AsyncIterator[Session]:
    told = Wire(**{"endpoint": cloud.url, "ca_file": cloud.ca_file, "environ": NO_KEY, **wire})
    async with opened_by(OciProvider(calls=lambda login: OciClient(login, told)), login) as opened:
        yield opened


@asynccontextmanager
async def opened_by(provider: Provider, login: Login) -> AsyncIterator[Session]:
    opened = provider.connect(login, ScopeBudget(provider.rates))
    try:
        yield opened
    finally:
        await opened.close()


def job(ocid: str) -> Job:
    instance = instances.instance(instances.provider_id(ocid))
    return Job("op", "uid", OperationKind.HOST_POWER_OFF, "m1", "machine-uid", instance)


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_the_provider_describes_itself_soundly() -> None:
    assert faults(PROVIDER) == []


@pytest.mark.slow
async def test_an_api_key_with_a_passphrase_looks_and_asks() -> None:
    async with LabOci() as cloud, session(cloud, key_of(cloud)) as opened:
        ident = cloud.add_instance("worker").id
        assert (await opened.look(job(ident).instance)).power is Power.RUNNING
        with pytest.raises(Transient, match="the time limit for the request has passed"):
            await opened.ask(job(ident), Action.POWER_OFF, before=soon(0.0))
        assert cloud.tenancy.instances[ident].state is InstanceState.RUNNING
        await opened.ask(job(ident), Action.POWER_OFF, before=soon())
        assert cloud.tenancy.instances[ident].state is InstanceState.STOPPING
        gone = await opened.look(instances.instance("oci://ocid1.instance.oc1.phx.gone"))
        assert gone.power is Power.GONE
        assert "or MachineOperationCredential oci has no permission" in gone.detail


@pytest.mark.slow
async def test_an_instance_of_another_region_is_not_taken_for_gone() -> None:
    async with LabOci() as cloud, session(cloud, key_of(cloud)) as opened:
        with pytest.raises(
            Refusal, match=r"oci is for region us-phoenix-1, and instance …xyz is in us-ashburn-1"
        ) as told:
            await opened.look(instances.instance("oci://ocid1.instance.oc1.iad.xyz"))
        assert told.value.reason == reasons.AUTH_INVALID
        assert cloud.journal == []


@pytest.mark.slow
async def test_a_workload_speaks_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with LabOci() as cloud:
        environ = cloud.resource_principal(tmp_path)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        async with session(cloud, Login("oci", AuthMode.WORKLOAD_IDENTITY), environ=environ) as opened:
            ident = cloud.add_instance("worker").id
            assert (await opened.look(job(ident).instance)).power is Power.RUNNING


@pytest.mark.slow
async def test_an_instance_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LabOci() as cloud:
        told = {**cloud.environment(), "SSL_CERT_FILE": cloud.ca_file}
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        async with opened_by(PROVIDER, Login("oci", AuthMode.WORKLOAD_IDENTITY)) as opened:
            ident = cloud.add_instance("worker").id
            assert (await opened.look(job(ident).instance)).power is Power.RUNNING
            assert [each.call for each in cloud.journal] == ["Login", "GetInstance"]


@pytest.mark.slow
async def test_oke_workload_logs_in_with_its_service_account_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LabOci() as cloud:
        host, port = cloud.url.removeprefix("https://").split(":")
        token = tmp_path / "token"
        monkeypatch.setattr("oci.auth.signers.resource_principals_signer.OCI_KUBERNETES_PROXYMUX_SERVICE_PORT", port)
        monkeypatch.setattr("oci.auth.rpt_path_providers.OCI_KUBERNETES_SERVICE_ACCOUNT_TOKEN_PATH", str(token))
        environ = {
            "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
            "OCI_RESOURCE_PRINCIPAL_REGION": "us-phoenix-1",
            "OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH": cloud.ca_file,
            "KUBERNETES_SERVICE_HOST": host,
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        instance = job(cloud.add_instance("worker").id).instance
        token.write_text(cloud.service_account_token)
        async with session(cloud, Login("oci", AuthMode.WORKLOAD_IDENTITY), environ=environ) as opened:
            assert (await opened.look(instance)).power is Power.RUNNING
            assert [each.call for each in cloud.journal] == ["Login", "GetInstance"]
        token.write_text(jwt.signed_by_secret({"sub": "somebody", "exp": 4_000_000_000}, b"else"))
        async with session(cloud, Login("oci", AuthMode.WORKLOAD_IDENTITY), environ=environ) as opened:
            with pytest.raises(Refusal, match=r"no login as the workload of an OKE cluster: .*401") as told:
                await opened.look(instance)
        assert told.value.reason == reasons.AUTH_REFUSED


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [("NotAuthorizedOrNotFound", Refusal), ("ServiceUnavailable", Transient)])
async def test_failed_token_renewal_is_not_reported_as_missing_instance(
    status: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LabOci() as cloud:
        for name, value in {**cloud.environment(), "SSL_CERT_FILE": cloud.ca_file}.items():
            monkeypatch.setenv(name, value)
        instance = job(cloud.add_instance("worker").id).instance
        async with opened_by(PROVIDER, Login("oci", AuthMode.WORKLOAD_IDENTITY)) as opened:
            assert (await opened.look(instance)).power is Power.RUNNING
            monkeypatch.setattr(SecurityTokenContainer, "valid_with_jitter", lambda _token: False)
            cloud.set_faults(only=("Login",), errors=(status,), errors_go_on=True)
            with pytest.raises(kind, match="get_instance: no token was issued"):
                await opened.look(instance)


async def test_who_is_nobody_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LabOci() as cloud:
        environ = {"OCI_RESOURCE_PRINCIPAL_VERSION": "2.2"}
        monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_VERSION", "2.2")
        async with session(cloud, Login("oci", AuthMode.WORKLOAD_IDENTITY), environ=environ) as opened:
            with pytest.raises(Refusal, match="MachineOperationCredential oci: no login as the resource") as told:
                await opened.look(instances.instance("oci://ocid1.instance.oc1.phx.xyz"))
        assert told.value.reason == reasons.AUTH_REFUSED


@pytest.mark.slow
async def test_an_answer_that_does_not_come_leaves_open_what_was_done() -> None:
    async with LabOci(profile="stalls") as cloud, session(cloud, key_of(cloud), answer_s=0.2) as opened:
        ident = cloud.add_instance("worker").id
        with pytest.raises(Transient, match=r"get_instance: no answer within 0.2 s"):
            await opened.look(job(ident).instance)
        with pytest.raises(Uncertain, match=r"instance_action: no answer within 0.2 s"):
            await opened.ask(job(ident), Action.POWER_OFF, before=soon())


@pytest.mark.slow
async def test_what_was_never_connected_was_surely_not_done() -> None:
    async with LabOci() as cloud, session(cloud, key_of(cloud), endpoint="https://127.0.0.1:1") as opened:
        with pytest.raises(Transient, match="instance_action: no connection to the endpoint"):
            await opened.ask(job("ocid1.instance.oc1.phx.xyz"), Action.POWER_OFF, before=soon())
