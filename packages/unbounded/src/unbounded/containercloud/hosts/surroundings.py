"""The login, the site and the rivals of a BareMetalHost, from the objects around it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from unbounded.api.container_cloud.host import BareMetalHost, BareMetalHostCredential
from unbounded.api.container_cloud.names import ANNOTATION_CREDENTIAL
from unbounded.api.core import Namespace, Secret
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_SITE
from unbounded.containercloud.caches import INDEX_ADOPTED, INDEX_MAC, by_address, by_adopted, by_mac
from unbounded.containercloud.hosts.model import (
    KEY_PASSWORD,
    KEY_USER,
    BmcLogin,
    host_key,
    host_of_machine,
    machine_of_host,
)
from unbounded.kube.api import ObjectKey
from unbounded.operations.caches import INDEX_BMC

RIVAL_INDEXES = ((INDEX_BMC, by_address), (INDEX_MAC, by_mac), (INDEX_ADOPTED, by_adopted))
"""Indexes of hosts, and their keys of one host, that two hosts must not share."""


def site_of(host: BareMetalHost, namespace: Namespace | None, default: str) -> str:
    """Return the site of a host: of its label, of that of its namespace, or the default one; empty for none."""
    labels = {} if namespace is None else namespace.metadata.labels
    return host.metadata.labels.get(LABEL_SITE) or labels.get(LABEL_SITE) or default


def secret_of_credential(credential: BareMetalHostCredential | None) -> str:
    """Return the Secret of a BareMetalHostCredential; empty where there is none."""
    password = credential.spec.password if credential is not None else None
    return password.name or "" if password is not None else ""


def login_secret(host: BareMetalHost, secret_name: str, credential: BareMetalHostCredential | None) -> ObjectKey | str:
    """Return the Secret with the login of a host's BMC; a text where the host names none.

    Args:
        secret_name: Secret of the host's BareMetalHostCredential; empty where there is none.
        credential: the one that the host names; None if it does not exist.
    """
    namespace, bmc = host.metadata.namespace or "", host.spec.bmc
    named = host.metadata.annotations.get(ANNOTATION_CREDENTIAL)
    if named and not secret_name and credential is None:
        return f"annotation {ANNOTATION_CREDENTIAL}: no BareMetalHostCredential {namespace}/{named}"
    name = secret_name or (bmc.credentials_name if bmc is not None else None)
    if bmc is None or not name:
        return f"bmc.credentialsName is absent: name a Secret of namespace {namespace} with username and password"
    return ObjectKey(namespace, name)


def parse_login(key: ObjectKey, secret: Secret | None) -> BmcLogin | str:
    """Return the login in a Secret; a text where it has none, or does not exist."""
    if secret is None:
        return f"bmc.credentialsName: Secret {key} does not exist"
    found = [secret.value(part) for part in (KEY_USER, KEY_PASSWORD)]
    missing = [part for part, value in zip((KEY_USER, KEY_PASSWORD), found, strict=True) if not value]
    if missing:
        return f"bmc.credentialsName: Secret {key} has no key {' and no key '.join(missing)}"
    username, password = (value or b"" for value in found)
    text = username.decode("utf-8", "replace").rstrip("\n")
    return BmcLogin(key.name, secret.metadata.resource_version, text, password)


def rivals_of(
    host: BareMetalHost,
    hosts: Callable[[str, str], Iterable[BareMetalHost]],
    machines: Callable[[str], Iterable[Machine]],
) -> Iterator[str]:
    """Yield messages on other hosts and Machines with the host's BMC, MAC address or Machine.

    Args:
        hosts: the hosts by an index of `RIVAL_INDEXES` and a key.
        machines: the Machines of unbounded-cloud.io by their BMC and system.
    """
    key, named = host_key(host), set[ObjectKey]()
    words = {
        INDEX_BMC: "names the same BMC and system",
        INDEX_MAC: "has the same bootMACAddress",
        INDEX_ADOPTED: "adopts the same Machine",
    }
    for index, keys in RIVAL_INDEXES:
        for text in keys(host):
            for other in sorted(set(map(host_key, hosts(index, text))) - {key}):
                named.add(other)
                yield f"BareMetalHost {other} {words[index]}, {text}"
    for text in by_address(host):
        for machine in machines(text):
            owner = host_of_machine(machine)
            if machine.name != machine_of_host(host) and owner != key and owner not in named:
                yield f"Machine {machine.name} names the same BMC and system, {text}"
