"""The console's Deployment, its Service and its NetworkPolicy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from unbounded.cli.deploy import objects, pods

Raw = dict[str, Any]

CONSOLE: Final = "unbounded-console"
CONSOLE_TLS: Final = "unbounded-console-tls"  # a Secret of the user, with tls.crt and tls.key
ALLOW_OPERATIONS: Final = "--allow-operations"  # of the console
CONSOLE_TLS_FOLDER: Final = "/etc/unbounded-console/tls"
_CONSOLE: Final = {"name": "console", "port": 443, "targetPort": "console"}
_CONSOLE_METRICS: Final = {"protocol": "TCP", "name": "metrics", "port": 8082, "targetPort": "metrics"}
_CONSOLE_HEALTH: Final = {"path": "/healthz", "port": "metrics"}
# about 60 MiB for each user of a fleet of 10,000 Machines, beside 80 MiB
_CONSOLE_RESOURCES: Final = {
    "requests": {"cpu": "50m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}


@dataclass(frozen=True)
class ConsoleWorkload:
    """The Deployment of the console.

    Args:
        allow_operations: it offers actions.
    """

    image: str
    allow_operations: bool = False


def console_objects(workload: ConsoleWorkload) -> tuple[Raw, ...]:
    """Return the console's objects, in the order of application. It has no account and no rights."""
    return console_service(), console_network(), console_deployment(workload)


def console_service() -> Raw:
    service = objects.service(CONSOLE, objects.selector_of(CONSOLE), _CONSOLE)
    service["spec"]["ports"].append(dict(_CONSOLE_METRICS))
    return service


def console_network() -> Raw:
    return pods.controller_network(CONSOLE, objects.selector_of(CONSOLE), served="console")


def console_deployment(workload: ConsoleWorkload) -> Raw:
    """Return the Deployment: one process, as sessions are in its memory.

    The account's token is not in it: the mount of the authority takes the place of that of the account.
    """
    files = {"--tls-cert-file": "tls.crt", "--tls-private-key-file": "tls.key"}
    container: Raw = {
        "name": CONSOLE,
        "image": workload.image,
        "command": [CONSOLE],
        "args": [
            *(f"{flag}={CONSOLE_TLS_FOLDER}/{file}" for flag, file in files.items()),
            *[ALLOW_OPERATIONS] * workload.allow_operations,
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the Pod's own, and empty
        "ports": [
            {"name": "console", "containerPort": 8443, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 8082, "protocol": "TCP"},
        ],
        "livenessProbe": {**pods.probe("/healthz", delay_s=5, period_s=10), "httpGet": _CONSOLE_HEALTH},
        "readinessProbe": {**pods.probe("/healthz", delay_s=3, period_s=5), "httpGet": _CONSOLE_HEALTH},
        "resources": objects.copied(_CONSOLE_RESOURCES),
        "securityContext": pods.confined(),
        "volumeMounts": [
            {"name": "api-server-ca", "mountPath": pods.ACCOUNT_FOLDER, "readOnly": True},
            {"name": "tls", "mountPath": CONSOLE_TLS_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
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
    return objects.deployment(CONSOLE, objects.selector_of(CONSOLE), pod, replicas=1)
