"""Facts of the cluster: read strictly, followed, and kept when they can no longer be read."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.cli.deployed import deployed
from tests.join.signing import KEY, PUBLIC_KEY, pem_of
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS, SERVICES, ConfigMap, Service
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.cluster_facts import (
    ClusterFacts,
    FactsFollower,
    InvalidFact,
    dns_of,
    endpoint_of,
    release_of,
    root_ca_of,
)
from unbounded.kube.api import ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

OTHER = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n"
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def info(server: object = "https://10.0.0.1:6443/", ca: object = None) -> ConfigMap:
    cluster = {"server": server, "certificate-authority-data": ca or b64encode(PEM.encode()).decode()}
    return ConfigMap(data={"kubeconfig": yaml.safe_dump({"clusters": [{"name": "", "cluster": cluster}]})})


def test_cluster_info_says_where_and_whom_to_trust() -> None:
    place = endpoint_of(info())
    assert (place.url, place.ca_pem) == ("https://10.0.0.1:6443", PEM)


@pytest.mark.parametrize(
    ("config_map", "said"),
    [
        (ConfigMap(), "kube-public/cluster-info has no key 'kubeconfig'"),
        (ConfigMap(data={"kubeconfig": "a: ["}), "not YAML"),
        (ConfigMap(data={"kubeconfig": "clusters: []"}), r"clusters\[0\].cluster needs server and cert"),
        (info("http://10.0.0.1"), "server 'http://10.0.0.1' is not an address of an API server, such as https"),
        (info("https://user@10.0.0.1"), "is not an address of an API server"),
        (info("10.0.0.1:6443"), "server '10.0.0.1:6443' does not begin with https://"),
        (info(ca="%%%"), "certificate-authority-data is not base64 of PEM"),
        (info(ca=b64encode(b"nothing").decode()), "certificate-authority-data contains no certificate"),
    ],
)
def test_what_is_wrong_with_cluster_info_is_named(config_map: ConfigMap, said: str) -> None:
    with pytest.raises(InvalidFact, match=said):
        endpoint_of(config_map)


def service(address: str | None) -> Service:
    spec = type(Service().spec)(cluster_ip=address)
    return Service(spec=spec)


def test_a_service_without_an_address_is_no_dns_server() -> None:
    assert dns_of(service("10.96.0.10")) == "10.96.0.10"
    assert dns_of(service("fd00::a")) == "fd00::a"
    for address in (None, "None", "", "x"):
        with pytest.raises(InvalidFact, match=r"spec.clusterIP is .*; set --cluster-dns"):
            dns_of(service(address))


class Server:
    """Answers /version, until a test stops it."""

    def __init__(self) -> None:
        self.says: str | None = "v1.34.0"

    async def version(self) -> str:
        if self.says is None:
            raise ServerUnreachable("no connection")
        return self.says


@asynccontextmanager
async def following(api: MemoryApi, server: Server, **given: str) -> AsyncIterator[FactsFollower]:
    follower = FactsFollower(api, server.version, **given)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def known(follower: FactsFollower) -> ClusterFacts:
    async def facts() -> ClusterFacts | None:
        return follower.facts

    found: ClusterFacts = await eventually(facts)
    return found


async def test_facts_follow_the_cluster_and_outlive_what_is_broken() -> None:
    api, server = MemoryApi(namespaces=("kube-public", "kube-system")), Server()
    async with following(api, server) as follower:
        assert follower.facts is None
        assert follower.missing == "ConfigMap kube-public/cluster-info has not been read, or does not exist"
        await publish_cluster_info(api, "https://10.0.0.1:6443", PEM.encode())
        await api.create(
            SERVICES, {"metadata": {"name": "kube-dns"}, "spec": {"clusterIP": "10.96.0.10"}}, namespace="kube-system"
        )

        async def complete() -> bool:
            return follower.facts == ClusterFacts("https://10.0.0.1:6443", PEM, "v1.34.0", "10.96.0.10")

        await eventually(complete)
        await publish_cluster_info(api, "https://10.0.0.2:6443", PEM.encode())

        async def moved() -> bool:
            return (await known(follower)).apiserver_url == "https://10.0.0.2:6443"

        await eventually(moved)
        await api.patch(CONFIG_MAPS, "cluster-info", {"data": {"kubeconfig": "["}}, namespace="kube-public")
        await api.delete(SERVICES, "kube-dns", namespace="kube-system")
        for _ in range(20):  # what was to be seen has been seen by then
            await asyncio.sleep(0)
        assert follower.facts == ClusterFacts("https://10.0.0.2:6443", PEM, "v1.34.0", "10.96.0.10")


async def test_a_given_address_replaces_that_of_cluster_info_and_nothing_else() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system"))
    await publish_cluster_info(api, "https://10.0.0.1:6443", PEM.encode())
    async with following(api, Server(), apiserver_url="https://api.example.com/", cluster_dns="10.0.0.53") as follower:
        assert await known(follower) == ClusterFacts("https://api.example.com", PEM, "v1.34.0", "10.0.0.53")


async def test_without_a_dns_server_the_other_facts_stand() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system"))
    await publish_cluster_info(api, "https://10.0.0.1:6443", PEM.encode())
    async with following(api, Server()) as follower:
        assert (await known(follower)).cluster_dns == ""


@pytest.mark.slow
async def test_a_server_that_does_not_say_its_version_is_what_is_missing() -> None:
    api, server = MemoryApi(namespaces=("kube-public", "kube-system")), Server()
    server.says = None
    await publish_cluster_info(api, "https://10.0.0.1:6443", PEM.encode())
    async with following(api, server, cluster_dns="10.0.0.53") as follower:

        async def missing() -> bool:
            return follower.missing == "the API server has not reported its version yet"

        await eventually(missing)
        server.says = "v1.35.0"
        assert (await known(follower)).kubernetes_version == "v1.35.0"


async def test_the_version_is_the_one_that_can_be_downloaded() -> None:
    assert release_of("v1.34.1-eks-1234567") == "v1.34.1"
    assert release_of("1.33.0+k3s1") == "v1.33.0"
    with pytest.raises(ValueError, match="the cluster reports 'unknown', which is not a version such as"):
        release_of("unknown")
    api, server = MemoryApi(namespaces=("kube-public", "kube-system")), Server()
    server.says = "v1.32.0+unbounded-0.1.0"
    await publish_cluster_info(api, "https://10.0.0.1:6443", PEM.encode())
    async with following(api, server, cluster_dns="10.0.0.53") as follower:
        assert (await known(follower)).kubernetes_version == "v1.32.0"


def root_ca(pem: str = PEM) -> dict[str, object]:
    return {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": pem}}


async def missing_is(follower: FactsFollower, words: str) -> None:
    async def so() -> bool:
        return words in (follower.missing or "")

    await eventually(so)


async def test_cluster_facts_fall_back_to_given_url_and_root_ca() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system", "unbounded-kube"))
    given = {"apiserver_url": "https://api.example.com:443", "root_ca_namespace": "unbounded-kube"}
    async with following(api, Server(), **given) as follower:
        changes: list[ClusterFacts | None] = []
        stop = follower.subscribe(lambda: changes.append(follower.facts))
        await missing_is(follower, "and ConfigMap unbounded-kube/kube-root-ca.crt has not been read, or does not exist")
        await api.create(CONFIG_MAPS, root_ca("nothing"), namespace="unbounded-kube")
        await api.patch(CONFIG_MAPS, "kube-root-ca.crt", root_ca(), namespace="unbounded-kube")
        assert await known(follower) == ClusterFacts("https://api.example.com:443", PEM, "v1.34.0", "")
        await publish_cluster_info(api, "https://10.0.0.1:6443", OTHER.encode())

        async def counts() -> bool:
            return follower.facts == ClusterFacts("https://api.example.com:443", OTHER, "v1.34.0", "")

        await eventually(counts)
        stop()
        assert [facts and facts.ca_pem for facts in changes] == [PEM, OTHER]


async def test_without_cluster_info_and_address_it_is_said_where_to_give_it() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system", "unbounded-kube"))
    await api.create(CONFIG_MAPS, root_ca(), namespace="unbounded-kube")
    async with following(api, Server(), root_ca_namespace="unbounded-kube") as follower:
        await missing_is(follower, "--api-server-endpoint")
        assert follower.facts is None


def test_a_root_authority_is_a_certificate() -> None:
    with pytest.raises(InvalidFact, match=r"unbounded-kube/kube-root-ca\.crt, key 'ca.crt': contains no certificate"):
        root_ca_of(msgspec.convert(root_ca("") | {"metadata": {"namespace": "unbounded-kube"}}, ConfigMap))


@pytest.mark.slow
async def test_facts_of_the_embedded_server(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, _):
        config = from_kubeconfig(server.kubeconfig_path)
        async with HttpApi(config) as api:
            await publish_cluster_info(api, server.url, config.ca or b"")
            follower = FactsFollower(api, api.version)
            task = asyncio.create_task(follower.run())
            facts = await known(follower)
            task.cancel()
        assert (facts.apiserver_url, facts.ca_pem.encode()) == (server.url, config.ca)
        assert facts.kubernetes_version.startswith("v1.")


@asynccontextmanager
async def with_key(api: MemoryApi, **given: str) -> AsyncIterator[FactsFollower]:
    async def version() -> str:
        return "v1.34.0"

    await api.create(CONFIG_MAPS, {"metadata": {"name": "cluster-info"}, "data": info().data}, namespace="kube-public")
    follower = FactsFollower(api, version, **given)
    running = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        running.cancel()


async def test_release_key_follows_its_config_map_and_blocks_facts_when_invalid() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system", "unbounded-kube"))
    async with with_key(api) as follower:

        async def known(key: str | None) -> None:
            async def so() -> bool:
                facts = follower.facts
                return (None if facts is None else facts.release_key) == key

            await eventually(so, within_s=20)

        await known("")
        body = {"metadata": {"name": "unbounded-releases"}, "data": {"publicKey": pem_of(KEY)}}
        await api.create(CONFIG_MAPS, body, namespace="unbounded-kube")
        await known(PUBLIC_KEY)
        wrong = {"data": {"publicKey": "x"}}
        await api.patch(CONFIG_MAPS, "unbounded-releases", wrong, namespace="unbounded-kube")
        await known(None)
        assert follower.missing is not None
        assert follower.missing.startswith(
            "ConfigMap unbounded-kube/unbounded-releases, key publicKey: expected the PEM"
        )
        await api.delete(CONFIG_MAPS, "unbounded-releases", namespace="unbounded-kube")
        await known("")


async def test_a_key_that_is_given_stands_in_for_what_is_published() -> None:
    api = MemoryApi(namespaces=("kube-public", "kube-system", "unbounded-kube"))
    body = {"metadata": {"name": "unbounded-releases"}, "data": {"publicKey": "x"}}
    await api.create(CONFIG_MAPS, body, namespace="unbounded-kube")
    async with with_key(api, release_key=PUBLIC_KEY) as follower:

        async def known() -> bool:
            return follower.facts is not None and follower.facts.release_key == PUBLIC_KEY

        await eventually(known, within_s=20)
