"""Facts of the cluster that a new node needs: address and CA of the API server, its version, and the DNS server.

Address and CA come from ConfigMap kube-public/cluster-info, which kubeadm and `unbounded up` publish, the version from
/version, and the DNS server from Service kube-system/kube-dns. For a cluster without cluster-info, an option supplies
the address. The CA then comes from ConfigMap kube-root-ca.crt, which Kubernetes creates in each namespace. The public
key of the agent's releases comes from ConfigMap unbounded-kube/unbounded-releases.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import yaml

from unbounded.api.core import CONFIG_MAPS, SERVICES, ConfigMap, Service
from unbounded.api.failures import Failure
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.join.release_key import published_key
from unbounded.kube import cluster_info
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log
from unbounded.kube.settings import endpoint_url

CLUSTER_INFO: Final = cluster_info.NAME
CLUSTER_INFO_NAMESPACE: Final = cluster_info.NAMESPACE
KUBECONFIG_KEY: Final = cluster_info.KUBECONFIG
ROOT_CA: Final = "kube-root-ca.crt"
ROOT_CA_KEY: Final = "ca.crt"
KUBE_DNS: Final = "kube-dns"
KUBE_DNS_NAMESPACE: Final = "kube-system"
VERSION_EVERY_S: Final = 300.0  # no event reports an upgrade of the API server
_AGAIN: Final = Backoff(1.0, 60.0)
_HEADLESS: Final = "None"
_RELEASE: Final = re.compile(r"v?(\d+\.\d+\.\d+)")
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"

log = Log("join")


class InvalidFact(ValueError):
    """An object lacks a valid value; the message names the object and the field."""


@dataclass(frozen=True)
class ClusterFacts:
    """Facts of a cluster.

    Args:
        apiserver_url: https://host:port, without a trailing slash.
        ca_pem: CA certificates of the API server.
        kubernetes_version: of the upstream release, such as v1.34.0, without a provider's suffix.
        cluster_dns: IP address; empty where the cluster has no DNS server.
        release_key: public key that has to verify releases of the agent; empty where any release may run.
    """

    apiserver_url: str
    ca_pem: str
    kubernetes_version: str
    cluster_dns: str
    release_key: str = ""


@dataclass(frozen=True)
class ApiServerEndpoint:
    """Address and CA of the API server."""

    url: str
    ca_pem: str


def endpoint_of(config_map: ConfigMap) -> ApiServerEndpoint:
    """Return address and CA from cluster-info: the first cluster of its kubeconfig.

    Raises:
        InvalidFact
    """
    where = f"ConfigMap {CLUSTER_INFO_NAMESPACE}/{CLUSTER_INFO}"
    text = config_map.data.get(KUBECONFIG_KEY)
    if text is None:
        raise InvalidFact(f"{where} has no key {KUBECONFIG_KEY!r}")
    where = f"{where}, key {KUBECONFIG_KEY!r}"
    try:
        body = yaml.load(text, Loader=yaml.CSafeLoader)  # the safe loader, in C
    except yaml.YAMLError as error:
        raise InvalidFact(f"{where}: not YAML") from error
    match body:
        case {"clusters": [{"cluster": {"server": str(server), "certificate-authority-data": str(data)}}, *_]}:
            return ApiServerEndpoint(_server(server, where), _authority(data, where))
    raise InvalidFact(f"{where}: clusters[0].cluster needs server and certificate-authority-data")


def _server(text: str, where: str) -> str:
    if "://" not in text:  # a kubeconfig without a scheme means http
        raise InvalidFact(f"{where}: server {text!r} does not begin with https://")
    try:
        return endpoint_url(text)
    except ValueError as error:
        raise InvalidFact(f"{where}: server {error}") from error


def _authority(data: str, where: str) -> str:
    try:
        pem = base64.b64decode(data, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidFact(f"{where}: certificate-authority-data is not base64 of PEM") from error
    if _CERTIFICATE not in pem:
        raise InvalidFact(f"{where}: certificate-authority-data contains no certificate")
    return pem


def root_ca_of(config_map: ConfigMap) -> str:
    """Return the CA of kube-root-ca.crt as PEM. Raises InvalidFact."""
    pem = config_map.data.get(ROOT_CA_KEY, "")
    if _CERTIFICATE not in pem:
        where = f"ConfigMap {config_map.metadata.namespace}/{ROOT_CA}, key {ROOT_CA_KEY!r}"
        raise InvalidFact(f"{where}: contains no certificate")
    return pem


def dns_of(service: Service) -> str:
    """Return the address of the cluster's DNS server. Raises InvalidFact where the Service has none."""
    address = service.spec.cluster_ip or ""
    try:
        return str(ip_address(address))
    except ValueError as error:
        message = "none" if address in ("", _HEADLESS) else repr(address)
        text = f"Service {KUBE_DNS_NAMESPACE}/{KUBE_DNS}: spec.clusterIP is {message}; set --cluster-dns"
        raise InvalidFact(text) from error


