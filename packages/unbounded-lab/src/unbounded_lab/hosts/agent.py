"""The agent of a lab host, as the API server sees it.

It resolves its Machine's configuration, reports downloads, creates a Node again that was deleted, and executes
AgentReset. The lock of the Machine, the records of operations and their order are those of unbounded-agent; what the
real one does on a host is left out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from unbounded.api.names import (
    ANNOTATION_ABOUT_TO_CHANGE,
    ANNOTATION_PAUSED,
    FINALIZER_OPERATION,
    LABEL_CONFIGURATION,
)
from unbounded_lab.hosts.installer import NIC_NAMES, LabHardware
from unbounded_lab.hosts.wire import ClusterApi

OURS: Final = "/apis/unbounded-cloud.io/v1alpha3"
MACHINES: Final = f"{OURS}/machines"
OPERATIONS: Final = f"{OURS}/machineoperations"
VERSIONS: Final = f"{OURS}/machineconfigurationversions"
NODES: Final = "/api/v1/nodes"
VERSION: Final = "lab"
RETRY_S: Final = 1.0
HISTORY: Final = 10  # entries of status.recentOperations
RECREATION: Final = "NodeRecreation"
RESET: Final = "AgentReset"
PREPARING: Final = "Preparing"  # status.agent.stage
STARTING: Final = "Starting"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
REMOVED: Final = "the agent and all it made were removed from the host"
SYSTEM: Final[Mapping[str, Any]] = {
    "osID": "ubuntu",
    "osVersion": "22.04",
    "osCodename": "jammy",
    "kernel": "5.15.0-lab",
}

Raw = dict[str, Any]


class _Pass(Enum):
    """The result of a pass."""

    DONE = "nothing is due before a change"
    AGAIN = "something is due, and was not possible now"
    RESET = "the host is reset"


class LabNodeGoal(NamedTuple):
    """The content of a Node that is to be created.

    Attributes:
        kubernetes: its version, without a v; empty for that of the agent's configuration.
        image: of its root file system; empty for that of the agent's configuration.
        configuration: as `status.configuration` names it; None for a Machine without one.
    """

    kubernetes: str
    image: str
    configuration: Raw | None


class LabAgent:
    """The agent of one host.

    Args:
        node_uid: returns the UID of the Node that this host has registered.
        recreate: stops kubelet, and lets it register a Node of a version.
    """

    def __init__(
        self,
        api: ClusterApi,
        machine: str,
        *,
        node_uid: Callable[[], str],
        recreate: Callable[[LabNodeGoal], Awaitable[None]],
    ) -> None:
        self._api = api
        self._machine = machine
        self._executor = f"unbounded-agent/{machine}"
        self._node_uid = node_uid
        self._recreate = recreate
        self._woken = asyncio.Event()
        self._seen: dict[str, dict[str, Raw]] = {}  # objects by the path of their kind, and by name

    async def report(self, address: str, boot_id: str, stage: str, *, hardware: LabHardware | None = None) -> None:
        """Report the host, and the work on its node."""
        addresses = [{"interface": NIC_NAMES[0], "address": address}]
        host: Raw = {"hostname": self._machine, "address": address, "addresses": addresses, **SYSTEM}
        if hardware is not None:
            host["hardware"] = hardware.agent_facts()
        agent = {"version": VERSION, "hostBootID": boot_id, "waitsForGrants": True, "stage": stage, "host": host}
        await self._api.until((200,), "PATCH", self._status(), {"status": {"agent": agent}})

    async def first_goal(self) -> LabNodeGoal:
        """Return what the first Node is created from, once the Machine's status names it."""
        while True:
            machine = await self._read()
            goal = None if machine is None else await self._goal(machine)
            if goal is not None:
                await self._api.until((200,), "PATCH", self._status(), {"status": _made_from(goal, STARTING)})
                return goal
            await asyncio.sleep(RETRY_S)

    async def run(self, built: LabNodeGoal) -> None:
        """Follow the Machine, its Node and its operations; returns after a reset of the host.

        Args:
            built: what the Node was created from.
        """
        self._built = built
        await self._api.until((200,), "PATCH", self._status(), {"status": {"agent": {"stage": RUNNING}}})
        watches = (
            (MACHINES, f"metadata.name={self._machine}"),
            (NODES, f"metadata.name={self._machine}"),
            (OPERATIONS, f"spec.machineRef={self._machine}"),
        )
        following = [asyncio.create_task(self._follow(path, fields)) for path, fields in watches]
        try:
            while True:
                self._woken.clear()
                result = await self._pass() if len(self._seen) == len(watches) else _Pass.DONE
                if result is _Pass.RESET:
                    return
                await self._sleep(RETRY_S if result is _Pass.AGAIN else None)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, path: str, fields: str) -> None:
        while True:
            code, listing = await self._api.call("GET", f"{path}?{urlencode({'fieldSelector': fields})}")
            if code == 200:
                self._seen[path] = {one["metadata"]["name"]: one for one in listing["items"]}
                self._woken.set()
                async for event in self._api.events(path, fields, listing["metadata"]["resourceVersion"]):
                    self._observe(self._seen[path], event)
            await asyncio.sleep(RETRY_S)

    def _observe(self, known: dict[str, Raw], event: Raw) -> None:
        """Take over an event. That of a heartbeat is no reason for a pass."""
        item = event["object"]
        name = item["metadata"]["name"]
        before = known.get(name)
        if event["type"] == "DELETED":
            known.pop(name, None)
        else:
            known[name] = item
        if event["type"] != "MODIFIED" or before is None or _decides(before) != _decides(item):
            self._woken.set()

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something changes, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _pass(self) -> _Pass:
        """Do the next thing that is due."""
        machine = self._seen[MACHINES].get(self._machine)
        if machine is None:
            return _Pass.DONE
        machine = {"status": {}, "spec": {}} | machine
        for operation in self._resets():
            if _may_start(machine, operation):
                return _Pass.RESET if await self._reset(machine, operation) else _Pass.AGAIN
        node = self._seen[NODES].get(self._machine)
        if node is None or node["metadata"]["uid"] != self._node_uid():
            return await self._create_again()
        return await self._follow_configuration(machine)

    # ---- the Node

    async def _goal(self, machine: Raw) -> LabNodeGoal | None:
        """Return what a Node is created from now; None while its configuration has no version that stays."""
        ref, own = machine["spec"].get("configurationRef"), machine["spec"].get("kubernetes") or {}
        if ref is None:
            return LabNodeGoal(_number(own), "", None)
        found = await self._bound(ref)
        if found is None or ANNOTATION_ABOUT_TO_CHANGE in found["metadata"].get("annotations", {}):
            return None
        template, number = found["spec"]["template"], found["spec"]["version"]
        named = {"name": ref["name"], "version": number, "versionName": found["metadata"]["name"]}
        version = _number(template.get("kubernetes") or {}) or _number(own)
        return LabNodeGoal(version, (template.get("agent") or {}).get("image", ""), named)

    async def _bound(self, ref: Raw) -> Raw | None:
        """Return the version with the number of a reference, else the newest one that is not Bad."""
        if ref.get("version") is not None:
            code, found = await self._api.call("GET", f"{VERSIONS}/{ref['name']}-v{ref['version']}")
            return found if code == 200 else None
        labels = urlencode({"labelSelector": f"{LABEL_CONFIGURATION}={ref['name']}"})
        code, found = await self._api.call("GET", f"{VERSIONS}?{labels}")
        its = found.get("items", []) if code == 200 else []
        return max(its, key=lambda one: (not _is_bad(one), one["spec"]["version"]), default=None)

    async def _follow_configuration(self, machine: Raw) -> _Pass:
        """Report a requested download, and a version with which the Node has to be no other one."""
        update, status = machine["status"].get("nodeUpdate") or {}, machine["status"]
        done = {"version": update.get("version"), "generation": update.get("generation"), "complete": True}
        if update.get("phase") == "Preparing" and (status.get("agent") or {}).get("prepared") != done:
            await self._api.call("PATCH", self._status(), {"status": {"agent": {"prepared": done}}})
        goal = await self._goal(machine)
        if goal is None:
            return _Pass.AGAIN
        if goal[:2] == self._built[:2] and goal.configuration not in (None, status.get("configuration")):
            await self._api.call("PATCH", self._status(), {"status": _made_from(goal)})
        return _Pass.DONE

    async def _create_again(self) -> _Pass:
        """Create the Node again, if it is gone indeed, and the Machine is free."""
        code, node = await self._api.call("GET", f"{NODES}/{self._machine}")
        if code == 200 and node["metadata"]["uid"] == self._node_uid():
            return _Pass.DONE  # the watch is late
        machine = await self._read()
        if code not in (200, 404) or machine is None:
            return _Pass.AGAIN
        goal, active = await self._goal(machine), machine["status"].get("activeOperation")
        is_left = active is not None and (active["kind"], active["executor"]) == (RECREATION, self._executor)
        if goal is None or _is_paused(machine) or (active is not None and not is_left):
            return _Pass.AGAIN
        lock = self._lock(str(uuid.uuid4()), f"{self._machine}-recreation", RECREATION)
        begun = {"activeOperation": lock | {"configuration": goal.configuration}, "agent": {"stage": PREPARING}}
        if not await self._write(machine, begun):
            return _Pass.AGAIN
        await self._recreate(goal)
        self._built = goal
        await self._release(lock, {"message": "the Node is registered again"}, _made_from(goal, RUNNING))
        return _Pass.AGAIN

    # ---- the reset

    def _resets(self) -> list[Raw]:
        """Return the open AgentResets of the Machine, the oldest first."""
        its = self._seen[OPERATIONS].values()
        resets = [one for one in its if one["spec"]["operationKind"] == RESET and not _is_over(one)]
        return sorted(resets, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))

    async def _reset(self, machine: Raw, operation: Raw) -> bool:
        """Execute an AgentReset; return whether the host is reset."""
        meta = operation["metadata"]
        path, lock = f"{OPERATIONS}/{meta['name']}", self._lock(meta["uid"], meta["name"], RESET)
        finalizers = sorted({*meta.get("finalizers", []), FINALIZER_OPERATION})
        claimed = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers}}
        code, _ = await self._api.call("PATCH", path, claimed)
        if code != 200 or not await self._write(machine, {"activeOperation": lock} | _started(machine, meta["uid"])):
            return False
        record = self._record(machine, lock["since"])
        code, _ = await self._api.call("PATCH", f"{path}/status", {"status": record | _phase("InProgress")})
        if code != 200:
            return False  # the next pass finds the lock, and goes on
        now = _now()
        result = {"evidence": [{"what": REMOVED, "at": now, "where": f"host of {self._machine}"}], "message": REMOVED}
        target = record["targets"][0] | {"phase": "Complete", "completedAt": now, "reason": SUCCEEDED}
        end = record | _phase("Complete") | result | {"completedAt": now, "targets": [target]}
        await self._api.until((200,), "PATCH", f"{path}/status", {"status": end})
        await self._release(lock, result, {"agent": {"stage": None}})
        return True

    def _record(self, machine: Raw, since: str) -> Raw:
        target = {
            "machineRef": self._machine,
            "phase": "InProgress",
            "stage": "Resetting",
            "startedAt": since,
            "attempts": 1,
        }
        execution = {
            "executor": self._executor,
            "incarnation": f"{self._executor}/lab",
            "machineUID": machine["metadata"]["uid"],
            "binding": "lab",
            "action": "Remove",
        }
        return {"startedAt": since, "targets": [target], "execution": execution}

    # ---- the status of the Machine

    def _status(self) -> str:
        return f"{MACHINES}/{self._machine}/status"

    async def _read(self) -> Raw | None:
        code, machine = await self._api.call("GET", f"{MACHINES}/{self._machine}")
        return {"status": {}, "spec": {}} | machine if code == 200 else None

    async def _write(self, machine: Raw, status: Raw) -> bool:
        """Write the status of the Machine as it was read; return False where it has changed."""
        meta = {"resourceVersion": machine["metadata"]["resourceVersion"]}
        code, _ = await self._api.call("PATCH", self._status(), {"metadata": meta, "status": status})
        return code == 200

    def _lock(self, uid: str, name: str, kind: str) -> dict[str, str]:
        return {"uid": uid, "name": name, "kind": kind, "executor": self._executor, "since": _now()}

    async def _release(self, lock: dict[str, str], result: Raw, change: Raw) -> None:
        """Release the lock, and add the result to the history."""
        named = {key: lock[key] for key in ("name", "uid", "kind")} | {"startedAt": lock["since"]}
        entry = named | {"phase": "Complete", "reason": SUCCEEDED, "completedAt": _now()} | result
        while True:
            machine = await self._read()
            if machine is not None:
                active = machine["status"].get("activeOperation") or {}
                history = _with_newest(machine["status"].get("recentOperations", []), entry)
                status = {"activeOperation": None, "recentOperations": history} | change
                if active.get("uid") != lock["uid"] or await self._write(machine, status):
                    return
            await asyncio.sleep(RETRY_S)


