"""Rows of the plan of a rolling update: hosts, downloads ahead of their turn, and pauses after a stage. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from unbounded.api.configuration import MachineConfiguration, MachineConfigurationVersion, UpdateStatus
from unbounded.api.core import Node
from unbounded.api.machine import Machine, NodeUpdate
from unbounded.api.names import LABEL_CONFIGURATION
from unbounded.api.operation import MachineOperation
from unbounded.kube.clock import rfc3339
from unbounded.machina.node_update_plan import DOWNLOAD_S, WITHDRAWN, replace_manifest
from unbounded.machina.rolling_update_plan import UpdatePlan, UpdateView, plan_update, replaced_hosts

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
OLD, NEW = "registry.example.com/os:v1", "registry.example.com/os:v2"
DIGEST: Final = f"sha256:{'1' * 64}"
REDFISH: Final = {"url": "https://192.0.2.7", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
AT: Final = "2029-01-01T00:00:00Z"
READY: Final = {
    "type": "NetbootImageReady",
    "status": "True",
    "reason": "Pulled",
    "message": "",
    "lastTransitionTime": AT,
    "observedGeneration": 2,
}
TARGET: Final = {"machineRef": "m0", "phase": "InProgress"}
RUNNING: Final = {"phase": "InProgress", "startedAt": AT, "targets": [TARGET]}
CANARY: Final = {"name": "canary", "size": 1, "pauseAfter": True}
REST: Final = {"name": "rest", "size": "100%"}


class Plan:
    """A configuration of version 1, of which a test lets a new version or image appear; `step` writes as machina."""

    def __init__(self, count: int = 3, *, image: str | None = OLD, version: int = 1, **rolling: Any) -> None:
        self.now = NOW
        self.strategy: dict[str, Any] = {"type": "RollingUpdate", "rollingUpdate": {"host": True, **rolling}}
        self.rollout: Any = None
        self.numbers = list(range(1, version + 1))
        self.bad = set[int]()
        self.operations: dict[str, MachineOperation] = {}
        self.machines: dict[str, dict[str, Any]] = {}
        for name in (f"m{number}" for number in range(count)):
            status: dict[str, Any] = {"agent": {"version": "1.0.0"}, "configuration": _made(1), "conditions": [READY]}
            if image is not None:
                status["image"] = written(image)
            pxe = {"image": OLD, "redfish": REDFISH}
            self.machines[name] = {
                "spec": {"configurationRef": {"name": "c"}, "pxe": pxe, "kubernetes": {}},
                "status": status,
            }
        self.nodes = {name: _node(name) for name in self.machines}

    def view(self) -> UpdateView:
        spec = {"template": {}, "updateStrategy": self.strategy}
        status = {} if self.rollout is None else {"rollout": self.rollout}
        versions = [_version(number, bad=number in self.bad) for number in self.numbers]
        machines = [
            msgspec.convert(
                {"metadata": {"name": name, "uid": f"uid-{name}", "generation": 2, "labels": {"s": "lab"}}, **body},
                Machine,
            )
            for name, body in self.machines.items()
        ]
        configuration = msgspec.convert(
            {"metadata": {"name": "c"}, "spec": spec, "status": status}, MachineConfiguration
        )
        return UpdateView(configuration, versions, machines, self.now, dict(self.nodes), dict(self.operations))

    def step(self) -> UpdatePlan:
        plan = plan_update(self.view())
        if plan.pause:
            self.strategy["rollingUpdate"]["paused"] = True
        elif plan.status is not None:
            self.rollout = msgspec.to_builtins(plan.status)
        for name, update in plan.updates.items():
            self.machines[name]["status"]["nodeUpdate"] = None if update is None else msgspec.to_builtins(update)
        return plan

    @property
    def status(self) -> UpdateStatus:
        return msgspec.convert(self.rollout, UpdateStatus)

    def settle(self) -> UpdatePlan:
        """Repeat until nothing is to be written."""
        for _pass in range(20):
            before = self.rollout, msgspec.json.encode(self.machines), dict(self.strategy["rollingUpdate"])
            plan = self.step()
            if before == (self.rollout, msgspec.json.encode(self.machines), self.strategy["rollingUpdate"]):
                return plan
        raise AssertionError("the plan does not settle")

    def want(self, image: str, *names: str) -> None:
        for name in names or self.machines:
            self.machines[name]["spec"]["pxe"]["image"] = image

    def update(self, name: str) -> NodeUpdate | None:
        found = self.machines[name]["status"].get("nodeUpdate")
        return None if found is None else msgspec.convert(found, NodeUpdate)

    def phases(self) -> dict[str, str]:
        updates = {name: self.update(name) for name in self.machines}
        return {name: update.phase for name, update in updates.items() if update is not None}

    def created(self, plan: UpdatePlan, **status: Any) -> str:
        """Create the HostReplace of a plan, as machina does; return its name."""
        (name,) = plan.create
        update = self.update(name)
        assert update is not None
        machine = next(one for one in self.view().machines if one.name == name)
        self.operation(dict(replace_manifest(machine, update)), status)
        return str(update.operation)

    def operation(self, manifest: dict[str, Any], status: dict[str, Any]) -> None:
        metadata = {"uid": "op-uid", **manifest["metadata"]}
        made = msgspec.convert({**manifest, "metadata": metadata, "status": status}, MachineOperation)
        self.operations[made.name] = made

    def ends(self, name: str, phase: str = "Complete", *, reason: str | None = None, message: str = "said") -> None:
        one = self.operations[name]
        status = {"phase": phase, "reason": reason, "message": message, "completedAt": rfc3339(self.now)}
        self.operations[name] = msgspec.structs.replace(one, status=msgspec.convert(status, type(one.status)))


def written(image: str) -> dict[str, str]:
    return {"image": image, "digest": DIGEST, "boot": "b", "at": AT}


def _made(version: int) -> dict[str, Any]:
    return {"name": "c", "version": version, "versionName": f"c-v{version}"}


def _version(number: int, *, bad: bool) -> MachineConfigurationVersion:
    labels = {LABEL_CONFIGURATION: "c"}
    metadata = {"name": f"c-v{number}", "uid": f"v{number}", "generation": 1, "labels": labels}
    condition = {"type": "Bad", "status": "True", "reason": "UpdateFailed", "message": "", "lastTransitionTime": AT}
    status = {"deployed": True, "conditions": [condition] if bad else []}
    body = {"metadata": metadata, "spec": {"version": number, "template": {}}, "status": status}
    return msgspec.convert(body, MachineConfigurationVersion)


def _node(name: str, ready: str = "True", **spec: Any) -> Node:
    at = rfc3339(NOW - timedelta(days=1))
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": at}
    metadata = {"name": name, "uid": f"node-{name}", "creationTimestamp": at}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"conditions": [condition]}}, Node)


# Hosts


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ({}, True),
        ({"status": {"image": None}}, False),  # never written by metalman, or by one that did not record it
        ({"status": {"image": written(NEW)}}, False),
        ({"spec": {"pxe": {"image": f"other.example.com/os@{DIGEST}", "redfish": REDFISH}}}, False),
        ({"spec": {"pxe": {"image": NEW}}}, False),  # without a BMC, metalman cannot replace it
        ({"spec": {"pxe": None}}, False),
        ({"spec": {"provider": "AzureVM"}}, False),
    ],
    ids=["another image", "unknown", "written", "same digest", "no BMC", "no pxe", "in a cloud"],
)
def test_host_is_outdated_where_another_image_was_written(change: dict[str, Any], outdated: bool) -> None:
    plan = Plan(1)
    plan.want(NEW)
    for part, values in change.items():
        plan.machines["m0"][part] |= values
    plan.settle()
    assert replaced_hosts(plan.view()) == ({"m0": NEW} if outdated else {})
    assert plan.status.outdated == int(outdated)
    assert bool(plan.phases()) == outdated


def test_hosts_stay_as_they_are_without_host() -> None:
    plan = Plan(1, host=False)
    plan.want(NEW)
    plan.settle()
    assert (plan.status.phase, plan.phases()) == ("Complete", {})


def test_host_is_replaced_once_its_image_is_ready() -> None:
    plan = Plan(2)
    plan.want(NEW)
    plan.machines["m0"]["status"]["conditions"] = [{**READY, "observedGeneration": 1}]
    assert plan.settle().create == ()
    assert plan.phases() == {"m0": "Preparing", "m1": "Preparing"}
    assert plan.status.updating == ("m0",)
    assert f"metalman downloads {NEW}" in (plan.status.message or "")
    plan.machines["m0"]["status"]["conditions"] = [READY]
    plan.step()
    update = plan.update("m0")
    assert update is not None
    assert (update.phase, update.image) == ("Replacing", NEW)
    assert plan.settle().create == ("m0",), "created only once its name is recorded"
    assert plan.settle().create == ("m0",)


def test_replacement_is_drained_and_belongs_to_its_machine() -> None:
    plan = Plan(1)
    plan.want(NEW)
    plan.settle()
    update, machine = plan.update("m0"), plan.view().machines[0]
    assert update is not None
    manifest = replace_manifest(machine, update)
    assert manifest["metadata"]["name"] == update.operation
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-m0"
    assert manifest["spec"] == {
        "machineRef": "m0",
        "operationKind": "HostReplace",
        "drain": {"mode": "Always"},
        "ttlSecondsAfterFinished": 86400,
    }


def test_completed_replacement_completes_the_update_and_the_next_one_starts() -> None:
    plan = Plan(2)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.settle()
    update = plan.update("m0")
    assert update is not None
    assert update.operation_uid == "op-uid"
    assert plan.status.updating == ("m0",), "one at a time"
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.settle()
    assert plan.phases()["m0"] == "Replacing", "the operation proves the Node"
    plan.ends(name)
    plan.settle()
    assert plan.phases() == {"m0": "Complete", "m1": "Replacing"}
    assert (plan.status.updated, plan.status.updating) == (1, ("m1",))


def test_replacement_also_gives_the_node_a_new_version() -> None:
    plan = Plan(1, version=2)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.ends(name)
    assert (plan.settle().requeue_s or 0) > 0
    assert plan.phases() == {"m0": "Replacing"}, "its agent has not reported the version yet"
    plan.machines["m0"]["status"]["configuration"] = _made(2)
    plan.settle()
    assert (plan.status.phase, plan.phases()) == ("Complete", {"m0": "Complete"})


def test_node_whose_version_is_still_old_after_a_replacement_is_created_again() -> None:
    plan = Plan(1, version=2)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.ends(name)
    plan.now += timedelta(seconds=301)
    plan.settle()
    update = plan.update("m0")
    assert update is not None
    assert (update.phase, update.image) == ("Preparing", None)


def test_failed_replacement_halts_and_marks_no_version_bad() -> None:
    plan = Plan(3, version=2, onFailure="Rollback")
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.ends(name, "Failed", reason="DidNotNetboot", message="it never fetched its loader")
    last = plan.settle()
    assert last.bad == {}
    assert (plan.status.phase, plan.phases()) == ("Halted", {"m0": "Failed"})
    text = f"HostReplace {name}: DidNotNetboot: it never fetched its loader"
    assert [(one.machine, one.message) for one in plan.status.failed] == [("m0", text)]


@pytest.mark.parametrize("ready", ["False", "True"])
def test_failed_replacement_counts_until_its_node_is_ready(ready: str) -> None:
    plan = Plan(2)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.ends(name, "Failed", reason="NodeNotReady")
    plan.nodes["m0"] = _node("m0", ready)
    plan.settle()
    assert plan.status.phase == ("Halted" if ready == "False" else "InProgress")
    assert plan.status.updated == (0 if ready == "False" else 1)


def test_failed_replacement_is_tried_again_after_a_pause_under_another_name() -> None:
    plan = Plan(1)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.ends(name, "Failed", reason="InstallFailed")
    plan.settle()
    plan.strategy["rollingUpdate"]["paused"] = True
    plan.settle()
    assert plan.phases() == {"m0": "Pending"}
    plan.now += timedelta(seconds=60)
    plan.strategy["rollingUpdate"]["paused"] = False
    assert plan.settle().create == ("m0",)
    update = plan.update("m0")
    assert update is not None
    assert update.operation != name


@pytest.mark.parametrize(
    ("generation", "phase"),
    [
        (1, "Halted"),
        (0, "Halted"),  # as `unbounded migrate` copies it
        (3, "InProgress"),  # of an earlier template, which the user has corrected since
    ],
)
def test_failure_counts_for_the_template_that_it_was_of(generation: int, phase: str) -> None:
    plan = Plan(1, version=2)
    failed = {"version": "c-v2", "uid": "v2", "phase": "Failed", "since": AT, "message": "said", "nodeUID": "gone"}
    plan.machines["m0"]["status"]["nodeUpdate"] = failed | {"generation": generation}
    plan.settle()
    assert plan.status.phase == phase


def test_former_image_ends_a_halt() -> None:
    plan = Plan(2)
    plan.want(NEW)
    plan.ends(plan.created(plan.settle(), **RUNNING), "Failed", reason="InstallFailed")
    plan.settle()
    plan.want(OLD)
    plan.settle()
    assert (plan.status.phase, plan.status.failed) == ("Complete", ())


def test_pause_cancels_a_replacement_that_has_not_begun() -> None:
    plan = Plan(1)
    plan.want(NEW)
    name = plan.created(plan.settle())
    plan.settle()
    plan.strategy["rollingUpdate"]["paused"] = True
    last = plan.settle()
    update = plan.update("m0")
    assert update is not None
    assert (update.message, last.cancel) == (WITHDRAWN, ("m0",))
    plan.ends(name, "Failed", reason="Cancelled")
    plan.settle()
    assert (plan.phases(), plan.status.phase, plan.status.failed) == ({}, "Paused", ())


def test_pause_lets_a_replacement_in_progress_end() -> None:
    plan = Plan(1)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.settle()
    plan.strategy["rollingUpdate"]["paused"] = True
    assert plan.settle().cancel == ()
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.ends(name)
    plan.settle()
    assert (plan.phases(), plan.status.phase) == ({"m0": "Complete"}, "Complete")


@pytest.mark.parametrize(
    ("ended", "phase"),
    [(None, "Failed"), ("Complete", "Complete"), ("Failed", "Failed")],
    ids=["deleted", "complete", "failed"],
)
def test_result_of_a_deleted_operation_is_taken_from_the_machine(ended: str | None, phase: str) -> None:
    plan = Plan(1)
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.settle()
    plan.operations.clear()
    status = plan.machines["m0"]["status"]
    if ended is not None:
        status["recentOperations"] = [{"name": name, "uid": "op-uid", "kind": "HostReplace", "phase": ended}]
        status["image"] = written(NEW) if ended == "Complete" else written(OLD)
    assert plan.settle().create == (), "never a second time"
    assert plan.phases() == {"m0": phase}


def test_image_that_changes_before_the_operation_is_taken_instead() -> None:
    plan = Plan(2)
    plan.want(NEW)
    plan.machines["m0"]["status"]["conditions"] = []
    plan.settle()
    newest = "registry.example.com/os:v3"
    plan.want(newest)
    plan.settle()
    update = plan.update("m0")
    assert update is not None
    assert (update.phase, update.image, plan.status.updating) == ("Preparing", newest, ("m0",))


def test_image_that_changes_cancels_an_operation_that_has_not_begun() -> None:
    plan = Plan(1)
    plan.want(NEW)
    name = plan.created(plan.settle())
    plan.settle()
    plan.want("registry.example.com/os:v3")
    assert plan.settle().cancel == ("m0",)
    plan.ends(name, "Failed", reason="Cancelled")
    plan.now += timedelta(seconds=1)
    assert plan.settle().create == ("m0",)
    update = plan.update("m0")
    assert update is not None
    assert (update.image, update.operation != name) == ("registry.example.com/os:v3", True)


def test_operation_of_another_has_the_name() -> None:
    plan = Plan(1)
    plan.want(NEW)
    plan.settle()
    update = plan.update("m0")
    assert update is not None
    spec = {"machineRef": "other", "operationKind": "HostReplace"}
    plan.operation({"metadata": {"name": update.operation}, "spec": spec}, {})
    plan.settle()
    assert plan.status.phase == "Halted"
    assert "exists, and is no HostReplace of this Machine" in (plan.status.message or "")


def test_metalman_that_records_no_image_halts_instead_of_repeating() -> None:
    plan = Plan(2)
    plan.want(NEW)
    plan.ends(plan.created(plan.settle(), **RUNNING))
    plan.machines["m0"]["status"]["image"] = None
    plan.settle()
    assert (plan.status.phase, plan.phases()["m0"]) == ("Halted", "Failed")
    assert "an earlier metalman does not write it" in (plan.status.message or "")


def test_rollback_recreates_nodes_first_and_replaces_hosts_after_it() -> None:
    plan = Plan(2, version=2)
    plan.bad.add(2)
    plan.want(NEW)
    plan.machines["m1"]["status"]["configuration"] = _made(2)
    plan.settle()
    assert (plan.status.phase, plan.phases()) == ("RollingBack", {"m1": "Preparing"})
    plan.machines["m1"]["status"]["configuration"] = _made(1)
    plan.settle()
    assert plan.status.phase == "InProgress"
    assert plan.phases()["m0"] == "Replacing"


# Agents


def test_update_without_an_agent_is_blocked_until_it_reports() -> None:
    plan = Plan(2, version=2)
    for name in plan.machines:
        del plan.machines[name]["status"]["agent"]
    plan.settle()
    assert (plan.phases(), plan.status.updating) == ({}, ())
    wait = plan.status.waiting
    assert wait is not None
    assert (wait.reason, wait.held_by) == ("WaitingForMachine", "Machine m0")
    assert "m0 (and 1 more): no agent has reported from its host" in (plan.status.message or "")
    plan.machines["m1"]["status"]["agent"] = {"version": "1.0.0"}
    plan.settle()
    assert plan.phases() == {"m1": "Preparing"}, "others go on"


def test_host_without_an_agent_is_replaced() -> None:
    plan = Plan(1)
    del plan.machines["m0"]["status"]["agent"]
    plan.want(NEW)
    assert plan.settle().create == ("m0",)


def test_agent_that_reports_no_result_of_a_download_is_named() -> None:
    plan = Plan(1, version=2)
    assert plan.settle().requeue_s == DOWNLOAD_S
    plan.now += timedelta(seconds=DOWNLOAD_S)
    plan.settle()
    assert "its agent is silent: it has reported neither the download of c-v2 nor" in (plan.status.message or "")
    assert plan.status.waiting is not None
    assert plan.status.waiting.held_by == "agent of Machine m0"
    failed = {"version": "c-v2", "generation": 1, "message": "404"}
    plan.machines["m0"]["status"]["agent"] = {"prepared": failed}
    plan.settle()
    assert (plan.status.message or "").endswith("its agent downloads c-v2 since 2030-01-01T00:00:00Z: 404")


def test_turn_of_a_silent_agent_goes_to_the_next_machine() -> None:
    plan = Plan(2, version=2)
    plan.settle()
    assert plan.status.updating == ("m0",)
    downloaded = {"prepared": {"version": "c-v2", "generation": 1, "complete": True}}
    plan.machines["m1"]["status"]["agent"] = downloaded
    plan.now += timedelta(seconds=DOWNLOAD_S)
    plan.settle()
    assert (plan.phases(), plan.status.updating) == ({"m0": "Preparing", "m1": "Draining"}, ("m1",))
    assert "the download for m0 has not completed, so others take the turn" in (plan.status.message or "")
    plan.machines["m0"]["status"]["agent"] = downloaded
    plan.settle()
    assert plan.phases()["m0"] == "Preparing", "one at a time"
    plan.machines["m1"]["status"]["configuration"] = _made(2)
    plan.settle()
    assert (plan.phases()["m0"], plan.status.updating) == ("Draining", ("m0",))


@pytest.mark.parametrize("ahead", [None, 0])
def test_silent_agent_keeps_the_request_of_its_download(ahead: int | None) -> None:
    rolling: dict[str, Any] = {} if ahead is None else {"prepareAhead": ahead}
    plan = Plan(1, version=2, **rolling)
    plan.settle()
    requested = plan.update("m0")
    plan.now += timedelta(seconds=2 * DOWNLOAD_S)
    plan.settle()
    assert (plan.update("m0"), plan.status.updating) == (requested, ())


@pytest.mark.parametrize(
    ("reported", "text"),
    [
        ({"observedGeneration": 1}, f"its metalman is silent: it has reported neither the image {NEW} nor a failure"),
        ({"status": "False", "reason": "PullFailed", "message": "404"}, f"metalman downloads {NEW} since .*: 404"),
    ],
    ids=["silent", "failing"],
)
def test_turn_goes_to_the_next_host_if_metalman_has_no_image(reported: dict[str, Any], text: str) -> None:
    plan = Plan(2)
    plan.want(NEW)
    plan.machines["m0"]["status"]["conditions"] = [{**READY, **reported}]
    assert (plan.settle().requeue_s, plan.status.updating) == (DOWNLOAD_S, ("m0",))
    requested = plan.update("m0")
    plan.now += timedelta(seconds=DOWNLOAD_S)
    assert plan.settle().create == ("m1",)
    assert (plan.phases(), plan.status.updating) == ({"m0": "Preparing", "m1": "Replacing"}, ("m1",))
    assert "the download for m0 has not completed" in (plan.status.message or "")
    plan.machines["m1"]["status"].update({"image": written(NEW), "nodeUpdate": None})
    plan.settle()
    assert (plan.update("m0"), plan.status.updating, plan.status.phase) == (requested, (), "InProgress")
    assert re.search(text, plan.status.message or "")
    assert plan.status.waiting is not None
    assert plan.status.waiting.held_by == "metalman of Machine m0"
    plan.machines["m0"]["status"]["conditions"] = [READY]
    assert (plan.settle().create, plan.status.updating) == (("m0",), ("m0",))


def test_canary_whose_image_is_missing_keeps_later_stages_back() -> None:
    plan = Plan(2, stages=[{"name": "canary", "size": 1}, REST])
    plan.want(NEW)
    plan.machines["m0"]["status"]["conditions"] = []
    plan.settle()
    plan.now += timedelta(seconds=2 * DOWNLOAD_S)
    assert plan.settle().create == ()
    assert (plan.phases()["m0"], plan.status.stage) == ("Preparing", "canary")
    assert plan.status.updating == ()
    assert "its metalman is silent" in (plan.status.message or "")


def test_failing_download_of_an_agent_passes_the_turn_on() -> None:
    plan = Plan(2, version=2)
    plan.machines["m0"]["status"]["agent"] = {"prepared": {"version": "c-v2", "generation": 1, "message": "404"}}
    plan.machines["m1"]["status"]["agent"] = {"prepared": {"version": "c-v2", "generation": 1, "complete": True}}
    plan.settle()
    assert plan.status.updating == ("m0",)
    plan.now += timedelta(seconds=DOWNLOAD_S)
    plan.settle()
    assert plan.status.updating == ("m1",)


# Downloads ahead of their turn


@pytest.mark.parametrize(("ahead", "downloads"), [(None, 5), (0, 1), (2, 3)])
def test_next_machines_download_before_their_turn(ahead: int | None, downloads: int) -> None:
    rolling: dict[str, Any] = {} if ahead is None else {"prepareAhead": ahead}
    plan = Plan(5, version=2, **rolling)
    plan.settle()
    assert plan.phases() == {f"m{number}": "Preparing" for number in range(downloads)}
    assert plan.status.updating == ("m0",), "a download ahead takes no place"


@pytest.mark.parametrize("version", [1, 2], ids=["images", "versions"])
def test_each_stage_downloads_ahead_for_itself(version: int) -> None:
    labels = {"m0": "manager", "m1": "manager", "m2": "manager"}
    stages = [
        {"name": "managers", "machineSelector": {"matchLabels": {"role": "manager"}}, "maxConcurrent": 1},
        {"name": "workers", "size": "100%"},
    ]
    plan = Plan(7, version=version, stages=stages, prepareAhead=1)
    for name, role in labels.items():
        meta = {"name": name, "uid": f"uid-{name}", "generation": 2, "labels": {"role": role}}
        plan.machines[name]["metadata"] = meta
    if version == 1:
        plan.want(NEW)
        plan.machines["m0"]["status"]["conditions"] = []
    plan.settle()
    assert (plan.status.updating, plan.phases()) == (("m0",), dict.fromkeys(("m0", "m1", "m3"), "Preparing"))


def test_images_of_the_next_hosts_are_downloaded_and_counted_before_their_turn() -> None:
    plan = Plan(3, prepareAhead=1)
    plan.want(NEW)
    plan.machines["m0"]["status"]["conditions"] = plan.machines["m1"]["status"]["conditions"] = []
    plan.settle()
    assert (plan.status.updating, plan.status.prepared) == (("m0",), 1)
    assert plan.phases() == {"m0": "Preparing", "m1": "Preparing"}
    plan.machines["m1"]["status"]["conditions"] = [READY]
    plan.settle()
    assert (plan.status.updating, plan.status.prepared) == (("m0",), 2)
    assert plan.phases() == {"m0": "Preparing", "m1": "Preparing"}, "one at a time"
    plan.machines["m0"]["status"]["conditions"] = [READY]
    assert plan.settle().create == ("m0",)


def test_machine_that_has_downloaded_is_drained_as_its_turn_comes() -> None:
    plan = Plan(3, version=2)
    plan.settle()
    prepared = {"version": "c-v2", "generation": 1, "complete": True}
    for name in ("m1", "m2"):
        plan.machines[name]["status"]["agent"] = {"prepared": prepared}
    plan.settle()
    assert plan.status.prepared == 2
    assert plan.phases() == {"m0": "Preparing", "m1": "Preparing", "m2": "Preparing"}
    plan.machines["m0"]["status"]["configuration"] = _made(2)
    plan.settle()
    assert plan.phases() == {"m0": "Complete", "m1": "Draining", "m2": "Preparing"}


def test_nothing_is_downloaded_while_paused_or_blocked() -> None:
    plan = Plan(4, version=2)
    plan.nodes["m1"] = _node("m1", unschedulable=True)
    plan.settle()
    assert set(plan.phases()) == {"m0", "m2", "m3"}
    assert plan.status.updating == (), "a cordoned Node takes the limit of 1"
    plan.nodes["m1"] = _node("m1")
    plan.settle()
    assert len(plan.phases()) == 4
    plan.strategy["rollingUpdate"]["paused"] = True
    plan.settle()
    assert plan.phases() == {}


# Pauses after a stage


def test_update_pauses_after_a_stage_until_it_is_resumed() -> None:
    plan = Plan(3, version=2, stages=[CANARY, REST], prepareAhead=0)
    plan.settle()
    assert plan.phases() == {"m0": "Preparing"}
    plan.machines["m0"]["status"]["configuration"] = _made(2)
    plan.settle()
    assert (plan.status.phase, plan.strategy["rollingUpdate"]["paused"]) == ("Paused", True)
    assert "paused after stage canary" in (plan.status.message or "")
    assert plan.status.stages[0].paused_at == rfc3339(NOW)
    plan.strategy["rollingUpdate"]["paused"] = False
    plan.settle()
    assert (plan.status.phase, plan.phases()["m1"]) == ("InProgress", "Preparing")
    assert plan.strategy["rollingUpdate"]["paused"] is False


def test_no_stage_pauses_where_nothing_is_outdated() -> None:
    plan = Plan(3, stages=[CANARY, REST])
    plan.settle()
    assert (plan.status.phase, "paused" in plan.strategy["rollingUpdate"]) == ("Complete", False)
    assert [one.phase for one in plan.status.stages] == ["Complete", "Complete"]


def test_stage_pauses_again_for_another_image_of_the_same_version() -> None:
    plan = Plan(2, stages=[CANARY, REST])
    plan.settle()
    plan.want(NEW)
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m0"]["status"]["image"] = written(NEW)
    plan.ends(name)
    plan.settle()
    assert (plan.status.phase, plan.status.stage) == ("Paused", "canary")
    plan.strategy["rollingUpdate"]["paused"] = False
    plan.operations.clear()
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m1"]["status"]["image"] = written(NEW)
    plan.ends(name)
    plan.settle()
    assert plan.status.phase == "Complete"
    plan.want(OLD, "m0")
    plan.operations.clear()
    name = plan.created(plan.settle(), **RUNNING)
    plan.machines["m0"]["status"]["image"] = written(OLD)
    plan.ends(name)
    plan.settle()
    assert plan.status.phase == "Complete", "nothing is left to pause before"
