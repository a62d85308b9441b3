"""Authentication at an Oracle cloud: API keys, instance principals and workloads, through the SDK's own signers."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import oci
import pytest

from tests.lab.cloud.oci.sdk import Sdk, serving
from unbounded_lab.cloud.oci import LabOci


class Tampering(oci.signer.Signer):  # type: ignore[misc]  # the SDK has no types
    """A signer whose requests are changed after they were signed."""

    def __init__(self, cloud: LabOci, change: Any) -> None:
        config = cloud.config
        names = ("tenancy", "user", "fingerprint")
        super().__init__(*(config[name] for name in names), None, private_key_content=config["key_content"])
        self._change = change

    def __call__(self, request: Any, enforce_content_headers: bool = True) -> Any:
        request = super().__call__(request, enforce_content_headers)
        self._change(request)
        return request


def another_date(request: Any) -> None:
    request.headers["date"] = formatdate(time.time() - 60.0, usegmt=True)


def another_target(request: Any) -> None:
    request.url = request.url.replace("action=STOP", "action=START")


def another_body(request: Any) -> None:
    request.body = request.body.replace("7", "8")


def another_body_with_its_hash(request: Any) -> None:
    another_body(request)
    signed = request.headers["authorization"]
    del request.headers["x-content-sha256"]
    oci.signer.inject_missing_headers(request, True, True)
    request.headers["authorization"] = signed


def no_signature(request: Any) -> None:
    del request.headers["authorization"]


def fewer_headers(request: Any) -> None:
    signed = request.headers["authorization"]
    request.headers["authorization"] = signed.replace("date (request-target) host", "date host")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (another_date, "the signature is wrong"),
        (another_target, "the signature is wrong"),
        (another_body, "x-content-sha256 is not that of the body"),
        (another_body_with_its_hash, "the signature is wrong"),
        (no_signature, "the request is not signed"),
        (fewer_headers, "not signed: (request-target)"),
    ],
)
async def test_a_request_that_was_changed_on_its_way_is_refused(change: Any, says: str) -> None:
    async with serving() as (cloud, _, _):
        sdk = Sdk(cloud, config=cloud.config, signer=Tampering(cloud, change))
        ident = cloud.add_instance("worker").id
        details = oci.core.models.UpdateInstanceDetails(display_name="worker-7")
        call = (
            (sdk.compute.update_instance, ident, details)
            if change in (another_body, another_body_with_its_hash)
            else (sdk.compute.instance_action, ident, "STOP")
        )
        error = await sdk.failure(*call)
        assert (error.status, error.code) == (401, "NotAuthenticated")
        assert says in error.message
        assert cloud.machines()[ident].name == "worker"


@pytest.mark.slow
async def test_unknown_api_key_is_rejected() -> None:
    async with serving() as (cloud, _, _), LabOci("other") as other:
        stranger = other.config | {"tenancy": cloud.tenancy.id, "user": cloud.api_key.user}
        for config in (stranger, stranger | {"fingerprint": cloud.api_key.fingerprint}):
            sdk = Sdk(cloud, config=config)
            error = await sdk.failure(sdk.identity.list_availability_domains, cloud.tenancy.id)
            assert (error.status, error.code) == (401, "NotAuthenticated")


@pytest.mark.slow
async def test_the_secret_of_a_credential_opens_the_cloud() -> None:
    async with serving() as (cloud, _, _):
        data = cloud.secret_data
        config = {
            "tenancy": data["tenancyOCID"],
            "user": data["userOCID"],
            "region": data["region"],
            "fingerprint": data["fingerprint"],
            "key_content": data["privateKey"],
            "pass_phrase": data["privateKeyPassphrase"],
        }
        oci.config.validate_config(config)
        sdk = Sdk(cloud, config=config)
        assert len((await sdk.ask(sdk.identity.list_availability_domains, cloud.tenancy.id)).data) == 3
        assert "ENCRYPTED" in data["privateKey"]


@pytest.mark.slow
async def test_an_instance_gets_a_token_and_speaks_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (cloud, _, _):
        monkeypatch.setenv("OCI_METADATA_BASE_URL", cloud.metadata_url)
        signer = await asyncio.to_thread(
            oci.auth.signers.InstancePrincipalsSecurityTokenSigner,
            federation_endpoint=cloud.federation_endpoint,
            federation_client_cert_bundle_verify=cloud.ca_file,
        )
        assert (signer.region, signer.tenancy_id) == ("us-phoenix-1", cloud.tenancy.id)
        sdk = Sdk(cloud, signer=signer)
        ident = cloud.add_instance("worker").id
        assert await sdk.state(ident) == "RUNNING"
        assert [each.call for each in cloud.journal] == ["Login", "GetInstance"]


@pytest.mark.slow
async def test_a_workload_speaks_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (cloud, _, _):
        for name, value in cloud.resource_principal(tmp_path).items():
            monkeypatch.setenv(name, value)
        signer = oci.auth.signers.get_resource_principals_signer()
        assert (signer.tenancy_id, signer.compartment_id) == (cloud.tenancy.id, cloud.tenancy.compartment_id)
        sdk = Sdk(cloud, signer=signer)
        ident = cloud.add_instance("worker").id
        assert await sdk.state(ident) == "RUNNING"


class ServiceAccount:
    def __init__(self, token: str) -> None:
        self._token = token

    def get_sa_token(self) -> str:
        return self._token


@pytest.mark.slow
async def test_a_workload_of_a_cluster_gets_its_token_from_the_proxy() -> None:
    async with serving() as (cloud, _, _):
        host, port = cloud.url.removeprefix("https://").split(":")

        def signer(token: str) -> Any:
            kind = oci.auth.signers.OkeWorkloadIdentityResourcePrincipalSigner
            quick = {"retry_strategy": oci.retry.NoneRetryStrategy()}
            return kind(ServiceAccount(token), cloud.ca_file, host, port, "us-phoenix-1", **quick)

        sdk = Sdk(cloud, signer=await asyncio.to_thread(signer, cloud.service_account_token))
        assert await sdk.state(cloud.add_instance("worker").id) == "RUNNING"
        with pytest.raises(oci.exceptions.ServiceError) as raised:
            await asyncio.to_thread(signer, "another")
        assert raised.value.status == 401


@pytest.mark.slow
async def test_a_token_that_has_expired_is_renewed_by_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (cloud, _, _):
        for name, value in cloud.resource_principal(tmp_path, lifetime_s=-1.0).items():
            monkeypatch.setenv(name, value)
        sdk = Sdk(cloud, signer=oci.auth.signers.get_resource_principals_signer())
        ident = cloud.add_instance("worker").id
        error = await sdk.failure(sdk.compute.get_instance, ident)
        assert (error.status, error.code) == (401, "NotAuthenticated")
        cloud.resource_principal(tmp_path)
        assert await sdk.state(ident) == "RUNNING"
        assert [each.status for each in cloud.journal] == [401, 401, 401, 200]


@pytest.mark.slow
async def test_token_of_another_tenancy_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (cloud, _, _), LabOci("other") as other:
        for name, value in other.resource_principal(tmp_path).items():
            monkeypatch.setenv(name, value)
        sdk = Sdk(cloud, signer=oci.auth.signers.get_resource_principals_signer())
        assert (await sdk.failure(sdk.identity.list_availability_domains, cloud.tenancy.id)).status == 401
