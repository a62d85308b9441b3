"""Files of a slot that hold the settings of its MachineConfiguration. Pure; paths are those inside the machine."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from unbounded.agent.model import NodeGoal
from unbounded.agent.node import pull_secrets
from unbounded.agent.node.slot_files import SlotFile, unit_word
from unbounded.agent.steps.kernel import DESIRED
from unbounded.api.configuration import KubeletSettings, NodeSettings, ProxySettings, RegistryConfig, RegistryHost
from unbounded.api.failures import Rejected
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Reference
from unbounded.fetch.web import Proxies, Trust

UNITS: Final = ("containerd.service", "kubelet.service")
FLAGS: Final = "/etc/systemd/system/kubelet.service.d/30-settings.conf"
CA_FOLDER: Final = "/etc/unbounded/authorities"
CERTS: Final = "/etc/containerd/certs.d"
_SYSTEM_CERTS: Final = "/etc/ssl/certs:/etc/pki/tls/certs"  # Go's default folders
_ALWAYS_DIRECT: Final = ("localhost", "127.0.0.0/8", "::1", ".svc")
_OWN: Final = "node_ip"  # a flag of kubelet, and no field of KubeletConfiguration


def require_usable(settings: NodeSettings) -> None:
    """Reject settings that pass the schema and that no node could use.

    Raises:
        Rejected: the message names each field and a valid value.
    """
    if wrong := list(faults(settings)):
        raise Rejected("; ".join(wrong))


def faults(settings: NodeSettings) -> Iterator[str]:
    """Yield faults of settings that pass the schema: the field, and a valid value."""
    kubelet, containerd = settings.kubelet or KubeletSettings(), settings.containerd
    if kubelet.node_ip and not _is_address_or_network(kubelet.node_ip):
        yield f"kubelet.nodeIP {kubelet.node_ip!r}: an address such as 10.0.0.5, or a network such as 10.0.0.0/16"
    if settings.ca_bundle is not None and not _is_pem(settings.ca_bundle):
        yield "caBundle: at least one certificate in PEM"
    for registry in containerd.registries if containerd else ():
        for number, host in enumerate(registry.hosts):
            if host.ca_bundle is not None and not _is_pem(host.ca_bundle):
                where = f"containerd.registries[{registry.name}].hosts[{number}].caBundle"
                yield f"{where}: at least one certificate in PEM"
    for name in sorted(settings.sysctl or {}):
        if name.replace("/", ".") in DESIRED:
            yield f"sysctl {name}: omit it, as the agent sets it to {DESIRED[name.replace('/', '.')]} for kubelet"


def _is_address_or_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_pem(text: str) -> bool:
    try:
        return bool(x509.load_pem_x509_certificates(text.encode()))
    except ValueError:
        return False


def changed_files(
    before: NodeGoal, after: NodeGoal, address: str, logins: bytes
) -> tuple[tuple[SlotFile, ...], tuple[str, ...]]:
    """Return the files that change between two goals of a slot, and the paths of those to remove."""
    desired = files(after, address, logins)
    there = {file.path for file in desired}
    return desired, tuple(file.path for file in files(before, "", b"") if file.path not in there)


def kubelet_fields(settings: NodeSettings) -> dict[str, Any]:
    """Return the settings' fields of KubeletConfiguration."""
    if settings.kubelet is None:
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(settings.kubelet, **{_OWN: None}))
    return fields


def files(spec: NodeGoal, address: str, logins: bytes) -> tuple[SlotFile, ...]:
    """Return the files of a goal's settings, without kubelet's own configuration.

    Args:
        address: of the Node; empty for kubelet's choice.
        logins: of the settings' Secrets, as stored on this host.
    """
    settings = spec.settings
    node_ip = (f"--node-ip={address}",) if address else ()
    secrets = bool(pull_secrets.secret_names(settings))
    known = pull_secrets.parse_response(logins) if secrets else RegistryLogins()
    flags = " ".join((*node_ip, *(pull_secrets.FLAGS if secrets else ())))
    return (
        *(SlotFile(drop_in(unit), _environment(environment(spec))) for unit in UNITS),
        SlotFile(FLAGS, _environment({"KUBELET_SETTINGS_ARGS": flags})),
        *((SlotFile(f"{CA_FOLDER}/configured.crt", settings.ca_bundle.encode()),) if settings.ca_bundle else ()),
        *(pull_secrets.files(logins) if secrets else ()),
        *(file for one in _registries(settings) for file in _registry(one, known)),
    )


