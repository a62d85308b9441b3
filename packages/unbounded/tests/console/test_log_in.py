"""The console of a cluster in Chromium: each user logs in with a token, and sees what that may read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
from playwright.async_api import Browser

from tests.console.browser import CHROMIUM, Tab, log_in, tab
from tests.console.running import PLUGIN, cluster_console
from tests.console.served import (
    ROLES,
    bind,
    create_namespace,
    create_reader,
    created,
    host_body,
    kubeconfig_of,
    machine_body,
    set_status,
    temporary_status,
    unbind,
)
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.names import GROUP_HOST
from unbounded.api.machine import MACHINES
from unbounded.api.names import GROUP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.kube.client import HttpApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
MACHINE_CANARY = "canary-of-machines"
OPERATION_CANARY = "canary-of-operations"
HOST_CANARY = "canary-of-hosts"
READ = ["get", "list", "watch"]
READ_MACHINES = {"apiGroups": [GROUP], "resources": ["machines"], "verbs": READ}
READ_HOSTS = {"apiGroups": [GROUP_HOST], "resources": ["baremetalhosts"], "verbs": READ}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(kubeconfig: Path, api: HttpApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with cluster_console(kubeconfig, tmp_path_factory.mktemp("console"), "--plain-addr", "127.0.0.1:0") as found:
        yield f"http://{found}"


def record(found: Tab) -> list[str]:
    """Collect all that the server sends over websockets from now on."""
    received: list[str] = []
    found.page.on("websocket", lambda one: one.on("framereceived", lambda frame: received.append(str(frame))))
    return received


async def test_a_token_opens_a_session_until_the_user_logs_out(served: str, browser: Browser, api: HttpApi) -> None:
    token = await create_reader(api, "visitor", "machines", "machineoperations")
    async with tab(browser, served) as found:
        await log_in(found, "no token at all!")
        await found.shows("This is no token")
        await log_in(found, f"{token[:-4]}AAAA")
        await found.shows("The API server does not accept this token.")
        assert await found.page.context.cookies() == []
        await log_in(found, token)
        await found.shows("120 Machines")
        await found.shows("system:serviceaccount:default:visitor")
        assert token not in await found.page.content()
        assert token not in str(await found.page.context.cookies())
        await found.page.get_by_role("button", name="Log out").click()
        await found.shows("Token of the API server")
        await found.page.go_back()
        await found.shows("Token of the API server")
        await found.lacks("m-001")
        found.errors.clear()  # Chromium reports the status 401 of the log-in


async def test_a_user_whom_the_server_does_not_name_reads_why(served: str, browser: Browser, api: HttpApi) -> None:
    """As before an API server that does not serve SelfSubjectReviews."""
    token = await create_reader(api, "nameless", "machines", "machineoperations")
    rules = (await api.get(ROLES, "system:basic-user"))["rules"]
    await api.patch(ROLES, "system:basic-user", {"rules": []})
    try:
        async with tab(browser, served) as found:
            await log_in(found, token)
            await found.shows("refuses to name this user: selfsubjectreviews.authentication.k8s.io")
            found.errors.clear()  # Chromium reports the status 401 of the log-in
    finally:
        await api.patch(ROLES, "system:basic-user", {"rules": rules})


async def test_the_log_in_is_for_everybody(served: str, browser: Browser) -> None:
    async with tab(browser, served) as found:
        for text in ("Token of the API server", "This is no token"):
            await found.shows(text)
            assert await found.findings_on_all_screens() == []
            assert await found.keyboard_findings() == []
            await log_in(found, "no token at all!")
        await found.shows("This is no token")
        found.errors.clear()  # Chromium reports the status 401 of the log-in


async def test_a_log_in_leads_to_the_page_that_was_asked_for(served: str, browser: Browser, api: HttpApi) -> None:
    token = await create_reader(api, "linked", "machines", "machineoperations")
    async with tab(browser, f"{served}/machine/m-003?x=%22%3E1&y=2") as found:
        await log_in(found, "no token at all!")
        await found.shows("This is no token")
        await log_in(found, token)
        await found.shows("m-003")
        assert found.page.url == f"{served}/machine/m-003?x=%22%3E1&y=2"
        await found.page.get_by_role("button", name="Log out").click()
        await found.shows("Token of the API server")
        await found.page.locator("input[name=target]").evaluate("field => { field.value = '//example.com/' }")
        await log_in(found, token)
        await found.shows("120 Machines")
        assert found.page.url == f"{served}/"
        found.errors.clear()  # Chromium reports the status 401 of the log-in


@asynccontextmanager
async def canaries(api: HttpApi) -> AsyncIterator[None]:
    """A Machine, an operation and a host, each with a name and a message that are nowhere else."""
    await install_container_cloud(api)
    await create_namespace(api, HOST_CANARY)
    spec = {"machineRef": MACHINE_CANARY[:-1] + "x", "operationKind": "HostReboot"}
    operation = {"metadata": {"name": OPERATION_CANARY}, "spec": spec}
    waits = {"phase": "Pending", "message": "the operation sings"}
    error = {"operationalStatus": "error", "errorMessage": "the host sings"}
    async with (
        created(api, MACHINES, machine_body(MACHINE_CANARY, "rack")),
        created(api, MACHINE_OPERATIONS, operation, status=waits),
        created(api, BARE_METAL_HOSTS, host_body(HOST_CANARY), namespace=HOST_CANARY, status=error),
    ):
        yield


async def test_two_users_side_by_side_see_what_each_may_read(served: str, browser: Browser, api: HttpApi) -> None:
    """A canary of each kind, which one of the two may not read: neither by a page nor by any message."""
    machines = await create_reader(api, "machines-only", "machines")
    operations = await create_reader(api, "operations-only", "machineoperations")
    await api.patch(ROLES, "machines-only", {"rules": [READ_MACHINES, READ_HOSTS]})
    async with canaries(api), tab(browser, served) as first, tab(browser, served) as second:
        to_first, to_second = record(first), record(second)
        await log_in(first, machines)
        await log_in(second, operations)
        await first.shows("121 Machines")
        await second.shows("Machine: you may not read these objects")
        for path in ("/", f"/machine/{MACHINE_CANARY}", f"/operation/{OPERATION_CANARY}", "/rollouts", "/site/rack"):
            for one in (first, second):
                await one.visit(path)
                await one.page.locator("h1").first.wait_for()
        await second.visit(f"/operation/{OPERATION_CANARY}")
        await second.shows("the operation sings")
        host = f"{HOST_CANARY}/{HOST_CANARY}"
        for path in ("/hosts", f"/host/{host}"):
            await first.visit(path)
            await first.shows("the host sings")
            await second.visit(path)
            await second.shows("BareMetalHost: you may not read these objects")
        for one in (first, second):
            await one.visit(f"/cluster/{host}")
            await one.shows("Cluster: you may not read these objects")
        await first.visit("/?text=canary")
        await first.shows(MACHINE_CANARY)
        await second.visit("/?text=canary")
        await second.shows("you may not read")
        await set_status(api, MACHINE_CANARY, phase="Failed", message="the canary sings")
        await first.shows("the canary sings")
        assert "canary sings" in "".join(to_first)  # what is sent is recorded
        assert "canary sings" not in "".join(to_second)
        for sent, readable, hidden in ((to_first, "host", "operation"), (to_second, "operation", "host")):
            assert f"the {readable} sings" in "".join(sent)
            assert f"the {hidden} sings" not in "".join(sent)
        assert MACHINE_CANARY not in "".join(to_second)
        assert MACHINE_CANARY not in await second.page.content()
        for one in (first, second):
            one.errors.clear()  # Chromium reports the status 401 of the log-in


async def test_rights_in_one_namespace_show_its_hosts_as_on_the_command_line(
    served: str, browser: Browser, api: HttpApi, kubeconfig: Path, tmp_path: Path
) -> None:
    token = await create_reader(api, "member")
    await api.patch(ROLES, "member", {"rules": [READ_HOSTS]})
    await unbind(api, "member")
    own = kubeconfig_of(kubeconfig, token, tmp_path / "kubeconfig")
    async with canaries(api), tab(browser, f"{served}/hosts") as found:
        await bind(api, "member", namespace=HOST_CANARY)
        await log_in(found, token)
        await found.shows("BareMetalHost: you may not read these objects")
        await found.visit(f"/host/{HOST_CANARY}/{HOST_CANARY}")
        await found.shows("the host sings")
        for words in ("host", "list"), ("why", f"bmh/{HOST_CANARY}"):
            ran = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, *PLUGIN, *words, "-n", HOST_CANARY, "--kubeconfig", str(own)],
                capture_output=True,
                text=True,
                check=True,
            )
            assert HOST_CANARY in ran.stdout
        found.errors.clear()  # Chromium reports the status 401 of the log-in


async def test_the_console_is_served_with_tls(kubeconfig: Path, browser: Browser, api: HttpApi, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    token = await create_reader(api, "over-tls", "machines", "machineoperations")
    flags = (
        "--allow-operations",
        "--tls-addr",
        "127.0.0.1:0",
        "--tls-cert-file",
        str(certificate),
        "--tls-private-key-file",
        str(key),
    )
    async with (
        cluster_console(kubeconfig, tmp_path, *flags) as address,
        tab(browser, f"https://{address}", ignore_https_errors=True) as found,
    ):
        await log_in(found, token)
        await found.shows("m-001")  # the websocket works, too
        async with temporary_status(api, "m-001", phase="Failed", message="seen over TLS"):
            await found.shows("seen over TLS")
        await found.visit("/machine/m-001")
        await found.page.get_by_role("button", name="Drain").wait_for()  # as --allow-operations has it
        assert [one.get("secure") for one in await found.page.context.cookies()] == [True]
        found.errors.clear()  # Chromium reports the status 401 of the log-in
