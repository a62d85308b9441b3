"""The columns that `kubectl get` prints for Pods and Services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded_apiserver.columns import AGE, NAME, age
from unbounded_apiserver.resource_model import TableColumn

Object = Mapping[str, Any]


class _Summary:
    """Readiness, status and restarts of a pod, from the states of its containers."""

    def __init__(self, pod: Object) -> None:
        self._spec, self._status = pod["spec"], pod["status"]
        self._sidecars = {c["name"] for c in self._spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"}
        self.containers = len(self._spec.get("containers") or ()) + len(self._sidecars)
        self.ready = 0
        self.restarts = 0
        self.last_restart = ""
        self.reason = self._status.get("reason") or self._status.get("phase", "")
        if any(c["type"] == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in self._conditions()):
            self.reason = "SchedulingGated"
        if not self._initializing() or self._is_true("Initialized"):
            self._running()
        if "deletionTimestamp" in pod["metadata"]:
            if self._status.get("reason") == "NodeLost":
                self.reason = "Unknown"
            elif self._status.get("phase") not in {"Succeeded", "Failed"}:
                self.reason = "Terminating"

    def _conditions(self) -> Iterator[Object]:
        yield from self._status.get("conditions", ())

    def _is_true(self, condition: str) -> bool:
        return any(c["type"] == condition and c["status"] == "True" for c in self._conditions())

    def _count(self, container: Object) -> None:
        self.restarts += container["restartCount"]
        ended = container["lastState"].get("terminated", {}).get("finishedAt") or ""
        self.last_restart = max(self.last_restart, ended)

    def _initializing(self) -> bool:
        """Return whether init containers are not done; then set the reason."""
        for index, container in enumerate(self._status.get("initContainerStatuses", ())):
            self._count(container)
            state, sidecar = container["state"], container["name"] in self._sidecars
            ended, waiting = state.get("terminated"), state.get("waiting", {}).get("reason", "")
            if ended is not None and ended["exitCode"] == 0:
                continue
            if sidecar and container.get("started"):
                self.ready += container["ready"]
                continue
            if ended is not None:
                self.reason = f"Init:{_end(ended)}"
            elif waiting not in {"", "PodInitializing"}:
                self.reason = f"Init:{waiting}"
            else:
                self.reason = f"Init:{index}/{len(self._spec.get('initContainers', ()))}"
            return True
        return False

    def _running(self) -> None:
        statuses = self._status.get("initContainerStatuses", ())
        self.restarts, self.last_restart = 0, ""
        for container in (c for c in statuses if c["name"] in self._sidecars):
            self._count(container)
        running = False
        for container in reversed(self._status.get("containerStatuses", ())):
            self._count(container)
            state = container["state"]
            if state.get("waiting", {}).get("reason"):
                self.reason = state["waiting"]["reason"]
            elif "terminated" in state:
                self.reason = _end(state["terminated"])
            elif container["ready"] and "running" in state:
                running = True
                self.ready += 1
        if self.reason == "Completed" and running:
            self.reason = "Running" if self._is_true("Ready") else "NotReady"


def _end(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    return f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated['exitCode']}"


def _pod_ready(pod: Object) -> str:
    summary = _Summary(pod)
    return f"{summary.ready}/{summary.containers}"


def _pod_restarts(pod: Object) -> str:
    summary = _Summary(pod)
    if summary.restarts and summary.last_restart:
        return f"{summary.restarts} ({age(summary.last_restart)} ago)"
    return str(summary.restarts)


def _pod_address(pod: Object) -> str:
    addresses = pod["status"].get("podIPs", ())
    return str(addresses[0]["ip"]) if addresses else "<none>"


def _pod_gates(pod: Object) -> str:
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", ())]
    if not gates:
        return "<none>"
    true_conditions = {c["type"] for c in pod["status"].get("conditions", ()) if c["status"] == "True"}
    return f"{sum(gate in true_conditions for gate in gates)}/{len(gates)}"


POD: Final = (
    NAME,
    TableColumn("Ready", description="Number of its containers that are ready.", cell=_pod_ready),
    TableColumn("Status", description="State of its containers.", cell=lambda pod: _Summary(pod).reason),
    TableColumn(
        "Restarts",
        description="Number of restarts of its containers, and the time of the last one.",
        cell=_pod_restarts,
    ),
    AGE,
    TableColumn("IP", priority=1, description="The address of the pod.", cell=_pod_address),
    TableColumn(
        "Node",
        priority=1,
        description="Node that it runs on.",
        cell=lambda pod: pod["spec"].get("nodeName") or "<none>",
    ),
    TableColumn(
        "Nominated Node",
        priority=1,
        description="Node that is being freed for it.",
        cell=lambda pod: pod["status"].get("nominatedNodeName") or "<none>",
    ),
    TableColumn("Readiness Gates", priority=1, description="Number of its gates that are open.", cell=_pod_gates),
)


def _service_external(service: Object) -> str:
    spec = service["spec"]
    external = list(spec.get("externalIPs", ()))
    match spec["type"]:
        case "ClusterIP" | "NodePort":
            return ",".join(external) or "<none>"
        case "LoadBalancer":
            balanced = service["status"]["loadBalancer"].get("ingress", ())
            shown = ",".join(dict.fromkeys(i.get("ip") or i.get("hostname", "") for i in balanced))
            return ",".join([shown, *external] if shown else external) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return "<unknown>"


def _service_ports(service: Object) -> str:
    def show(port: Object) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port['port']}{node}/{port['protocol']}"

    return ",".join(show(port) for port in service["spec"].get("ports", ())) or "<none>"


def _service_selector(service: Object) -> str:
    selector = service["spec"].get("selector", {})
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>"


SERVICE: Final = (
    NAME,
    TableColumn("Type", description="Kind of access.", cell=lambda service: service["spec"]["type"]),
    TableColumn(
        "Cluster-IP",
        description="Its address in the cluster.",
        cell=lambda service: (service["spec"].get("clusterIPs") or ["<none>"])[0],
    ),
    TableColumn("External-IP", description="Its addresses outside.", cell=_service_external),
    TableColumn("Port(s)", description="Its ports.", cell=_service_ports),
    AGE,
    TableColumn("Selector", priority=1, description="The pods behind it.", cell=_service_selector),
)
