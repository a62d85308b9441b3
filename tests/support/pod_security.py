"""The Pod security standards `baseline` and `restricted` of Kubernetes, as rules over the spec of a Pod.

Each rule is one row of https://kubernetes.io/docs/concepts/security/pod-security-standards/ for Linux.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Raw = Mapping[str, Any]

ADDABLE = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"}
    | {"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)
VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"}
    | {"secret"}
)
SYSCTLS = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"}
    | {"net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"}
    | {"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"}
    | {"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
)
SELINUX = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
CONFINED = frozenset({"RuntimeDefault", "Localhost"})
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe")


def containers(pod: Raw) -> Iterator[Raw]:
    """All containers of a Pod, of every sort."""
    for sort in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(sort) or ()


def baseline(pod: Raw) -> list[str]:
    """Return each violation of `baseline`."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"hostPath volume {volume['name']}" for volume in pod.get("volumes") or () if "hostPath" in volume]
    sysctls = (pod.get("securityContext") or {}).get("sysctls") or ()
    found += [f"sysctl {one['name']}" for one in sysctls if one["name"] not in SYSCTLS]
    found += _of_context(pod, "the Pod")
    for container in containers(pod):
        found += _baseline_container(container)
    return found


def _baseline_container(container: Raw) -> Iterator[str]:
    context, name = container.get("securityContext") or {}, container["name"]
    if context.get("privileged"):
        yield f"{name}: privileged"
    added = set((context.get("capabilities") or {}).get("add") or ())
    if added - ADDABLE:
        yield f"{name}: capabilities {sorted(added - ADDABLE)}"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{name}: hostPort"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    yield from _of_context(container, name)
    hooks = (container.get("lifecycle") or {}).values()
    for handler in (*(container.get(kind) or {} for kind in HANDLERS), *hooks):
        if any((handler.get(kind) or {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{name}: host of a probe"


def _of_context(owner: Raw, name: str) -> Iterator[str]:
    """Rules that a Pod and each container are held to alike."""
    context = owner.get("securityContext") or {}
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{name}: seccompProfile Unconfined"
    if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield f"{name}: appArmorProfile Unconfined"
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in SELINUX or selinux.get("user") or selinux.get("role"):
        yield f"{name}: seLinuxOptions"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name}: hostProcess"


def restricted(pod: Raw) -> list[str]:
    """Return each violation of `restricted`, which includes `baseline`."""
    found = baseline(pod)
    for volume in pod.get("volumes") or ():
        if not set(volume) - {"name"} <= VOLUMES:
            found.append(f"volume {volume['name']}")
    whole = pod.get("securityContext") or {}
    for container in containers(pod):
        found += _restricted_container(container, whole)
    return found


def _restricted_container(container: Raw, whole: Raw) -> Iterator[str]:
    own, name = container.get("securityContext") or {}, container["name"]
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot"
    if own.get("runAsUser", whole.get("runAsUser")) == 0:
        yield f"{name}: runAsUser 0"
    seccomp = own.get("seccompProfile") or whole.get("seccompProfile") or {}
    if seccomp.get("type") not in CONFINED:
        yield f"{name}: seccompProfile"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{name}: capabilities are not dropped"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities {sorted(capabilities['add'])}"
