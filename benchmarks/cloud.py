"""Host operations on Azure: total time beside the bound of its rate limits, and the effect of one slow subscription.

A simulated Azure with five subscriptions, the API server, the supervisor and machine-ops-controller each run in their
own process. One controller, started by the deployed command, serves all five, which share a site and a login. The
benchmark creates all operations at once: of ten, four HostReboot, two HostPowerOff, two HostPowerOn, two HostReplace.
Each of the two rounds starts a new cloud:

1. all subscriptions are healthy;
2. the last one answers each request after 30 s, and has as many operations as the others.

The bound follows from the requests of the first round that the cloud accepted. Those of one kind (reads, writes,
deletes) in one subscription take at least (count - burst) / rate seconds, by Azure's published figures. A subscription
takes as long as its slowest kind, and the bound is that of the slowest subscription. The bound leaves out the cloud's
own time for a change, such as the restart of the last machine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
import time
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import children
from benchmarks.cloud_lab import MIX, STALL_S, TIMES, Counted, LabMachine, Ready
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from benchmarks.progress import Progress, create_operation, phases_written, watched
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli import child
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.machineops.settings import COMPONENT
from unbounded_lab.cloud.azure.model import USUAL_TIMES, AzureTimes
from unbounded_lab.cloud.azure.resource_manager import SUBSCRIPTION_LIMITS

SITE: Final = "cloud"
PROVIDER: Final = "AzureVM"
SUBSCRIPTIONS: Final = 5
AT_ONCE: Final = 64  # objects that are created at the same time
READY_S: Final = 60.0
LOG_LEVEL: Final = "warning"
AGENT_URL: Final = "https://releases.example.com/unbounded-agent-linux-amd64.tar.gz"  # never fetched
POLL: Final = "Operations.Get"
_COUNTED: Final = re.compile(r"^unbounded_api_requests_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
WRITES: Final = ("create", "patch", "delete")
NOT_COUNTED: Final = ("events", "leases")

AMOUNT: Final = "{operations:g} operations in each of {subscriptions:g} subscriptions, {concurrent:g} at a time"
LIMITS: Final[Mapping[str, Limit]] = {
    "wall_vs_rate_limit": Limit("time for all operations, over the bound of the rate limits for their calls", aim=1.15),
    "p99_with_stalled_subscription": Limit(
        "others' p99 while one subscription answers after 30 s, over that without", most=1.1
    ),
    "restart_calls_beside_polls": Limit("calls of Azure for a restart, polls apart", most=2.0),
    "restart_polls": Limit("polls for a restart"),
    "provider_memory_mib": Limit("memory of the controller's process, MiB"),
    "controller_cpu_ms_per_operation": Limit("CPU of the controller for an operation, ms"),
    "api_server_cpu_ms_per_operation": Limit("CPU of the API server for an operation, ms"),
    "cloud_cpu_ms_per_operation": Limit("CPU of the simulated Azure for an operation, ms"),
    "api_writes_per_operation": Limit("API writes of the controller for an operation, Events and Leases apart"),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one round.

    Args:
        operations: in each subscription.
        concurrent: operations that the controller works on at once; those that wait for the cloud do not count.
        times: the duration of changes in the cloud.
    """

    operations: int
    concurrent: int
    within_s: float
    times: AzureTimes = TIMES


FULL: Final = Size(operations=500, concurrent=40, within_s=600.0)
QUICK: Final = Size(operations=5, concurrent=10, within_s=150.0, times=USUAL_TIMES)


@dataclass(frozen=True)
class Round:
    """Times and resource use of one round; times in seconds.

    Args:
        whole_s: from creation to Complete, by subscription.
        cpu_s: of each process.
    """

    wall_s: float
    whole_s: Sequence[Sequence[float]]
    counted: Counted
    cpu_s: Mapping[str, float]
    memory_mib: float
    api_writes: int

    def of(self, subscriptions: int) -> list[float]:
        """Return the times of the operations of the first subscriptions."""
        return list(itertools.chain(*self.whole_s[:subscriptions]))


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    plain = await cloud_round(size, stalled=False)
    stalled = await cloud_round(size, stalled=True)
    return measured(size, plain, stalled)


