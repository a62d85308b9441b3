"""The agent's first file on a host, on each path.

It has the proxy and the authorities of the Machine's configuration, and the public key of releases.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
import yaml

from tests.join.signing import KEY, PUBLIC_KEY, pem_of
from tests.support.authority import PEM
from tests.support.memory_api import MemoryApi
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, NodeSettings
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.fields import Cause
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP_BOOTSTRAP, LABEL_CONFIGURATION
from unbounded.join.agent_install import AgentOrigin, HostDefaults
from unbounded.join.bootstrap_tokens import machine_group, site_token_manifest, token_in
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.api import Forbidden, ServerUnreachable
from unbounded.machina.machines.attempts import install_of
from unbounded.machina.provisioning.remote import payload
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machineops.controller import UncachedSecrets, UserDataBuilder
from unbounded.metalman.netboot.model import FactUnknown
from unbounded.metalman.netboot.template_data import ClusterTemplateContext
from unbounded.operations.executor_protocol import Refusal

SETTINGS: Final = {
    "proxy": {"http": "http://proxy:3128", "https": "http://proxy:3129", "noProxy": [".example.com"]},
    "caBundle": PEM,
}
EXPECTED: Final = {
    "Upgrade": {"PublicKey": PUBLIC_KEY},
    "Proxy": {"HTTP": "http://proxy:3128", "HTTPS": "http://proxy:3129", "NoProxy": [".example.com"]},
    "CaBundle": PEM,
}
KEY_ALONE: Final = {"Upgrade": {"PublicKey": PUBLIC_KEY}}
URL: Final = "https://example.com/agent.tar.gz"
BOOT_URL: Final = "http://10.0.0.9/boot/x"
NAMESPACES: Final = ("kube-public", "kube-system", "unbounded-kube")


def machine(**spec: Any) -> Machine:
    meta = {"name": "m1", "uid": "u", "labels": {"unbounded-cloud.io/site": "lab"}}
    spec = {"kubernetes": {}, "agent": {"url": URL}, "configurationRef": {"name": "edge"}, **spec}
    return msgspec.convert({"metadata": meta, "spec": spec}, Machine)


def version(number: int, **template: Any) -> dict[str, Any]:
    meta = {"name": f"edge-v{number}", "labels": {LABEL_CONFIGURATION: "edge"}}
    return {"metadata": meta, "spec": {"version": number, "template": template}}


class Place:
    """A cluster with two versions of a configuration, of which the newer one names the settings."""

    def __init__(self, api: MemoryApi) -> None:
        async def said() -> str:
            return "v1.34.0"

        self.api = api
        self.facts = FactsFollower(api, said)

    async def user_data(self, of: Machine) -> dict[str, Any]:
        """Return the files of a cloud's host by their paths."""
        tokens = TokenFinder(self.api, UncachedSecrets(self.api))
        text = await UserDataBuilder(self.api, self.facts, tokens, HostDefaults(AgentOrigin())).build(of)
        return {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}

    async def template_data(self, of: Machine, *, private: bool = True, mirror: str = "") -> dict[str, Any]:
        """The agent's file as metalman's templates have it."""
        given = ClusterTemplateContext(self.api, self.facts, mirror=mirror)
        around = await given.template_context(of, BOOT_URL, private=private)
        found: dict[str, Any] = json.loads(around.agent_config_json)
        return found


@asynccontextmanager
async def place(api: MemoryApi | None = None) -> AsyncIterator[Place]:
    api = api or MemoryApi(namespaces=NAMESPACES)
    data = base64.b64encode(PEM.encode()).decode()
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": data}
    kubeconfig = json.dumps({"clusters": [{"cluster": cluster}]})
    info = {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": kubeconfig}}
    await api.create(CONFIG_MAPS, info, namespace="kube-public")
    releases = {"metadata": {"name": "unbounded-releases"}, "data": {"publicKey": pem_of(KEY)}}
    await api.create(CONFIG_MAPS, releases, namespace="unbounded-kube")
    token = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
    await api.create(SECRETS, token, namespace="kube-system")
    for one in (version(9), version(10, **SETTINGS)):
        await api.create(MACHINE_CONFIGURATION_VERSIONS, one)
    made = Place(api)
    known = asyncio.Event()
    made.facts.subscribe(known.set)
    following = asyncio.create_task(made.facts.run())
    try:
        async with asyncio.timeout(20):
            await known.wait()
        yield made
    finally:
        following.cancel()


def of_settings(body: dict[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in EXPECTED if key in body}


async def test_a_cloud_host_has_them() -> None:
    async with place() as there:
        newest = await there.user_data(machine())
        assert of_settings(json.loads(newest["/etc/unbounded/agent/config.json"])) == EXPECTED
        older = await there.user_data(machine(configurationRef={"name": "edge", "version": 9}))
        assert of_settings(json.loads(older["/etc/unbounded/agent/config.json"])) == KEY_ALONE
        without = await there.user_data(machine(configurationRef=None))
        assert of_settings(json.loads(without["/etc/unbounded/agent/config.json"])) == KEY_ALONE


async def test_user_data_for_a_missing_configuration_is_rejected() -> None:
    async with place() as there:
        for ref, words in (
            ({"name": "edge", "version": 3}, "MachineConfigurationVersion edge-v3 does not exist"),
            ({"name": "gone"}, "MachineConfiguration gone has no version"),
        ):
            with pytest.raises(Refusal, match=f"^spec.configurationRef: {words}$") as refused:
                await there.user_data(machine(configurationRef=ref))
            assert refused.value.reason == "BootstrapDataFailed"
            assert refused.value.cause == Cause(code="ConfigurationMissing")


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"kubernetes": None}, "KubernetesMissing"),
        ({"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-none"}}}, "TokenNotRenewable"),
        ({"agent": {"url": "http://releases.example/agent.tar.gz"}}, "DigestMissing"),
    ],
)
async def test_what_a_cloud_host_lacks_has_a_code(spec: dict[str, Any], code: str) -> None:
    async with place() as there:
        with pytest.raises(Refusal) as refused:
            await there.user_data(machine(**spec))
        assert refused.value.cause == Cause(code=code)


