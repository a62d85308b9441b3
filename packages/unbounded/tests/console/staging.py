"""An object of each kind that the views show, and the views that show them."""

from __future__ import annotations

from typing import Final

from tests.console.served import (
    bmc_spec,
    cluster_body,
    create_namespace,
    create_new,
    execution_on,
    host_body,
    lock_of,
    machine_body,
    pool_body,
    set_status,
)
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339

CANARY: Final = "canary-7c1f"  # in objects that one user may not read
MACHINE, OPERATION, SITE = "web-01", f"web-01-reboot-{CANARY}", "rack1"
# each page, its path, and a text that it shows of its object
PAGES: Final = {
    "machine": (f"/machine/{MACHINE}", "Critical"),
    "operation": (f"/operation/{OPERATION}", "waits for the host to shut down"),
    "rollouts": ("/rollouts", "HostReboot holder-1"),
    "site": (f"/site/{SITE}", "ImageWriting"),
    "hosts": ("/hosts", "ns-1/host-1"),
    "host": ("/host/ns-1/host-1", "redfish://192.0.2.1"),
    "cluster": ("/cluster/ns-1/cluster-1", "release-1"),
}


async def stage(api: HttpApi) -> None:
    """Create an object of each kind."""
    now = rfc3339()
    await install_container_cloud(api)
    for namespace in (NAMESPACE, "ns-1"):
        await create_namespace(api, namespace)
    made = await create_new(api, MACHINES, {**machine_body(MACHINE, SITE), "spec": bmc_spec(11)})
    spec = {"operationKind": "HostReboot", "machineRef": MACHINE, "startDeadlineSeconds": 3600}
    operation = await create_new(api, MACHINE_OPERATIONS, {"metadata": {"name": OPERATION}, "spec": spec})
    executor = "metalman/rack1"
    hardware = {
        "source": "Installer",
        "at": now,
        "digest": "0" * 64,
        "disks": [{"name": "nvme0n1", "serialNumber": "PHYF001", "sizeBytes": 480 * 10**9}],
        "bmc": {"at": now, "parts": [{"kind": "disk", "name": "Disk 3", "health": "Critical"}]},
    }
    await set_status(
        api,
        MACHINE,
        phase="Rebooting",
        message="HostReboot",
        hardware=hardware,
        power={"state": "On", "at": now},
        disruptionBudgets=["rack1"],
        netboot={"boot": operation.metadata.uid, "milestone": "ImageWriting", "percent": 10, "at": now},
        activeOperation=lock_of(operation, executor, now),
    )
    target = {"machineRef": MACHINE, "phase": "InProgress", "stage": "ShuttingDown", "attempts": 1, "startedAt": now}
    execution = execution_on(made, executor, now)
    begun = {"name": "ShuttingDown", "startedAt": now, "limitSeconds": 120}
    status = {
        "phase": "InProgress",
        "startedAt": now,
        "targets": [target],
        "execution": execution,
        "history": {"stages": [begun]},
    }
    await api.patch(MACHINE_OPERATIONS, OPERATION, {"status": status}, subresource="status")
    await _stage_rollouts(api, now)
    await create_new(api, BARE_METAL_HOSTS, host_body("host-1"), namespace="ns-1")
    await create_new(api, CLUSTERS, cluster_body("cluster-1"), namespace="ns-1")
    await create_new(api, MACHINE_POOLS, pool_body("pool-1", "cluster-1"), namespace="ns-1")


async def _stage_rollouts(api: HttpApi, now: str) -> None:
    body = {"metadata": {"name": "workers"}, "spec": {"template": {}}}
    stage = {"name": "canary", "phase": "Soaking", "targets": 2, "completed": 2}
    rollout = {"version": 2, "phase": "InProgress", "stage": "canary", "stages": [stage]}
    await create_new(api, MACHINE_CONFIGURATIONS, body, status={"rollout": rollout})
    spec = {"machineSelector": {"matchLabels": {LABEL_SITE: SITE}}, "maxUnavailable": 1}
    holder = {"kind": "HostReboot", "name": "holder-1", "uid": "u"}
    grant = {"machine": MACHINE, "machineUID": "u", "holder": holder, "since": now}
    status = {"allowed": 0, "granted": 1, "grants": [grant]}
    await create_new(api, MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": "rack1"}, "spec": spec}, status=status)