def measured(size: Size, plain: Round, stalled: Round) -> Measured:
    count, bound_s = size.operations * SUBSCRIPTIONS, max(map(allowed_s, plain.counted.passed))
    p99_s, stalled_p99_s = (percentile(each.of(SUBSCRIPTIONS - 1), 0.99) for each in (plain, stalled))
    calls = {kind: sum(plain.counted.calls[kind].values()) / _count(kind, size) for kind in sorted(set(MIX))}
    polls = {kind: plain.counted.calls[kind].get(POLL, 0) / _count(kind, size) for kind in calls}
    passed = plain.counted.passed
    return Measured(
        figures={
            "operations": size.operations,
            "subscriptions": SUBSCRIPTIONS,
            "concurrent": size.concurrent,
            "wall_s": plain.wall_s,
            "rate_limits_allow_s": bound_s,
            "p50_s": percentile(plain.of(SUBSCRIPTIONS), 0.5),
            "p99_s": p99_s,
            "p99_with_stalled_subscription_s": stalled_p99_s,
            **{f"calls_per_{_words(kind)}": value for kind, value in calls.items()},
            "restart_calls_beside_polls": calls["HostReboot"] - polls["HostReboot"],
            "restart_polls": polls["HostReboot"],
            **{f"{kind}_per_operation": sum(one[kind] for one in passed) / count for kind in SUBSCRIPTION_LIMITS},
            "refused_as_too_many": plain.counted.refused,
            "provider_memory_mib": plain.memory_mib,
            "provider_memory_with_stalled_subscription_mib": stalled.memory_mib,
            **{f"{name}_cpu_ms_per_operation": 1000 * used / count for name, used in plain.cpu_s.items()},
            "api_writes_per_operation": plain.api_writes / count,
            **{f"azure_takes_{name}": value for name, value in asdict(size.times).items()},
            "azure_stalls_s": STALL_S,
        },
        ratios={
            "wall_vs_rate_limit": plain.wall_s / bound_s if bound_s else 0.0,
            "p99_with_stalled_subscription": stalled_p99_s / p99_s,
        },
    )


def allowed_s(passed: Mapping[str, int]) -> float:
    """Return the least time in which a subscription's limits accept these requests."""
    needed = ((passed.get(kind, 0) - limit.burst) / limit.per_s for kind, limit in SUBSCRIPTION_LIMITS.items())
    return max(0.0, *needed)


def _count(kind: str, size: Size) -> int:
    """Count the operations of a kind in a round."""
    one = [MIX[number % len(MIX)] for number in range(size.operations)]
    return SUBSCRIPTIONS * one.count(kind)


def _words(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.removeprefix("Host")).lower()


async def cloud_round(size: Size, *, stalled: bool) -> Round:
    """Carry out all operations; do not wait for those of a stalled subscription."""
    with TemporaryDirectory(prefix="unbounded-benchmark-") as name:
        folder = Path(name)
        flags = {"--stalled": stalled, "--swift": size.times is USUAL_TIMES}
        chosen = (flag for flag, given in flags.items() if given)
        cloud = (str(SUBSCRIPTIONS), str(size.operations), str(folder / "ca.pem"), *chosen)
        async with (
            children.start("benchmarks.cloud_lab", *cloud) as lab,
            children.start("benchmarks.server", str(folder / "data")) as server,
            HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api,
        ):
            azure = msgspec.convert(lab.ready, Ready)
            kubeconfig = await prepared(api, azure, folder)
            options = ("--kubeconfig", server.ready["kubeconfig"], "--site", SITE)
            async with (
                children.start("benchmarks.controllers", *options) as controllers,
                _controller(kubeconfig, azure, size) as controller,
            ):
                pids = {
                    "controller": controller.pid,
                    "api_server": server.process.pid,
                    "steward": controllers.process.pid,
                    "cloud": lab.process.pid,
                }
                return await _carried_out(api, azure, lab, controller, size, pids, stalled=stalled)


async def _carried_out(
    api: HttpApi,
    azure: Ready,
    lab: children.Child,
    controller: Controller,
    size: Size,
    pids: Mapping[str, int],
    *,
    stalled: bool,
) -> Round:
    progress, well = Progress(), SUBSCRIPTIONS - stalled
    waited_for = [one for one in azure.machines if one.subscription < well]
    await phases_written(api)
    before_s, before = _cpu_s(pids), await controller.api_writes()
    began = time.monotonic()
    async with asyncio.timeout(size.within_s), watched(api, progress):
        await _each(azure.machines, lambda one: create_operation(api, progress, one.name, one.kind, one.name))
        await progress.all_complete(one.name for one in waited_for)
    wall_s = max(progress.complete[one.name] for one in waited_for) - began
    counted = await lab.request(b"counts?", Counted)
    used_s = {name: after_s - before_s[name] for name, after_s in _cpu_s(pids).items()}
    print_progress(f"{len(waited_for)} operations in {wall_s:.1f} s; {counted}")
    return Round(
        wall_s=wall_s,
        whole_s=[
            [
                progress.complete[one.name] - progress.created[one.name]
                for one in waited_for
                if one.subscription == place
            ]
            for place in range(well)
        ],
        counted=counted,
        cpu_s=used_s,
        memory_mib=_peak_memory_mib(controller.pid),
        api_writes=await controller.api_writes() - before,
    )


def _cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    return {name: children.cpu_s(pid) for name, pid in pids.items()}


