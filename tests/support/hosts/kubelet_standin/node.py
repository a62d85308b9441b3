"""The Node: registered, reported, and Ready once the API server has answered all that kubelet needs."""

from __future__ import annotations

import argparse
import http.client
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote

from . import wire
from .api import Api, Refused
from .files import seconds
from .given import dials, say
from .pods import Pods
from .reflector import Reflector
from .status import Status, architecture, runtime_answers

CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
STRATEGIC = "application/strategic-merge-patch+json"
MIGRATED = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/azure-disk"}
ATTACHES = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}


class Node:
    """Args:
    config: KubeletConfiguration.
    """

    def __init__(self, api: Api, name: str, flags: argparse.Namespace, config: dict[str, Any]) -> None:
        self.api, self.name, self.flags, self.config = api, name, flags, config
        endpoint = flags.container_runtime_endpoint or config.get("containerRuntimeEndpoint") or ""
        self.runtime = endpoint.removeprefix("unix://") or "/run/containerd/containerd.sock"
        self.lease_s = int(config.get("nodeLeaseDurationSeconds") or 40)
        self._status = Status(name, int(config.get("maxPods") or 110))
        self._lease: dict[str, Any] | None = None
        self._reflectors = [
            Reflector(api.watch, "/api/v1/services", "spec.clusterIP!=None"),
            Reflector(api.watch, "/api/v1/nodes", f"metadata.name={name}"),
            Reflector(api.watch, "/api/v1/pods", f"spec.nodeName={name}"),
            Reflector(api.watch, "/apis/storage.k8s.io/v1/csidrivers"),
            Reflector(api.watch, "/apis/node.k8s.io/v1/runtimeclasses"),
        ]
        self._steps: dict[str, Callable[[], None]] = {  # those that are left to be done
            "the first Event": self._tell_start,
            "the deletion of ResourceSlices": self._clear_slices,
            "CSINode": self._make_csi_node,
            "Lease": self.renew,
        }

    def register(self) -> None:
        """Make the Node, or find it."""
        path = f"/api/v1/nodes/{self.name}"
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        labels["kubernetes.io/arch"] = architecture()
        labels.update(part.split("=", 1) for part in self.flags.node_labels.split(",") if part)
        taints = [_taint(part) for part in self.flags.register_with_taints.split(",") if part]
        taints += self.config.get("registerWithTaints") or []
        self._found(path)
        metadata = wire.meta(self.name, labels=labels, annotations=ATTACHES)
        body = wire.node(metadata, taints, self._status.report(self._problems()), int(time.time()))
        try:
            made = self.api.call("POST", "/api/v1/nodes", body)
        except Refused as refusal:
            if refusal.status != 409:
                raise
            self.api.call("GET", path)
            say(f"Node {self.name} is there")
            return
        lost = labels.items() - made["metadata"]["labels"].items()
        assert not lost, f"the API server has lost labels: {lost}"
        say(f"registered Node {self.name}")

    def report(self) -> bool:
        """Send the status; return whether the Node is Ready."""
        problems = self._problems()
        status = self._status.report(problems)
        order = [{"type": one["type"]} for one in status["conditions"]]
        body = {"status": {"$setElementOrder/conditions": order, **status}}
        answer = self.api.call("PATCH", f"/api/v1/nodes/{self.name}/status?timeout=10s", body, STRATEGIC)["status"]
        lost = [
            name
            for name, value in status.items()
            if name not in {"conditions", "addresses"} and answer.get(name) != value
        ]
        if lost or len(answer["conditions"]) < len(order):
            raise Refused(200, f"the API server has lost of the status: {lost or 'conditions'}")
        return not problems

    def _problems(self) -> list[str]:
        if "not-ready" in dials() or not runtime_answers(self.runtime):
            return ["container runtime does not answer"]
        unread = [f"{one.path} {one.problem}" for one in self._reflectors if one.problem]
        return [f"{name} is not yet initialized" for name in self._steps] + unread

    def renew(self) -> None:
        """Renew the Lease; make it when it is not there, for a Node that is."""
        path = f"{LEASES}/{self.name}?timeout=10s"
        held = self._lease or self._found(path)
        now = time.time_ns()
        when = now // 10**9, now % 10**9 // 1000 * 1000
        if held is None:
            node = self.api.call("GET", f"/api/v1/nodes/{self.name}?timeout=10s")
            owner = (self.name, node["metadata"]["uid"], "v1")
            metadata = wire.meta(self.name, namespace="kube-node-lease", node=owner)
            body = wire.lease(metadata, self.name, self.lease_s, when)
            self._lease = self.api.call("POST", f"{LEASES}?timeout=10s", body)
            return
        self._lease = None  # a refusal has it read again
        self._lease = self.api.call("PUT", path, self._renewed(held["metadata"], when))

    def _renewed(self, held: dict[str, Any], when: tuple[int, int]) -> bytes:
        owners = held.get("ownerReferences") or []
        metadata = wire.meta(
            self.name,
            namespace="kube-node-lease",
            uid=held["uid"],
            version=held["resourceVersion"],
            created=int(datetime.fromisoformat(held["creationTimestamp"]).timestamp()),
            node=(owners[0]["name"], owners[0]["uid"], owners[0]["apiVersion"]) if owners else None,
        )
        return wire.lease(metadata, self.name, self.lease_s, when)

    def _tell_start(self) -> None:
        now = time.time_ns()
        body = wire.event(f"{self.name}.{now:x}", self.name, "Starting", "Starting kubelet.", now // 10**9)
        self.api.call("POST", "/api/v1/namespaces/default/events", body)

    def _clear_slices(self) -> None:
        only = quote(f"spec.nodeName={self.name}", safe="")
        self.api.call("DELETE", f"{SLICES}?fieldSelector={only}", wire.envelope(*wire.DELETE_OPTIONS))

    def _make_csi_node(self) -> None:
        if self._found(f"{CSI_NODES}/{self.name}") is None:
            node = self.api.call("GET", f"/api/v1/nodes/{self.name}")
            self.api.call("POST", CSI_NODES, wire.csi_node(self.name, node["metadata"]["uid"], MIGRATED))

    def _found(self, path: str) -> Any:
        """Return an object, None where there is none."""
        try:
            return self.api.call("GET", path)
        except Refused as refusal:
            if refusal.status != 404:
                raise
            return None

    def work(self) -> None:
        """Register, then report until the process ends. What fails is tried again; a Node that was deleted stays so."""
        for reflector in self._reflectors:
            reflector.start()
        Pods(self.api, next(one for one in self._reflectors if one.path == "/api/v1/pods")).start()
        if "no-register" not in dials():
            until_done("register", self.register)
        report_s = seconds(self.config.get("nodeStatusUpdateFrequency"), 10.0)
        reported = renewed = 0.0
        is_ready = False
        while True:
            for name, step in list(self._steps.items()):
                if _tried(name, step):
                    del self._steps[name]
                    is_ready = False
            now = time.monotonic()
            if now - renewed >= self.lease_s / 4 and "Lease" not in self._steps and _tried("lease", self.renew):
                renewed = now
            if now - reported >= (report_s if is_ready else 0.5):
                is_ready, reported = self._reported(), now
            time.sleep(0.2)

    def _reported(self) -> bool:
        try:
            return self.report()
        except (Refused, OSError, http.client.HTTPException) as error:
            say(f"status: {error}")
            time.sleep(0.8)
            return False


def _tried(what: str, act: Callable[[], None]) -> bool:
    try:
        act()
    except (Refused, OSError, http.client.HTTPException) as error:
        say(f"{what}: {error}")
        time.sleep(0.8)
        return False
    return True


def until_done(what: str, act: Callable[[], None]) -> None:
    while not _tried(what, act):
        pass


def _taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}
