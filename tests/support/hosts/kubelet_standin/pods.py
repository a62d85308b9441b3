"""Pods of the Node: no container runs, but a Pod counts as running only after all of kubelet's requests for it."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

from . import wire
from .api import Api, Refused
from .given import say
from .reflector import Reflector
from .status import stamp

STRATEGIC = "application/strategic-merge-patch+json"
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
ADDRESS = "192.0.2.1"
LOOK_S = 0.2


class Pods(threading.Thread):
    """Follows the Pods that a list holds."""

    def __init__(self, api: Api, pods: Reflector) -> None:
        super().__init__(daemon=True, name="pods")
        self._api = api
        self._pods = pods
        self._running: dict[str, _Pod] = {}  # by UID

    def run(self) -> None:
        while True:
            listed = {pod["metadata"]["uid"]: pod for pod in list(self._pods.objects.values())}
            for gone in self._running.keys() - listed.keys():
                self._running.pop(gone).stop()
            for uid, pod in listed.items():
                if uid not in self._running:
                    self._running[uid] = _Pod(self._api, pod)
                try:
                    self._running[uid].follow(pod)
                except (Refused, OSError, http.client.HTTPException) as error:
                    say(f"pod {pod['metadata']['name']}: {error}")
                    time.sleep(1.0)
            time.sleep(LOOK_S)


class _Pod:
    """One Pod, with what its volumes and environment need."""

    def __init__(self, api: Api, pod: dict[str, Any]) -> None:
        self._api = api
        meta = pod["metadata"]
        self._uid, self._name, self._base = meta["uid"], meta["name"], f"/api/v1/namespaces/{meta['namespace']}"
        self._path = f"{self._base}/pods/{self._name}"
        self._needs = {
            (kind, name): Reflector(api.watch, f"{self._base}/{kind}", f"metadata.name={name}")
            for kind, name in sorted(set(_needed(pod["spec"])))
        }
        for reflector in self._needs.values():
            reflector.start()
        self._tokens = list(_tokens(pod["spec"]))
        self._account = pod["spec"].get("serviceAccountName", "default")
        self._phase = ""

    def stop(self) -> None:
        for reflector in self._needs.values():
            reflector.stop()

    def follow(self, pod: dict[str, Any]) -> None:
        """Bring the Pod to the state of its object."""
        if pod["metadata"].get("deletionTimestamp"):
            self._end()
        elif not self._phase:
            self._report(pod, running=False)
        elif self._phase == "Pending" and self._is_complete():
            self._report(pod, running=True)

    def _is_complete(self) -> bool:
        while self._tokens:
            audiences, seconds = self._tokens[0]
            body = wire.token_request(audiences, seconds, self._name, self._uid)
            answer = self._api.call("POST", f"{self._base}/serviceaccounts/{self._account}/token", body)
            assert answer["status"]["token"], answer
            self._tokens.pop(0)
        return all(one.objects and not one.problem for one in self._needs.values())

    def _report(self, pod: dict[str, Any], *, running: bool) -> None:
        """Read the Pod, and patch its status, as kubelet's status manager does."""
        self._api.call("GET", self._path)
        generation = pod["metadata"].get("generation")
        times = {"lastProbeTime": None, "lastTransitionTime": stamp(), "observedGeneration": generation}
        known = {"PodScheduled": "True"}
        conditions = [
            {"type": kind, "status": known.get(kind, "True" if running else "False"), **times} for kind in CONDITIONS
        ]
        state = {"running": {"startedAt": stamp()}} if running else {"waiting": {"reason": "ContainerCreating"}}
        common = {"ready": running, "started": running, "restartCount": 0, "imageID": "", "state": state}
        statuses = [{"name": one["name"], "image": one["image"], **common} for one in pod["spec"]["containers"]]
        phase = "Running" if running else "Pending"
        status = {
            "$setElementOrder/conditions": [{"type": kind} for kind in CONDITIONS],
            "conditions": conditions,
            "containerStatuses": statuses,
            "hostIP": ADDRESS,
            "hostIPs": [{"ip": ADDRESS}],
            "observedGeneration": generation,
            "phase": phase,
            "startTime": stamp(),
        }
        body = {"metadata": {"uid": self._uid}, "status": status}
        answer = self._api.call("PATCH", f"{self._path}/status", body, STRATEGIC)["status"]
        assert answer["phase"] == phase, answer
        assert len(answer["conditions"]) >= len(CONDITIONS), answer
        self._phase = phase

    def _end(self) -> None:
        if self._phase != "gone":
            self._api.call("DELETE", self._path, wire.pod_deletion(self._uid))
            self._phase = "gone"


def _needed(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of the ConfigMaps and Secrets that a Pod cannot do without."""
    for volume in spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            if "configMap" in source:
                yield "configmaps", source["configMap"]["name"]
            if "secret" in source:
                yield "secrets", source["secret"].get("secretName") or source["secret"]["name"]
    for container in spec["containers"]:
        for variable in container.get("env") or ():
            given = variable.get("valueFrom") or {}
            if "configMapKeyRef" in given:
                yield "configmaps", given["configMapKeyRef"]["name"]
            if "secretKeyRef" in given:
                yield "secrets", given["secretKeyRef"]["name"]


def _tokens(spec: dict[str, Any]) -> Iterator[tuple[list[str], int]]:
    """Audiences and lifetime of the tokens of a Pod's service account."""
    for volume in spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                token = source["serviceAccountToken"]
                yield ([token["audience"]] if token.get("audience") else []), token.get("expirationSeconds") or 3600
