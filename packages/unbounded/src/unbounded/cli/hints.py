"""Suggestions for the next step: commands that work as printed, and the manifests that they use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from unbounded.api.operation import MachineOperation

DAMAGED: Final = "`unbounded restore` restores a backup; without one, move the file away to start without data"

_REBOOT_ALL: Final = """\
# Reboots the simulated machines, two at a time. `kubectl create -f` makes another one each time.
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata:
  generateName: reboot-all-
spec:
  operationKind: HostReboot
  machineSelector:
    matchLabels:
      unbounded-cloud.io/site: {site}
  maxConcurrent: 2
"""

_MACHINE: Final = """\
{what}
apiVersion: v1
kind: Secret
metadata:
  name: {name}-bmc
  namespace: unbounded-kube
stringData:
  password: change-me
---
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata:
  name: {name}
  labels:
    unbounded-cloud.io/site: rack1
spec:
  pxe:
    image: registry.example.com/images/host:v1
{boot}    redfish:
      url: https://bmc-{name}.example.com
      username: admin
      passwordRef:
        name: {name}-bmc
        namespace: unbounded-kube
        key: password
"""

REAL_MACHINE: Final = _MACHINE.format(
    what="# A machine with a Redfish BMC. Fill in the address, the user and the password, then `kubectl apply -f` it.",
    name="rack1-01",
    boot="",
)

NETBOOT_MACHINE: Final = _MACHINE.format(
    what="""\
# A machine that boots from the network. Fill in its BMC, its MAC, its address, and the image with its
# operating system, then `kubectl apply -f` it. Without a BMC, leave `redfish` and the Secret out.""",
    name="rack1-02",
    boot="""\
    dhcpLeases:
      - mac: 52:54:00:00:00:02
        ipv4: 192.0.2.12
        subnetMask: 255.255.255.0
        gateway: 192.0.2.1
""",
)

REPLACE: Final = """\
# Writes the image of rack1-02 to its disk again. `kubectl create -f` asks for it each time.
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata:
  generateName: replace-rack1-02-
spec:
  machineRef: rack1-02
  operationKind: HostReplace
"""

NO_KUBECTL: Final = """\
kubectl is not on PATH. From 1.32 on it will do: `apt install kubectl` on Debian 13, elsewhere
https://kubernetes.io/docs/tasks/tools/ says how to get it."""


def with_lab(data: Path, operation: MachineOperation, site: str) -> str:
    """Suggest commands for the simulated machines of a site, after an operation on one of them."""
    manifest = data / "reboot-all.yaml"
    manifest.write_text(_REBOOT_ALL.format(site=site))
    return _commands(
        data,
        (f"describe mop {operation.name}", "its actions, and the evidence"),
        (f"create -f {_shown(manifest)}", "reboot all of them, two at a time"),
        ("get mach,mop -o wide", "the present state"),
    )


def with_cloud(data: Path, operation: MachineOperation) -> str:
    """Suggest commands for machines of a simulated cloud, after an operation on one of them."""
    machine = operation.spec.machine_ref
    tried = _commands(data, (f"describe mop {operation.name}", "its actions, and the evidence"))
    then = (
        (f"machine replace {machine} --force", "reinstall it once more, and watch"),
        (f"machine power-off {machine} --now", "switch it off; power-on switches it on again"),
    )
    unbounded = _program()
    plugin = [f"  # {why}\n  {unbounded} {command} --kubeconfig {_shown(data / 'kubeconfig')}" for command, why in then]
    return "\n".join([tried, *plugin, *_kubectl(data, ("get mach,mop -o wide", "the present state"))])


def _program() -> str:
    """Return the name of this program as the user typed it."""
    return sys.argv[0] if Path(sys.argv[0]).name == "unbounded" else "unbounded"


def without_lab(data: Path) -> str:
    """Suggest first commands for real machines."""
    manifest = data / "machine.yaml"
    if not manifest.exists():
        manifest.write_text(REAL_MACHINE)
    return _commands(
        data,
        ("explain mach.spec.pxe.redfish", "the fields for a Machine's BMC"),
        (f"apply -f {_shown(manifest)}", f"add a machine; fill in {_shown(manifest)} first"),
        ("get mach,mop -o wide", "the present state"),
    )


def with_netboot(data: Path) -> str:
    """Suggest first commands for machines that boot from the network."""
    manifest, replace = data / "netboot-machine.yaml", data / "replace.yaml"
    if not manifest.exists():
        manifest.write_text(NETBOOT_MACHINE)
    if not replace.exists():
        replace.write_text(REPLACE)
    return _commands(
        data,
        ("explain mach.spec.pxe", "the fields for a Machine's network boot"),
        (f"apply -f {_shown(manifest)}", f"add a machine; fill in {_shown(manifest)} first"),
        (f"create -f {_shown(replace)}", "write its image, which deletes the data on its disk"),
        ("get mach,mop -o wide", "the progress"),
    )


def _commands(data: Path, *commands: tuple[str, str]) -> str:
    return "\n".join(["Try next:", *_kubectl(data, *commands)])


def _kubectl(data: Path, *commands: tuple[str, str]) -> list[str]:
    kubectl = f"kubectl --kubeconfig {_shown(data / 'kubeconfig')}"
    return [f"  # {why}\n  {kubectl} {command}" for command, why in commands]


def _shown(path: Path) -> str:
    """Return the path as a shell takes it."""
    text = str(path)
    return f"'{text}'" if any(character.isspace() for character in text) else text
