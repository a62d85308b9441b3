"""The API of explanations and plans of a running `unbounded up`, and of `unbounded-explain` beside it."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import trustme
import yaml
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.apiserver.support import admin_context, client_identity
from tests.cli.plugin.conftest import Cli
from tests.cli.running import Up, up
from tests.support.paths import ROOT
from unbounded.console.main import main as console_main
from unbounded.explain.results import RELEASE
from unbounded.explain_api.client import ExplainClient, ReleaseMismatch
from unbounded.explain_api.main import main as explain_main
from unbounded.explain_api.requests import PlanRequest
from unbounded.kube.api import Forbidden
from unbounded.kube.config import from_kubeconfig

pytestmark = pytest.mark.slow

CANARY: Final = "canary-6f1d"
PASSWORD: Final = "canary-password-93ab"
GROUP: Final = "unbounded-cloud.io"
RBAC: Final = "rbac.authorization.k8s.io/v1"
REDFISH: Final = {
    "url": "https://127.0.0.1:9",
    "username": "u",
    "passwordRef": {"name": "bmc", "namespace": "unbounded-kube", "key": "password"},
}
REBOOT: Final = {
    "apiVersion": f"{GROUP}/v1alpha3",
    "kind": "MachineOperation",
    "metadata": {"name": "planned"},
    "spec": {"operationKind": "HostReboot", "machineRef": "m1"},
}


CLAIM: Final = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine"}


@dataclass
class Caller:
    """Requests to an API with one set of credentials."""

    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
        async with self.session.get(self.url + path, headers=headers) as response:
            assert response.headers["Unbounded-Version"] == RELEASE
            assert response.headers.getall("Cache-Control") == ["no-store"]
            return response.status, await response.json()

    async def plan(self, body: Any) -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/plan", data=content) as response:
            return response.status, await response.json()


@asynccontextmanager
async def caller(url: str, tls: ssl.SSLContext | None, token: str = "") -> AsyncIterator[Caller]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls or False), headers=headers) as session:
        yield Caller(session, url)


def url_of(running: Up) -> str:
    return from_kubeconfig(running.data / "kubeconfig").server


def trusting(running: Up) -> ssl.SSLContext:
    """TLS that trusts the server and shows no certificate."""
    return ssl.create_default_context(cadata=(from_kubeconfig(running.data / "kubeconfig").ca or b"").decode())


def role(name: str, *rules: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)}


def bound(name: str, subject: Mapping[str, Any]) -> dict[str, Any]:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    return {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": ref,
        "subjects": [subject],
    }


def account(name: str) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "name": name, "namespace": "default"}


def user(name: str) -> dict[str, Any]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


ONE_MACHINE: Final = {"apiGroups": [GROUP], "resources": ["machines"], "resourceNames": ["m1"], "verbs": ["get"]}
ALL: Final = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}


@asynccontextmanager
async def serving(data: Path, *arguments: str) -> AsyncIterator[Up]:
    async with up(data, "--port", "0", "--health-port", "0", *arguments) as running:
        await running.says("Ctrl-C stops")
        yield running


@asynccontextmanager
async def staged(data: Path) -> AsyncIterator[Up]:
    """A Machine whose Node is not Ready, with an operation that waits for its agent.

    The Node's message and the operation's name are canaries. Account `all` reads everything, `one` the Machine alone,
    and `none` nothing; user `carol` has a certificate, and reads the Machine.
    """
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}} for name in ("all", "one", "none")
    ]
    async with serving(data) as running:
        ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": f"message of {CANARY}"}
        await running.apply(
            *accounts,
            role("all", ALL),
            bound("all", account("all")),
            role("one", ONE_MACHINE),
            bound("one", account("one")),
            role("carol", ONE_MACHINE),
            bound("carol", user("carol")),
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "bmc", "namespace": "unbounded-kube"},
                "stringData": {"password": PASSWORD},
            },
            {
                "kind": "Machine",
                "metadata": {"name": "m1", "labels": {f"{GROUP}/site": "lab"}},
                "spec": {"kubernetes": {}, "pxe": {"image": "i", "redfish": REDFISH}},
            },
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m1", "labels": {f"{GROUP}/machine": "m1"}}},
            {
                "kind": "MachineOperation",
                "metadata": {"name": CANARY},
                "spec": {"operationKind": "NodeReboot", "machineRef": "m1"},
            },
        )
        patch = json.dumps({"status": {"conditions": [ready]}})
        await running.kubectl("patch", "node", "m1", "--subresource=status", "--type=strategic", "-p", patch)
        yield running


async def token(running: Up, name: str) -> str:
    return (await running.kubectl("create", "token", name)).strip()


async def test_two_users_see_what_they_may_read_and_no_more(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as running,
        caller(url_of(running), trusting(running), await token(running, "all")) as whole,
        caller(url_of(running), trusting(running), await token(running, "one")) as part,
        caller(url_of(running), trusting(running), await token(running, "none")) as none,
        caller(url_of(running), client_identity(running.data, "carol")) as carol,
        caller(url_of(running), client_identity(running.data, "dave")) as dave,
    ):
        code, found = await whole.get("/explain/machine/m1")
        assert (code, found["complete"], found["unread"]) == (200, True, [])
        assert CANARY in json.dumps(found["links"])
        for limited in (part, carol):
            code, found = await limited.get("/explain/machine/m1")
            assert (code, found["complete"]) == (200, False)
            assert {"nodes", f"machineoperations.{GROUP}"} <= {fact["resource"] for fact in found["unread"]}
            assert {fact["code"] for fact in found["unread"]} == {"Forbidden"}
            assert CANARY not in json.dumps(found)
        answers = await asyncio.gather(*(one.get("/explain/machine/m1") for _ in range(8) for one in (whole, part)))
        assert [CANARY in json.dumps(body) for code, body in answers if code == 200].count(True) >= 1
        assert all(CANARY not in json.dumps(body) for _code, body in answers[1::2])
        assert {code for code, _body in answers} <= {200, 429}
        for limited in (part, none, carol, dave):
            code, found = await limited.get(f"/explain/operation/{CANARY}")
            assert (code, found["kind"], found["reason"]) == (403, "Status", "Forbidden")
        for limited in (none, dave):
            code, found = await limited.get("/explain/machine/m1")
            assert (code, found["reason"]) == (403, "Forbidden")
        await _no_plan_writes(running, whole, part)
        log = [json.loads(line) for line in (running.data / "audit.log").read_text().splitlines()]
        denied = [one for one in log if one["requestURI"].startswith("/api/v1/nodes/m1")]
        assert {one["user"]["username"] for one in denied} >= {"system:serviceaccount:default:one", "carol"}
        served = [one for one in log if one["userAgent"].startswith("unbounded-explain")]
        assert {one["user"]["username"] for one in served} >= {"carol", "unbounded-admin"}
        assert not [one for one in served if one.get("objectRef", {}).get("resource") == "secrets"]
        assert not [
            one for one in served if one["verb"] not in ("get", "list") and "dryRun=All" not in one["requestURI"]
        ]
        await running.stops()


async def _no_plan_writes(running: Up, whole: Caller, part: Caller) -> None:
    """Plans of an administrator and of users without the right to write; none changes an object."""
    before = await running.get("machines,machineoperations,nodes")
    async with caller(url_of(running), admin_context(running.data / "kubeconfig")) as admin:
        code, plan = await admin.plan({"creates": [REBOOT]})
        (change,) = plan["changes"]
        assert (code, change["server"]) == (200, "")
        assert [one["machine"] for one in change["operation"]["targets"]] == ["m1"]
        assert PASSWORD not in json.dumps(plan)
        assert "Secret unbounded-kube/bmc: this server does not read it" in change["operation"]["unchecked"]
        paused = {"metadata": {"annotations": {f"{GROUP}/paused": "true"}}}
        patch = {"apiVersion": f"{GROUP}/v1alpha3", "kind": "Machine", "name": "m1", "patch": paused}
        code, plan = await admin.plan({"patches": [patch]})
        assert (code, plan["changes"][0]["server"]) == (200, "")
        assert plan["hash"]
        code, found = await admin.get("/explain/machine/m1", **{"Impersonate-User": "carol"})
        assert (code, found["complete"], CANARY in json.dumps(found)) == (200, False, False)
    for limited in (whole, part):
        code, plan = await limited.plan({"creates": [REBOOT]})
        assert code == 200
        assert "cannot create resource" in plan["changes"][0]["server"]
    assert CANARY not in json.dumps(plan)
    assert f"machineoperations.{GROUP}" in {fact["resource"] for fact in plan["changes"][0]["unread"]}
    after = await running.get("machines,machineoperations,nodes")
    assert [one["metadata"]["name"] for one in before["items"]] == [one["metadata"]["name"] for one in after["items"]]
    annotations = [one["metadata"].get("annotations") for one in after["items"] if one["kind"] == "Machine"]
    assert "paused" not in str(annotations)


async def test_requests_that_are_wrong_and_the_document(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, "--container-cloud") as running,
        caller(url_of(running), trusting(running)) as anonymous,
        caller(url_of(running), trusting(running), "not-a-token") as unknown,
        caller(url_of(running), admin_context(running.data / "kubeconfig")) as admin,
    ):
        for nobody in (anonymous, unknown):
            async with nobody.session.get(f"{nobody.url}/explain/machine/m1") as response:
                assert (response.status, (await response.json())["reason"]) == (401, "Unauthorized")
        for path, code, words in (
            ("/explain/machine/m1", 404, "Machine m1 does not exist"),
            ("/explain/bmh/default/h", 404, "BareMetalHost h of metal3.io does not exist in namespace default"),
            ("/explain/bmh/h", 400, "the path of BareMetalHost is /explain/bmh/NAMESPACE/NAME"),
            ("/explain/machine/default/m1", 400, "the path of Machine is /explain/machine/NAME"),
            ("/explain/secret/s", 404, "kind 'secret' cannot be explained"),
            ("/explain/machine/..%2f..%2fsecrets", 400, "NAME: '../../secrets' is not a name"),
            ("/explain/machine/M%00", 400, "is not a name"),
            ("/explain/machine/m1?x=1", 400, "unknown query parameter 'x'"),
            ("/explain", 404, "/explain/openapi.json describes the API"),
            ("/plan", 405, "this path takes POST alone"),
        ):
            got, found = await admin.get(path)
            assert (got, found["kind"], found["code"]) == (code, "Status", code), path
            assert words in found["message"], path
        for body, code, words in (
            (b"", 400, "the body is not JSON"),
            (b"[]", 422, "Expected `object`"),
            (b"[" * 100_000, 400, "the body is not JSON"),
            ({}, 400, "give creates and patches, or objects"),
            ({"creates": "x"}, 422, "`$.creates`"),
            ({"creates": [{**REBOOT, "kind": "Secret"}]}, 400, "creates[0]: kind 'Secret'"),
            ({"creates": [{**REBOOT, "metadata": {}}]}, 400, "creates[0].metadata.name"),
            (
                {"creates": [{**REBOOT, "spec": {"operationKind": "Explode"}}]},
                422,
                "creates[0]: 'Explode' is not a valid OperationKind",
            ),
            ({"creates": [REBOOT] * 101}, 422, "length <= 100"),
            ({"objects": [{**REBOOT, **CLAIM}]}, 400, "objects[0].metadata.namespace"),
            (b'{"creates": [' + b" " * (1024 * 1024) + b"]}", 413, "more than 1048576 bytes"),
        ):
            got, found = await admin.plan(body)
            assert (got, found["kind"]) == (code, "Status"), (body[:80] if isinstance(body, bytes) else body, found)
            assert words in found["message"], found
        code, document = await admin.get("/explain/openapi.json")
        assert code == 200
        assert json.loads((ROOT / "docs/reference/explain-openapi.json").read_text()) == document
        await running.apply({"kind": "Machine", "metadata": {"name": "m1"}, "spec": {}})
        validate(document)
        for schema, answer in (
            ("Explanation", (await admin.get("/explain/machine/m1"))[1]),
            ("Plan", (await admin.plan({"creates": [REBOOT]}))[1]),
            ("Status", (await admin.get("/explain/machine/m2"))[1]),
        ):
            checked = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
            Draft202012Validator(checked).validate(answer)
        raw = json.loads(await running.kubectl("get", "--raw", "/explain/machine/m1"))
        assert raw["links"][0]["about"] == "machine/m1"
        await running.stops()


async def test_tenant_of_container_cloud_sees_its_namespace_alone(tmp_path: Path) -> None:
    """Account `tenant` reads the Machines and Clusters of example-ns; the host and its BMC are in another namespace."""
    example = ROOT / "examples" / "container-cloud" / "machine.yaml"
    (claim,) = (one for one in yaml.safe_load_all(example.read_text()) if one["kind"] == "Machine")
    bmc = "192.0.2.130"
    rules = [{"apiGroups": ["cluster.k8s.io"], "resources": ["machines", "clusters"], "verbs": ["get", "list"]}]
    binding = {**bound("tenant", account("tenant")), "kind": "RoleBinding"}
    binding["metadata"] = {"name": "tenant", "namespace": "example-ns"}
    async with serving(tmp_path, "--container-cloud") as running:
        await running.kubectl("apply", "-f", str(example))
        await running.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}},
            role("tenant", *rules),
            binding,
        )
        async with (
            caller(url_of(running), admin_context(running.data / "kubeconfig")) as admin,
            caller(url_of(running), trusting(running), await token(running, "tenant")) as tenant,
        ):
            path = "/explain/machine.cluster.k8s.io/example-ns/example-control-plane"
            code, found = await admin.get(path)
            assert (code, found["links"][0]["topic"], found["complete"]) == (200, "claim", True)
            assert (found["links"][0]["namespace"], found["links"][0]["name"]) == (
                "example-ns",
                claim["metadata"]["name"],
            )
            code, found = await tenant.get(path)
            assert (code, found["complete"], bmc in json.dumps(found)) == (200, False, False)
            assert "baremetalhosts.metal3.io" in {fact["resource"] for fact in found["unread"]}
            assert (await tenant.get("/explain/cluster.cluster.k8s.io/example-ns/example-cluster"))[0] == 200
            for hidden in (
                "/explain/bmh/default/master-0",
                "/explain/bmh/example-ns/master-0",
                "/explain/mp/default/p",
            ):
                assert (await tenant.get(hidden))[0] == 403, hidden
            code, found = await admin.get("/explain/bmh/default/master-0")
            assert (code, found["links"][0]["about"]) == (200, "bmh/master-0 -n default")
            second = {**claim, "metadata": {**claim["metadata"], "name": "second"}}
            code, plan = await admin.plan({"objects": [second]})
            assert (code, plan["changes"][0]["server"]) == (200, "")
            assert plan["changes"][0]["effects"]
            code, found = await tenant.plan({"objects": [second]})
            assert (code, bmc in json.dumps(found)) == (200, False)
            assert "cannot create resource" in found["changes"][0]["server"]
            machines = await running.get("machines.cluster.k8s.io", "-n", "example-ns")
            assert [one["metadata"]["name"] for one in machines["items"]] == [claim["metadata"]["name"]]


async def test_plugin_and_server_differ_by_one_minor_release_at_most(tmp_path: Path) -> None:
    major, minor, *_ = (int(part) for part in RELEASE.split("."))
    async with serving(tmp_path) as running:
        await running.apply({"kind": "Machine", "metadata": {"name": "m1"}, "spec": {}})
        config = from_kubeconfig(running.data / "kubeconfig")
        for near in (RELEASE, f"{major}.{minor + 1}.7"):
            client = ExplainClient(config, near)
            assert (await client.explain("machine", "m1")).links[0].about == "machine/m1"
            assert (await client.plan(PlanRequest(creates=[REBOOT])))["changes"]
        for far in (f"{major}.{minor + 2}.0", f"{major + 1}.{minor}.0"):
            with pytest.raises(ReleaseMismatch, match="they may differ by one minor release"):
                await ExplainClient(config, far).explain("machine", "m1")
        async with caller(url_of(running), admin_context(running.data / "kubeconfig")) as admin:
            code, found = await admin.get("/explain/machine/m1", **{"Unbounded-Version": f"{major}.{minor + 2}.0"})
            assert (code, "they may differ by one minor release" in found["message"]) == (400, True)
            code, found = await admin.get("/explain/machine/m1", **{"Unbounded-Version": "new"})
            assert (code, "'new' is not a release" in found["message"]) == (400, True)


async def test_plugin_prints_the_answer_of_a_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await running.apply({"kind": "Machine", "metadata": {"name": "m1"}, "spec": {}})
        cli, url = Cli(running.data / "kubeconfig"), url_of(running)
        own, served = await cli("why", "machine/m1"), await cli("why", "machine/m1", "--url", url)
        assert (served.status, served.out, served.err) == (0, own.out, own.err)
        log = (running.data / "audit.log").read_text()
        for words, status, text in (
            (("why", "machine/m2", "--url", url), 1, "error: Machine m2 does not exist"),
            (("why", "m1", "--url", url), 2, "--url: name the kind of m1, such as machine/m1"),
            (("why", "machine/m1", "--url", "http://example.com"), 2, "nor http:// of this machine"),
            (("why", "machine/m1", "--url", "https://"), 2, "is not https://HOST[:PORT]"),
            (("why", "machine/m1", "--url-ca", "f"), 2, "--url-ca: valid only with --url"),
            (("why", "machine/m1", "--url", url, "--url-ca", "/none"), 2, "--url-ca: cannot read /none"),
            (("why", "machine/m1", "--url", "https://127.0.0.1:9"), 1, "cannot reach the API server"),
        ):
            ran = await cli(*words)
            assert (ran.status, text in ran.err) == (status, True), (words, ran)
        assert "example.com" not in log


@asynccontextmanager
async def explain_process(*arguments: str) -> AsyncIterator[int]:
    """Run `unbounded-explain` while inside; yields the port of its loopback listener."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "unbounded.explain_api.main", "--plain-addr", "127.0.0.1:0", "--health-addr", "0"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield await _port(process.stderr, tls=False)
    finally:
        process.terminate()
        await process.wait()
        assert process.returncode == 0


