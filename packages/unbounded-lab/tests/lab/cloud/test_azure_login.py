"""Logging in to a simulated Azure with azure-identity, and what its tokens are good for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential
from azure.identity.aio import ClientSecretCredential as AsyncClientSecretCredential
from azure.identity.aio import DefaultAzureCredential, WorkloadIdentityCredential
from azure.mgmt.compute.aio import ComputeManagementClient
from cryptography.hazmat.primitives.asymmetric import rsa

from unbounded.kube.tls import client_context
from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.azure import LabAzure
from unbounded_lab.cloud.azure.local import GROUP, ISSUER, WORKLOAD
from unbounded_lab.cloud.azure.login import AUDIENCE

SCOPE = "https://management.azure.com/.default"


@pytest.fixture
async def cloud() -> AsyncIterator[LabAzure]:
    async with LabAzure() as cloud:
        cloud.add_machine("vm-1")
        yield cloud


def options(cloud: LabAzure) -> dict[str, Any]:
    return {
        "authority": cloud.url,
        "disable_instance_discovery": True,
        "connection_verify": cloud.ca_file,
        "retry_total": 0,
    }


async def login(cloud: LabAzure, token_file: str, **others: str) -> str:
    """A token, by workload identity."""
    given = {"tenant_id": cloud.tenant, "client_id": cloud.client_id, **others}
    async with WorkloadIdentityCredential(token_file_path=token_file, **given, **options(cloud)) as credential:
        return (await credential.get_token(SCOPE)).token


@pytest.mark.slow
async def test_a_workload_logs_in_and_works(cloud: LabAzure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    async with (
        DefaultAzureCredential(connection_verify=cloud.ca_file, disable_instance_discovery=True) as credential,
        ComputeManagementClient(
            credential, cloud.subscription, base_url=cloud.url, connection_verify=cloud.ca_file
        ) as client,
    ):
        assert (await client.virtual_machines.get(GROUP, "vm-1")).name == "vm-1"
    assert [each.call for each in cloud.journal] == ["Login.Token", "VirtualMachines.Get"]


async def test_an_application_logs_in_with_its_secret(cloud: LabAzure) -> None:
    async with AsyncClientSecretCredential(
        cloud.tenant, cloud.client_id, cloud.client_secret, **options(cloud)
    ) as credential:
        assert (await credential.get_token(SCOPE)).token

    def discovers() -> str:
        with ClientSecretCredential(
            cloud.tenant, cloud.client_id, cloud.client_secret, **options(cloud)
        ) as synchronous:
            return synchronous.get_token(SCOPE).token

    assert await asyncio.to_thread(discovers)
    assert [each.call for each in cloud.journal].count("Login.Discovery") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": 1.0}, "AADSTS700024"),
        ({"nbf": 1e12}, "AADSTS700024"),
        ({"sub": "system:serviceaccount:other:other"}, "AADSTS70021"),
        ({"iss": "https://elsewhere.invalid"}, "AADSTS70021"),
        ({"aud": "https://kubernetes.default.svc"}, "AADSTS70021"),
    ],
)
async def test_a_workload_token_that_is_not_meant_for_it_is_refused(
    cloud: LabAzure, claims: dict[str, Any], said: str
) -> None:
    with pytest.raises(ClientAuthenticationError, match=said):
        await login(cloud, cloud.workload_token_file(**claims))


@pytest.mark.slow
async def test_a_workload_token_of_another_key_is_refused(cloud: LabAzure, tmp_path: Any) -> None:
    cloud.workload_token()
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"iss": ISSUER, "sub": WORKLOAD, "aud": AUDIENCE, "exp": cloud.now + 60}
    file = tmp_path / "token"
    file.write_text(jwt.signed(claims, other))
    with pytest.raises(ClientAuthenticationError, match="AADSTS700027"):
        await login(cloud, str(file))
    cloud.federate(ISSUER, WORKLOAD, other.public_key())
    assert await login(cloud, str(file))


@pytest.mark.slow
async def test_an_unknown_tenant_or_application_is_refused(cloud: LabAzure) -> None:
    file = cloud.workload_token_file()
    nobody = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ClientAuthenticationError, match="AADSTS90002"):
        await login(cloud, file, tenant_id=nobody)
    with pytest.raises(ClientAuthenticationError, match="AADSTS700016"):
        await login(cloud, file, client_id=nobody)
    for wrong in ("wrong", "fälsch", cloud.client_secret[:-1]):
        async with AsyncClientSecretCredential(cloud.tenant, cloud.client_id, wrong, **options(cloud)) as credential:
            with pytest.raises(ClientAuthenticationError, match=f"AADSTS7000215.*'{cloud.client_id}'"):
                await credential.get_token(SCOPE)


@pytest.mark.slow
async def test_a_token_is_good_for_its_own_tenant_and_resource_alone(cloud: LabAzure) -> None:
    async with LabAzure("other") as other:
        assert await _code(cloud, other.access_token()) == "InvalidAuthenticationToken"
    application = cloud.login.applications[cloud.client_id]
    vault = cloud.login.grant(application, "https://vault.azure.net/.default", cloud.now, lifetime_s=60.0)
    assert await _code(cloud, vault["access_token"]) == "InvalidAuthenticationToken"
    head, _, signature = cloud.access_token().rpartition(".")
    assert await _code(cloud, f"{head}.{signature[:-4]}AAAA") == "InvalidAuthenticationToken"
    assert await _code(cloud, "garbage") == "InvalidAuthenticationToken"
    assert await _code(cloud, "") == "AuthenticationFailed"


async def _code(cloud: LabAzure, token: str) -> str:
    """The error that a token is answered with."""
    url = f"{cloud.url}{cloud.id_of('vm-1')}?api-version=2026-04-01"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(ca=cloud.ca))) as http,
        http.get(url, headers={"authorization": f"Bearer {token}"}) as answer,
    ):
        assert answer.status == 401
        return str((await answer.json())["error"]["code"])
