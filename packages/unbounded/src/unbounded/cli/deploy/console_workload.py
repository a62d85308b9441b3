"""The console's Deployment, and the objects beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from unbounded.cli.deploy import objects, pods
from unbounded.console.oidc_settings import CA_FILE, CLIENT_ID, CLIENT_SECRET_FILE, ISSUER_URL, SCOPES

Raw = dict[str, Any]

CONSOLE: Final = "unbounded-console"
CONSOLE_TLS: Final = "unbounded-console-tls"  # a Secret of the user, with tls.crt and tls.key
ALLOW_OPERATIONS: Final = "--allow-operations"  # of the console
CONSOLE_TLS_FOLDER: Final = "/etc/unbounded-console/tls"
OIDC_CLIENT: Final = "oidc-client"  # a volume
OIDC_CLIENT_FILE: Final = f"/etc/unbounded-console/{OIDC_CLIENT}/client-secret"
OIDC_CA: Final = "unbounded-console-oidc-ca"  # a ConfigMap
OIDC_CA_VOLUME: Final = "oidc-ca"
OIDC_CA_FILE: Final = f"/etc/unbounded-console/{OIDC_CA_VOLUME}/ca.crt"
_CONSOLE: Final = {"name": "console", "port": 443, "targetPort": "console"}
_CONSOLE_METRICS: Final = {"protocol": "TCP", "name": "metrics", "port": 8082, "targetPort": "metrics"}
# about 60 MiB for each user of a fleet of 10,000 Machines, and 40 MiB for the SDK of a cloud, beside 80 MiB
_CONSOLE_RESOURCES: Final = {
    "requests": {"cpu": "50m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}


@dataclass(frozen=True)
class SecretKey:
    """A key of a Secret of unbounded-kube."""

    name: str
    key: str


@dataclass(frozen=True)
class ConsoleOidc:
    """The log-in with an OpenID Connect provider.

    Args:
        issuer, client_id: those of the API server.
        client_secret: of a confidential client; None for a public one.
        ca: PEM of the authorities of the provider's certificate; empty for those of the system.
        scopes: beside openid; empty for those that the console chooses.
    """

    issuer: str
    client_id: str
    client_secret: SecretKey | None = None
    ca: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConsoleWorkload:
    """The Deployment of the console.

    Args:
        allow_operations: it offers actions.
        oidc: None for the log-in with a token alone.
    """

    image: str
    allow_operations: bool = False
    oidc: ConsoleOidc | None = None


def console_objects(workload: ConsoleWorkload) -> tuple[Raw, ...]:
    """Return the console's objects, in the order of application. It has no account and no rights."""
    trusted = (console_oidc_ca(workload.oidc.ca),) if workload.oidc is not None and workload.oidc.ca else ()
    return *trusted, console_service(), console_network(), console_deployment(workload)


def console_oidc_ca(pem: str) -> Raw:
    """Return the ConfigMap with the authorities of the provider's certificate."""
    meta = objects.metadata(OIDC_CA, objects.selector_of(CONSOLE))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {PurePath(OIDC_CA_FILE).name: pem}}


def console_service() -> Raw:
    service = objects.service(CONSOLE, objects.selector_of(CONSOLE), _CONSOLE)
    service["spec"]["ports"].append(dict(_CONSOLE_METRICS))
    return service


def console_network() -> Raw:
    return pods.controller_network(CONSOLE, objects.selector_of(CONSOLE), served="console")


def console_deployment(workload: ConsoleWorkload) -> Raw:
    """Return the Deployment: one process, as sessions are in its memory."""
    container: Raw = {
        "name": CONSOLE,
        "image": workload.image,
        "command": [CONSOLE],
        **pods.tls_server("console", "metrics", "tls", CONSOLE_TLS_FOLDER, objects.copied(_CONSOLE_RESOURCES)),
        "readinessProbe": pods.probe("/readyz", delay_s=3, period_s=5, port="metrics"),
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the Pod's own, and empty
    }
    container["args"] += [ALLOW_OPERATIONS] * workload.allow_operations
    container["args"] += [] if workload.oidc is None else _oidc_args(workload.oidc)
    pod: Raw = {
        "automountServiceAccountToken": False,
        "priorityClassName": pods.PRIORITY,
        "securityContext": pods.as_nobody(),
        "tolerations": objects.copied(pods.TOLERATIONS),
        "containers": [container],
        "volumes": [
            {"name": "api-server-ca", "configMap": {"name": pods.ROOT_CA}},
            {"name": "tls", "secret": {"secretName": CONSOLE_TLS, "optional": True}},
            pods.tmp_volume(),
        ],
    }
    if workload.oidc is not None:
        for volume, file in _oidc_volumes(workload.oidc):
            mount = {"name": volume["name"], "mountPath": str(PurePath(file).parent), "readOnly": True}
            container["volumeMounts"].append(mount)
            pod["volumes"].append(volume)
    return objects.deployment(CONSOLE, objects.selector_of(CONSOLE), pod, replicas=1)


def _oidc_args(oidc: ConsoleOidc) -> list[str]:
    given = {
        ISSUER_URL.flag: oidc.issuer,
        CLIENT_ID.flag: oidc.client_id,
        CLIENT_SECRET_FILE.flag: OIDC_CLIENT_FILE if oidc.client_secret is not None else "",
        CA_FILE.flag: OIDC_CA_FILE if oidc.ca else "",
        SCOPES.flag: ",".join(oidc.scopes),
    }
    return [f"{flag}={value}" for flag, value in given.items() if value]


def _oidc_volumes(oidc: ConsoleOidc) -> Iterator[tuple[Raw, str]]:
    """Yield each volume with the file that the console reads from it, at each use.

    The Secret is optional, as that of the certificate is: the log-in with a token works without.
    """
    if oidc.client_secret is not None:
        items = [{"key": oidc.client_secret.key, "path": PurePath(OIDC_CLIENT_FILE).name}]
        secret = {"secretName": oidc.client_secret.name, "optional": True, "items": items}
        yield {"name": OIDC_CLIENT, "secret": secret}, OIDC_CLIENT_FILE
    if oidc.ca:
        yield {"name": OIDC_CA_VOLUME, "configMap": {"name": OIDC_CA}}, OIDC_CA_FILE