def release_of(message: str) -> str:
    """Return a Kubernetes version as a release that can be downloaded: v1.34.1 for a provider's v1.34.1-eks-1234567.

    Raises:
        ValueError: the text has no version.
    """
    found = _RELEASE.match(message)
    if found is None:
        raise ValueError(f"the cluster reports {message!r}, which is not a version such as v1.34.0")
    return f"v{found[1]}"


class FactsFollower:
    """Follows the cluster's facts. A fact that becomes unreadable or invalid keeps its last value.

    Args:
        version: reads the API server's version.
        apiserver_url: overrides the address of cluster-info, not its CA; empty for none.
        cluster_dns: overrides the Service; empty for none.
        release_key: overrides the published one; empty for none.
        dns_flag, url_flag: options that set these, for messages.
        root_ca_namespace: namespace of kube-root-ca.crt, which counts while there is no cluster-info; empty to require
            a cluster-info.
    """

    def __init__(
        self,
        api: Api,
        version: Callable[[], Awaitable[str]],
        *,
        apiserver_url: str = "",
        cluster_dns: str = "",
        release_key: str = "",
        dns_flag: str = "--cluster-dns",
        url_flag: str = "--api-server-endpoint",
        root_ca_namespace: str = "",
    ) -> None:
        self._dns_flag = dns_flag
        self._url_flag = url_flag
        self._ask_version = version
        self._url = apiserver_url.rstrip("/")
        self._given_dns = cluster_dns
        self._place: ApiServerEndpoint | None = None
        self._root_ca = ""
        self._version = ""
        self._dns = cluster_dns
        self._given_key = self._key = release_key
        self._key_fault = ""
        self._published: ClusterFacts | None = None
        self._subscribers: list[Callable[[], None]] = []
        self._info = Cache(api, CONFIG_MAPS, namespace=CLUSTER_INFO_NAMESPACE, fields=f"metadata.name={CLUSTER_INFO}")
        self._service = Cache(api, SERVICES, namespace=KUBE_DNS_NAMESPACE, fields=f"metadata.name={KUBE_DNS}")
        self._root = Cache(api, CONFIG_MAPS, namespace=root_ca_namespace, fields=f"metadata.name={ROOT_CA}")
        self._releases = Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_RELEASES}")
        self._root_ca_namespace = root_ca_namespace
        self._info.subscribe(lambda _old, new: self._follow_info(new))
        self._service.subscribe(lambda _old, new: self._follow_service(new))
        self._root.subscribe(lambda _old, new: self._follow_root_ca(new))
        self._releases.subscribe(lambda _old, new: self._follow_releases(new))

    @property
    def facts(self) -> ClusterFacts | None:
        """Return the facts; None until all are known."""
        if self.missing is not None:
            return None
        place = self._place or ApiServerEndpoint(self._url, self._root_ca)
        return ClusterFacts(self._url or place.url, place.ca_pem, self._version, self._dns, self._key)

    @property
    def missing(self) -> str | None:
        """Return the facts not read yet, for a user; None when all are known. Also a check of readiness."""
        if self._place is None and (lacking := self._lacking_place()):
            return lacking
        if not self._version:
            return "the API server has not reported its version yet"
        if not self._given_dns and not self._service.synced.is_set():
            return f"Service {KUBE_DNS_NAMESPACE}/{KUBE_DNS} has not been read yet"
        if not self._given_key and not self._releases.synced.is_set():
            return f"ConfigMap {NAMESPACE}/{CONFIGMAP_RELEASES} has not been read yet"
        return self._key_fault or None

    def _lacking_place(self) -> str:
        """Return what is missing in place of cluster-info, empty when nothing is."""
        no_info = f"ConfigMap {CLUSTER_INFO_NAMESPACE}/{CLUSTER_INFO} has not been read, or does not exist"
        if not self._root_ca_namespace:
            return no_info
        if not self._info.synced.is_set():
            return no_info  # an existing cluster-info counts
        if not self._url:
            return f"{no_info}; for a cluster without one, set {self._url_flag}"
        if not self._root_ca:
            return f"{no_info}, and ConfigMap {self._root_ca_namespace}/{ROOT_CA} has not been read, or does not exist"
        return ""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this whenever `facts` changes; the returned function ends the subscription."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._info.run(), name="cluster-info")
            tasks.create_task(self._follow_version(), name="cluster version")
            if not self._given_dns:
                tasks.create_task(self._service.run(), name="kube-dns")
                tasks.create_task(self._warn_without_dns(), name="kube-dns read")
            if not self._given_key:
                tasks.create_task(self._releases.run(), name="public key of releases")
                tasks.create_task(self._notify_when_synced(self._releases), name="public key read")
            if self._root_ca_namespace:
                tasks.create_task(self._root.run(), name="kube-root-ca.crt")
                tasks.create_task(self._notify_when_synced(self._info), name="cluster-info read")

    def _follow_info(self, config_map: ConfigMap | None) -> None:
        if config_map is None:
            log.warning("cluster-info was deleted; using its last content")
            return
        try:
            self._place = endpoint_of(config_map)
        except InvalidFact as error:
            log.warning("cluster-info is invalid; using its last content", error=error)
        self._notify()

    def _follow_root_ca(self, config_map: ConfigMap | None) -> None:
        if config_map is None:
            return
        try:
            self._root_ca = root_ca_of(config_map)
        except InvalidFact as error:
            log.warning("kube-root-ca.crt is invalid; using its last content", error=error)
        self._notify()

    def _follow_service(self, service: Service | None) -> None:
        if self._given_dns or service is None:  # deleted: nodes that join in between get the former address
            return
        try:
            self._dns = dns_of(service)
        except InvalidFact as error:
            log.warning("kube-dns is invalid", error=error)
        self._notify()

    def _follow_releases(self, config_map: ConfigMap | None) -> None:
        """Follow the published key. Hosts get no agent while it is invalid: signatures are required, and none can be
        verified.
        """
        try:
            self._key, self._key_fault = published_key(config_map), ""
        except ValueError as error:
            self._key_fault = str(error)
            log.warning("public key of releases is invalid; setting up no hosts", error=error)
        self._notify()

    async def _notify_when_synced(self, cache: Cache[ConfigMap]) -> None:
        await cache.synced.wait()
        self._notify()

    def _notify(self) -> None:
        facts = self.facts
        if facts != self._published:
            self._published = facts
            for callback in tuple(self._subscribers):
                callback()

    async def _warn_without_dns(self) -> None:
        await self._service.synced.wait()
        self._notify()
        if not self._dns:
            log.warning("cluster has no Service kube-system/kube-dns: new nodes get no DNS server", give=self._dns_flag)

    async def _follow_version(self) -> None:
        failures = 0
        while True:
            try:
                version = await self._ask_version()
                self._version = release_of(version) if version else self._version
                failures = 0
                self._notify()
            except (Failure, ValueError) as error:
                failures += 1
                log.warning("cannot read version of the API server", error=error, known=self._version)
            await asyncio.sleep(_AGAIN.after(failures) if failures else VERSION_EVERY_S)