async def test_a_netbooted_host_has_them() -> None:
    async with place() as there:
        assert of_settings(await there.template_data(machine())) == EXPECTED
        assert of_settings(await there.template_data(machine(configurationRef={"name": "gone"}))) == KEY_ALONE


async def test_a_netbooted_host_downloads_from_the_mirror_what_its_machine_names_no_source_for() -> None:
    agent = {"downloads": {"runc": {"baseURL": "https://own"}, "cni": {"version": "1.7.1"}}}
    async with place() as there:
        found = (await there.template_data(machine(agent=agent), mirror="https://mirror/"))["Downloads"]
        mirrored = {"BaseURL": "https://mirror"}
        assert found == {
            **dict.fromkeys(("Kubernetes", "Containerd", "Crictl", "Sandbox"), mirrored),
            "Runc": {"BaseURL": "https://own"},
            "CNI": {**mirrored, "Version": "1.7.1"},
        }


class Failing(MemoryApi):
    """Its configurations cannot be read."""

    failure: Exception = Forbidden("machineconfigurationversions is forbidden")

    async def list(self, kind: Kind[Any], **given: Any) -> Any:
        if kind.plural == MACHINE_CONFIGURATION_VERSIONS.plural:
            raise self.failure
        return await super().list(kind, **given)


@pytest.mark.parametrize("failure", [Forbidden("machineconfigurationversions is forbidden"), ServerUnreachable("away")])
async def test_what_cannot_be_read_is_waited_for(failure: Exception) -> None:
    api = Failing(namespaces=NAMESPACES)
    async with place(api) as there:
        api.failure = failure
        with pytest.raises(FactUnknown, match="cannot read the Machine's configuration: "):
            await there.template_data(machine())
        with pytest.raises(Refusal if isinstance(failure, Forbidden) else ServerUnreachable):
            await there.user_data(machine())


async def test_a_host_over_ssh_has_them() -> None:
    async with place() as there:
        (secret,) = (await there.api.list(SECRETS, namespace="kube-system")).items
        settings = msgspec.convert(SETTINGS, NodeSettings)
        token = token_in(secret, now=datetime.now(UTC))
        install, missing = install_of(machine(), "a", there.facts.facts, token, ProvisioningSettings(), settings)
        assert missing is None
        with tarfile.open(fileobj=io.BytesIO(payload(install, limit_s=60))) as sent:
            config = sent.extractfile("config.json")
            assert config is not None
            assert of_settings(json.load(config)) == EXPECTED


async def named_token(there: Place, *groups: str) -> tuple[str, str]:
    """A token that a Machine names: its Secret and its text."""
    now = datetime.now(UTC)
    token = site_token_manifest("lab", now=now, good_for=timedelta(hours=1), default=False)
    if groups:
        token["data"]["auth-extra-groups"] = base64.b64encode(",".join((GROUP_BOOTSTRAP, *groups)).encode()).decode()
    await there.api.create(SECRETS, token, namespace="kube-system")
    parts = (base64.b64decode(token["data"][key]).decode() for key in ("token-id", "token-secret"))
    return token["metadata"]["name"], ".".join(parts)


async def test_a_host_of_metalmans_attests_unless_its_machine_names_a_token() -> None:
    async with place() as there:
        name, text = await named_token(there)
        attests = await there.template_data(machine())
        assert attests["Attest"] == {"URL": BOOT_URL}
        assert "Auth" not in attests["Kubelet"]
        named = await there.template_data(machine(kubernetes={"bootstrapTokenRef": {"name": name}}))
        assert named["Kubelet"]["Auth"] == {"BootstrapToken": text}
        assert "Attest" not in named


async def test_public_template_data_contains_no_bootstrap_token() -> None:
    async with place() as there:
        name, text = await named_token(there)
        shown = await there.template_data(machine(kubernetes={"bootstrapTokenRef": {"name": name}}), private=False)
        assert text not in json.dumps(shown)


async def test_a_host_whose_token_lets_it_not_in_is_not_installed() -> None:
    async with place() as there:
        of_another, _ = await named_token(there, machine_group("another"))
        for name, words in (
            ("bootstrap-token-gone00", "Secret kube-system/bootstrap-token-gone00 does not exist"),
            (of_another, "the token was created for another Machine"),
        ):
            with pytest.raises(Rejected, match=f"spec.kubernetes.bootstrapTokenRef: .*{words}"):
                await there.template_data(machine(kubernetes={"bootstrapTokenRef": {"name": name}}))