def _with_newest(history: list[Raw], entry: Raw) -> list[Raw]:
    """Return the history with one more entry. Those that determine the state of the host stay."""
    others = [one for one in history if one["uid"] != entry["uid"]]
    if len(others) >= HISTORY:
        others.remove(next((one for one in others if one["kind"] not in ("HostReplace", RESET)), others[0]))
    return [*others, entry]


def _may_start(machine: Raw, operation: Raw) -> bool:
    """Return whether an operation may take the lock: it is free, and the Node is drained where that is needed."""
    status, uid = machine["status"], operation["metadata"]["uid"]
    active = status.get("activeOperation")
    if active is not None:
        return bool(active["uid"] == uid)
    if operation["spec"].get("cancel") or _is_paused(machine):
        return False
    is_maintained = (machine["spec"].get("maintenance") or {}).get("enabled", False)
    mode = (operation["spec"].get("drain") or {}).get("mode", "Auto")
    if not (status.get("disruptionBudgets") or mode == "Always" or (mode == "Auto" and is_maintained)):
        return True
    disruption = status.get("disruption") or {}
    holder = (disruption.get("holder") or {}).get("uid")
    return disruption.get("stage") == "Drained" and holder in (uid, machine["metadata"]["uid"])


def _made_from(goal: LabNodeGoal, stage: str = "") -> Raw:
    """Return the status of a Machine whose Node is created from a goal.

    Args:
        stage: of the agent's work; empty where it stays.
    """
    agent = {"image": goal.image or None} | ({"stage": stage} if stage else {})
    return {"configuration": goal.configuration, "agent": agent}


