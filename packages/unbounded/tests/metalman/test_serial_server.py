"""Serial consoles from end to end: the command on a terminal, an API server with the deployed rights, metalman with its
own account, and lab BMCs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.metalman.support.serial import LEASES, LIMIT_S, OURS, PROMPT, RBAC, SerialWorld, serial_world
from tests.support.waiting import eventually
from unbounded.api.core import LEASES as CORE_LEASES
from unbounded.api.names import NAMESPACE
from unbounded.kube.api import Forbidden
from unbounded.metalman.serial_server import SerialLimits
from unbounded_lab.bmc.faults import BmcFaults

pytestmark = pytest.mark.slow

USER_RULES: Final = [
    {"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "verbs": ["get"]},
    {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
]
CONSOLE_RULE: Final = {
    "apiGroups": ["unbounded-cloud.io"],
    "resources": ["machines"],
    "resourceNames": ["lab-01"],
    "verbs": ["serial"],
}

Made = Callable[..., contextlib.AbstractAsyncContextManager[SerialWorld]]


@pytest.fixture
def world(tmp_path: Path) -> Made:
    def made(faults: BmcFaults | None = None) -> contextlib.AbstractAsyncContextManager[SerialWorld]:
        return serial_world(tmp_path, faults or BmcFaults(console="both"))

    return made


@pytest.mark.parametrize("way", ["websocket", "ssh"])
async def test_a_terminal_is_connected_to_the_console_until_the_user_leaves(world: Made, way: Any) -> None:
    async with world(BmcFaults(console=way)) as here, here.metalman():
        await here.published()
        terminal = here.serial()
        await terminal.prints(PROMPT)
        terminal.type("ro\x03ot\r")
        await terminal.prints(PROMPT, times=2)
        terminal.type("~~~x\r~?")
        await terminal.prints("~. leaves the console")
        terminal.type("~.")
        status, messages = await terminal.ended()
        assert status == 0, messages
        assert "serial console of lab-01 over" in messages
        assert here.bmc.consoles.received == {"1": b"ro\x03ot\r~~x\r"}
        events = (await here.admin.get("/api/v1/namespaces/default/events"))["items"]
        assert [event["message"] for event in events if event["reason"] == "SerialConsoleOpened"] != []
        machine = await here.admin.get(f"{OURS}/machines/lab-01")
        assert ("sshHostKey" in machine["status"]["redfish"]) is (way == "ssh")
        assert here.bmc.password not in terminal.out.getvalue() + messages


async def test_the_verb_serial_decides_and_names_the_user(world: Made) -> None:
    async with world() as here, here.metalman():
        await here.published()
        await here.grant("alice", *USER_RULES, CONSOLE_RULE)
        await here.grant("bob", *USER_RULES)
        status, messages = await here.serial("--as", "bob").ended()
        assert status == 1
        assert 'error: User "bob" cannot serial resource "machines" in API group "unbounded-cloud.io"' in messages
        assert here.bmc.consoles.opened == []
        alice = here.serial("--as", "alice")
        await alice.prints(PROMPT)
        status, messages = await here.serial().ended()
        assert status == 1
        assert re.search(r"error: alice has the serial console of lab-01 since \S+Z", messages)
        alice.type("\r~.")
        assert (await alice.ended())[0] == 0


@pytest.mark.parametrize("name", ["", "../../v1/x", "x/status", "x?y", "x#y", "%2e%2e/v1/x", "x" * 254])
async def test_a_request_is_looked_up_by_its_name_alone(world: Made, name: str) -> None:
    """Before anybody is known, no text of a client makes metalman read another object."""
    async with world() as here, here.metalman(SerialLimits()):
        url = f"{await here.published()}/serial/lab-01"
        async with aiohttp.ClientSession() as http, http.ws_connect(url, ssl=False) as connection:
            assert "nonce" in await connection.receive_json()
            await connection.send_json({"request": name, "signature": ""})
            end = {"end": "the name of the certificate request is malformed", "isFailure": True}
            assert await connection.receive_json() == end


async def test_a_read_only_session_sends_nothing(world: Made) -> None:
    async with world() as here, here.metalman():
        await here.published()
        terminal = here.serial("--read-only")
        await terminal.prints("read-only: it ignores what you type")
        await terminal.prints(PROMPT)
        terminal.type("x\r~.")
        assert (await terminal.ended())[0] == 0
        assert here.bmc.consoles.received == {}


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (BmcFaults(), "the BMC offers no serial console over a web socket or SSH for system 1"),
        (BmcFaults(console="websocket", console_sessions=0), "SessionLimitExceeded|the web socket: 503"),
        (BmcFaults(console="ssh", console_denied=True), "rejects 'admin', whose password opens the Redfish service"),
        (BmcFaults(session_service="refuses", console="both"), "rejected"),
    ],
)
async def test_a_console_that_cannot_be_opened_is_an_error_with_the_cause(
    world: Made, faults: BmcFaults, text: str
) -> None:
    async with world(faults) as here, here.metalman():
        await here.published()
        status, messages = await here.serial().ended()
        assert status == 1
        assert re.search(f"error: .*{text}", messages), messages


async def test_the_user_leaves_a_console_that_floods(world: Made) -> None:
    async with world(BmcFaults(console="websocket", console_output="flood")) as here, here.metalman():
        await here.published()
        terminal = here.serial()
        await terminal.prints("0123456789abcdef")
        terminal.type("~.")
        assert (await terminal.ended())[0] == 0
        await eventually(lambda: closed(here), within_s=LIMIT_S)


async def closed(here: SerialWorld) -> bool:
    return here.bmc.consoles.open.total() == 0


async def test_the_end_of_a_session_is_told(world: Made) -> None:
    async with world(BmcFaults(console="ssh", console_drops_after=1)) as here, here.metalman():
        await here.published()
        terminal = here.serial()
        await terminal.prints(PROMPT)
        terminal.type("x")
        status, messages = await terminal.ended()
        assert (status, messages.splitlines()[-1]) == (0, "serial console of lab-01: the BMC closed the console")


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        (SerialLimits(idle_s=0.5), "idle for 0.5 s"),
        (SerialLimits(session_s=0.5), "the session took 0.5 s"),
    ],
)
async def test_limits_end_a_session(world: Made, limits: SerialLimits, end: str) -> None:
    async with world() as here, here.metalman(limits):
        await here.published()
        status, messages = await here.serial().ended()
        assert (status, messages.splitlines()[-1]) == (0, f"serial console of lab-01: {end}")


async def test_a_withdrawn_right_ends_a_session(world: Made) -> None:
    async with world() as here, here.metalman(SerialLimits(review_s=0.2)):
        await here.published()
        await here.grant("alice", *USER_RULES, CONSOLE_RULE)
        alice = here.serial("--as", "alice")
        await alice.prints(PROMPT)
        await here.admin.merge(f"{RBAC}/clusterroles/console-of-alice", {"rules": USER_RULES})
        status, messages = await alice.ended()
        assert status == 0
        assert 'the right was withdrawn: User "alice" cannot serial resource' in messages


async def test_a_restart_of_metalman_ends_sessions_and_serves_new_ones(world: Made) -> None:
    async with world() as here:
        async with here.metalman():
            first = await here.published()
            terminal = here.serial()
            await terminal.prints(PROMPT)
        status, messages = await terminal.ended()
        assert (status, messages.splitlines()[-1]) == (
            1, "serial console of lab-01: the connection to metalman was lost"
        )  # fmt: skip
        status, messages = await here.serial().ended()
        assert status == 1
        assert f"error: cannot reach metalman at {first} on host" in messages
        await eventually(lambda: closed(here), within_s=LIMIT_S)
        async with here.metalman():
            await here.published(other_than=first)
            terminal = here.serial()
            await terminal.prints(PROMPT)
            terminal.type("~.")
            assert (await terminal.ended())[0] == 0


FORWARD: Final = """#!/bin/sh
echo "$@" >> {folder}/arguments
for port; do :; done
echo "Forwarding from 127.0.0.1:${{port#:}} -> ${{port#:}}"
exec sleep 1000
"""


async def test_a_metalman_in_a_pod_is_reached_by_port_forward(
    world: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "kubectl"
    script.parent.mkdir()
    script.write_text(FORWARD.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    async with world() as here, here.metalman(SerialLimits(), POD_NAME="metalman-lab-0"):
        port = (await here.published()).rpartition(":")[2]
        terminal = here.serial()
        await terminal.prints(PROMPT)
        terminal.type("~.")
        assert (await terminal.ended())[0] == 0
    words = (tmp_path / "arguments").read_text().split()
    assert words[-6:] == ["--namespace", "unbounded-kube", "--address", "127.0.0.1", "pod/metalman-lab-0", f":{port}"]


async def test_without_metalman_the_error_names_the_lease(world: Made) -> None:
    async with world() as here:
        status, messages = await here.serial().ended()
        assert status == 1
        assert "no metalman serves serial consoles for site 'lab': Lease serial-console-lab" in messages


@pytest.mark.parametrize(
    ("url", "certificate"),
    [("https://127.0.0.1:99999", "0" * 64), ("https://127.0.0.1", "0" * 64), ("https://127.0.0.1:1", "no digest")],
)
async def test_a_malformed_address_of_the_server_is_an_error(world: Made, url: str, certificate: str) -> None:
    async with world() as here:
        notes = {
            "unbounded-cloud.io/serial-console-url": url,
            "unbounded-cloud.io/serial-console-certificate": certificate,
        }
        await here.admin.create(LEASES, {"metadata": {"name": "serial-console-lab", "annotations": notes}, "spec": {}})
        status, messages = await here.serial().ended()
        assert status == 1
        assert "error: Lease serial-console-lab in unbounded-kube names no server of serial consoles" in messages


async def test_another_controller_cannot_lead_users_to_another_server(world: Made) -> None:
    notes = {"unbounded-cloud.io/serial-console-url": "https://192.0.2.1:1"}
    lease = {"metadata": {"name": "serial-console", "annotations": notes}, "spec": {}}
    async with world() as here, here.account("machine-ops-controller") as other:
        with pytest.raises(Forbidden, match="only who may serve-serial"):
            await other.create(CORE_LEASES, lease, namespace=NAMESPACE)
        async with here.metalman():
            url = await here.published()
            with pytest.raises(Forbidden, match="only who may serve-serial"):
                await other.patch(CORE_LEASES, "serial-console", {"metadata": lease["metadata"]}, namespace=NAMESPACE)
            assert await here.published() == url
        await other.create(CORE_LEASES, {"metadata": {"name": "another"}, "spec": {}}, namespace=NAMESPACE)