async def _port(lines: asyncio.StreamReader, *, tls: bool) -> int:
    async with asyncio.timeout(60):
        async for line in lines:
            entry = json.loads(line)
            if "serving explanations" in json.dumps(entry) and entry["tls"] is tls:
                return int(entry["port"])
    raise AssertionError("it does not serve")


async def test_process_of_its_own_has_only_the_rights_of_its_callers(tmp_path: Path) -> None:
    async with staged(tmp_path / "up") as running:
        ca = tmp_path / "ca.crt"
        ca.write_bytes(from_kubeconfig(running.data / "kubeconfig").ca or b"")
        async with explain_process("--api-server", url_of(running), "--api-server-ca", str(ca)) as port:
            url = f"http://127.0.0.1:{port}"
            async with (
                caller(url, None, await token(running, "all")) as whole,
                caller(url, None, await token(running, "one")) as part,
                caller(url, None, "not-a-token") as unknown,
                caller(url, None) as anonymous,
            ):
                assert CANARY in json.dumps((await whole.get("/explain/machine/m1"))[1])
                code, found = await part.get("/explain/machine/m1")
                assert (code, found["complete"], CANARY in json.dumps(found)) == (200, False, False)
                for nobody in (unknown, anonymous):
                    code, found = await nobody.get("/explain/machine/m1")
                    assert (code, found["reason"]) == (401, "Unauthorized")
                    code, found = await nobody.plan({"creates": [REBOOT]})
                    assert (code, found["reason"]) == (401, "Unauthorized")
                code, found = await part.get("/explain/machine/m1", **{"Impersonate-User": "carol"})
                assert (code, 'cannot impersonate resource "users"' in found["message"]) == (403, True)
                code, plan = await whole.plan({"creates": [REBOOT]})
                assert (code, "cannot create resource" in plan["changes"][0]["server"]) == (200, True)
            config = replace(from_kubeconfig(running.data / "kubeconfig"), server=url)
            with pytest.raises(Forbidden):  # a certificate cannot be passed on
                await ExplainClient(config).explain("machine", "m1")