def _number(kubernetes: Raw) -> str:
    """Return a version with its three numbers, without a v; empty for none."""
    bare = str(kubernetes.get("version") or "").removeprefix("v")
    return f"{bare}.0" if bare.count(".") == 1 else bare


def _decides(item: Raw) -> Any:
    """Return the parts of an object that a pass depends on."""
    meta, status = item["metadata"], item.get("status", {})
    parts = ("activeOperation", "configuration", "disruption", "disruptionBudgets", "nodeUpdate", "phase", "conditions")
    known = [status.get(part) for part in parts] if item.get("kind") != "Node" else []
    return meta["uid"], meta.get("annotations"), item.get("spec"), known


def _started(machine: Raw, uid: str) -> Raw:
    """Return the change of the disruption with which its holder starts."""
    disruption = machine["status"].get("disruption") or {}
    is_its = (disruption.get("holder") or {}).get("uid") == uid and disruption.get("stage") == "Drained"
    return {"disruption": {"stage": "Working", "since": _now()}} if is_its else {}


def _phase(phase: str) -> Raw:
    reason = SUCCEEDED if phase == "Complete" else phase
    completed = {
        "type": "Completed",
        "status": "True" if phase == "Complete" else "False",
        "reason": reason,
        "message": phase,
        "lastTransitionTime": _now(),
    }
    return {"phase": phase, "reason": reason, "conditions": [completed]}


def _is_over(operation: Raw) -> bool:
    return operation.get("status", {}).get("phase") in ("Complete", "Failed")


def _is_paused(machine: Raw) -> bool:
    return ANNOTATION_PAUSED in machine["metadata"].get("annotations", {})


def _is_bad(version: Raw) -> bool:
    conditions = version.get("status", {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Bad", "True") for one in conditions)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