async def prepared(api: HttpApi, azure: Ready, folder: Path) -> Path:
    """Create the Machines, the credential and the join data of new hosts; return the controller's kubeconfig."""
    await publish_cluster_info(api, api.config.server, api.config.ca or b"")
    token = site_token_manifest(SITE, now=datetime.now(UTC), good_for=timedelta(hours=2), default=True)
    await api.create(SECRETS, token, namespace="kube-system")
    login = {"tenantID": azure.tenant, "clientID": azure.client_id, "clientSecret": azure.client_secret}
    data = {key: b64encode(value.encode()).decode() for key, value in login.items()}
    await api.create(SECRETS, {"metadata": {"name": "azure"}, "data": data}, namespace=NAMESPACE)
    auth = {"mode": "ExternalPlugin", "secretRef": {"name": "azure", "namespace": NAMESPACE}}
    spec = {"siteName": SITE, "provider": PROVIDER, "auth": auth}
    await api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "azure"}, "spec": spec})
    await _each(azure.machines, lambda one: api.create(MACHINES, _machine(one)))
    return await _kubeconfig(api, folder / "controller.kubeconfig")


def _machine(one: LabMachine) -> dict[str, Any]:
    spec = {"provider": PROVIDER, "providerID": one.provider_id, "kubernetes": {"version": "v1.34.0"}}
    return {"metadata": {"name": one.name, "labels": {LABEL_SITE: SITE}}, "spec": spec}


async def _each(machines: Sequence[LabMachine], do: Callable[[LabMachine], Awaitable[object]]) -> None:
    limiter = asyncio.Semaphore(AT_ONCE)

    async def one(machine: LabMachine) -> None:
        async with limiter:
            await do(machine)

    await asyncio.gather(*map(one, machines))


async def _kubeconfig(api: HttpApi, path: Path) -> Path:
    """Write a kubeconfig with a token of the controller's service account."""
    token = (await api.token(COMPONENT, namespace=NAMESPACE)).token
    authority = b64encode(api.config.ca or b"").decode()
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": api.config.server, "certificate-authority-data": authority}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    await asyncio.to_thread(path.write_bytes, msgspec.json.encode(body))
    return path


@dataclass(frozen=True)
class Controller:
    """The measured process, by its id and the URL of its metrics."""

    pid: int
    url: str

    async def api_writes(self) -> int:
        text = await _get(f"{self.url}/metrics")
        counted = ((dict(_LABEL.findall(one[1])), float(one[2])) for one in _COUNTED.finditer(text))
        return int(sum(n for of, n in counted if of["verb"] in WRITES and of["kind"] not in NOT_COUNTED))


@asynccontextmanager
async def _controller(kubeconfig: Path, azure: Ready, size: Size) -> AsyncIterator[Controller]:
    """Run machine-ops-controller during the block, which starts when it is ready."""
    address = f"127.0.0.1:{_free_port()}"
    command = controller_command(kubeconfig, concurrent=size.concurrent, address=address)
    variables = os.environ | environment(kubeconfig, azure)
    process = await asyncio.create_subprocess_exec(*command, env=variables, start_new_session=True)
    try:
        controller = Controller(process.pid, f"http://{address}")
        await _ready(controller, process)
        yield controller
    finally:
        await asyncio.shield(children.stop(process))


def controller_command(kubeconfig: Path, *, concurrent: int, address: str = "0") -> tuple[str, ...]:
    """Return the command of machine-ops-controller for the benchmark's site."""
    flags = {
        "--kubeconfig": str(kubeconfig),
        "--site": SITE,
        "--provider": PROVIDER,
        "--max-concurrent-reconciles": str(concurrent),
        "--cluster-dns": "10.96.0.10",
        "--agent-url": AGENT_URL,
        "--metrics-bind-address": address,
        "--health-probe-bind-address": address,
        "--log-level": LOG_LEVEL,
    }
    return child.command("unbounded.machineops.main", "controller", *itertools.chain(*flags.items()))


def environment(kubeconfig: Path, azure: Ready) -> dict[str, str]:
    """Return the environment that leads the controller to the simulated Azure."""
    return {
        "AZURE_RESOURCE_MANAGER_ENDPOINT": azure.url,
        "AZURE_AUTHORITY_HOST": azure.url,
        "SSL_CERT_FILE": str(kubeconfig.parent / "ca.pem"),
    }


async def _ready(controller: Controller, process: Process) -> None:
    """Wait until the controller's caches are in sync. Raises ChildFailed if it ends."""
    async with asyncio.timeout(READY_S):
        while process.returncode is None:
            with suppress(aiohttp.ClientError):
                await _get(f"{controller.url}/readyz")
                return
            await asyncio.sleep(0.1)
    raise children.ChildFailed(f"{COMPONENT} ended with status {process.returncode}")


async def _get(url: str) -> str:
    async with aiohttp.ClientSession(raise_for_status=True) as http, http.get(url) as answer:
        return await answer.text()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _peak_memory_mib(pid: int) -> float:
    """Return the peak of the resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    run_benchmark("cloud", run)