def drop_in(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.d/40-settings.conf"


def environment(spec: NodeGoal) -> Mapping[str, str]:
    """Return the environment variables of containerd and kubelet."""
    found: dict[str, str] = {}
    if (proxy := spec.settings.proxy) is not None and (proxy.http or proxy.https):
        given = (("HTTP_PROXY", proxy.http), ("HTTPS_PROXY", proxy.https), ("NO_PROXY", ",".join(direct(spec))))
        found |= {name: value for name, value in given if value}
    if spec.settings.ca_bundle:
        found["SSL_CERT_DIR"] = f"{_SYSTEM_CERTS}:{CA_FOLDER}"
    return found


def direct(spec: NodeGoal) -> tuple[str, ...]:
    """Return the hosts that need no proxy: those of the settings, the API server, the node and the cluster."""
    named = spec.settings.proxy.no_proxy if spec.settings.proxy else ()
    server = urlsplit(spec.api_server).hostname or ""
    return tuple(dict.fromkeys((*named, server, spec.machine, *_ALWAYS_DIRECT, f".{spec.cluster_domain}")))


def added_trust(settings: NodeSettings, trust: Trust | None = None) -> Trust:
    """Return the authorities that the agent's downloads trust."""
    return dataclasses.replace(trust or Trust(), added=(settings.ca_bundle or "").encode())


def proxies(spec: NodeGoal) -> Proxies:
    """Return the proxies of the agent's downloads."""
    proxy = spec.settings.proxy or ProxySettings()
    return Proxies(proxy.http or "", proxy.https or "", direct(spec))


def _environment(variables: Mapping[str, str]) -> bytes:
    lines = "".join(f"Environment={unit_word(f'{name}={value}')}\n" for name, value in variables.items())
    return f"[Service]\n{lines}".encode()


def _registries(settings: NodeSettings) -> tuple[RegistryConfig, ...]:
    return settings.containerd.registries if settings.containerd else ()


def _registry(registry: RegistryConfig, logins: RegistryLogins) -> Iterator[SlotFile]:
    """Yield hosts.toml and the authorities that it names; only root can read it where it holds a login."""
    folder, text, mode = f"{CERTS}/{registry.name}", "", 0o644
    for number, host in enumerate(registry.hosts):
        text += f'[host.{_toml(host.url)}]\n  capabilities = ["pull", "resolve"]\n'
        if urlsplit(host.url).path.strip("/"):
            text += "  override_path = true\n"
        if host.ca_bundle:
            yield SlotFile(f"{folder}/{number}.crt", host.ca_bundle.encode())
            text += f'  ca = ["{folder}/{number}.crt"]\n'
        if shown := _authorization(host, logins):
            text += f"  header = {{Authorization = {_toml(shown)}}}\n"
            mode = 0o600
    yield SlotFile(f"{folder}/hosts.toml", text.encode(), mode)


def _authorization(host: RegistryHost, logins: RegistryLogins) -> str:
    """Return the authorization header that containerd sends to this host alone; empty without a login for it.

    kubelet passes containerd the login of the registry in an image's name, never that of a mirror.
    """
    parts = urlsplit(host.url)
    repositories = f"{parts.path.strip('/')}/".removeprefix("v2/").strip("/")
    found = logins.find(Reference(parts.netloc, repositories))
    return found[0].basic() if found else ""


def _toml(text: str) -> str:
    return msgspec.json.encode(text).decode()  # TOML's basic strings have the syntax of JSON's