async def test_certificate_of_the_process_may_come_later_and_change(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(ca)
    files = (tmp_path / "tls.crt", tmp_path / "tls.key")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _QUICK, "--plain-addr", "0", "--tls-addr", "127.0.0.1:0", "--health-addr", "0"),
        *("--tls-cert-file", str(files[0]), "--tls-private-key-file", str(files[1])),
        *("--api-server", "https://127.0.0.1:9", "--api-server-ca", str(ca)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        serials: set[str] = set()
        port = 0
        for _ in range(2):
            issued = authority.issue_cert("127.0.0.1")
            issued.private_key_pem.write_to_path(files[1])
            issued.cert_chain_pems[0].write_to_path(files[0])
            port = port or await _port(process.stderr, tls=True)
            serials.add(await _other_serial(port, serials, ca))
        assert len(serials) == 2
    finally:
        process.terminate()
        await process.wait()


def test_an_address_for_tls_needs_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        explain_main(["--api-server", "https://127.0.0.1:9", "--tls-addr", "192.0.2.1:443"])
    assert ended.value.code == 2
    assert "error: --tls-addr needs --tls-cert-file and --tls-private-key-file" in capsys.readouterr().err


@pytest.mark.parametrize("main", [explain_main, console_main], ids=["explain", "console"])
def test_authorities_that_cannot_be_read_are_named(
    main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--api-server", "https://127.0.0.1:9", "--plain-addr", "127.0.0.1:0", "--health-addr", "0")
    ca = tmp_path / "ca.crt"
    assert main([*words, "--api-server-ca", str(ca)]) == 1
    assert capsys.readouterr().err.endswith(f"error: --api-server-ca: {ca}: No such file or directory\n")
    ca.write_text("a key")
    assert main([*words, "--api-server-ca", str(ca)]) == 1
    assert capsys.readouterr().err.endswith(f"error: --api-server-ca: {ca} has no PEM certificates of authorities\n")


_QUICK: Final = """
import sys
from unbounded.kube.serving_certificate import ServingCertificate
ServingCertificate.__init__.__kwdefaults__["renewal_s"] = 0.05
from unbounded.explain_api.main import main
sys.exit(main())
"""


async def _other_serial(port: int, known: set[str], ca: Path) -> str:
    """The serial number of a certificate that was not seen before, once it is served."""
    async with asyncio.timeout(60):
        while True:
            context = ssl.create_default_context(cafile=str(ca))
            _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            serial = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            if serial not in known:
                return str(serial)
            await asyncio.sleep(0.05)
