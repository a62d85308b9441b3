"""Checks of the configuration's servers, with real ones: an API server, a registry, a mirror; and without them."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
from aiohttp import encode_basic_auth, web
from msgspec.structs import replace

from tests.agent.preflight.support import TOKEN, NoCommands, NoUnits, config
from tests.cli.deployed import running
from tests.fetch.layers import files, image
from tests.fetch.registries import Registry, served
from tests.support.authority import PEM
from unbounded.agent.artifact_cache import PATIENT, ArtifactCache, BlobStore
from unbounded.agent.artifact_sources import artifacts, sandbox_artifact
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.node.rootfs import ImageCache
from unbounded.agent.node.slot_files import write_build_record
from unbounded.agent.node_spec import HostFacts, goal_from_config
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight.report import PreflightFinding, PreflightReport, Severity, as_json, as_text
from unbounded.agent.preflight.run import run_preflight
from unbounded.api.failures import Rejected
from unbounded.fetch.reference import Platform
from unbounded.fetch.web import Web
from unbounded.join.agent_config import (
    AgentConfig,
    ArtifactSource,
    Attest,
    Downloads,
    ExecCredential,
    Kubelet,
    KubeletAuth,
    Proxy,
)
from unbounded.kube.config import from_kubeconfig

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
CONTENT_SHA256 = hashlib.sha256(b"content").hexdigest()
NAMED = {
    "api-server-reachable",
    "oci-image-reachable",
    "kubernetes-artifacts",
    "cri-artifacts",
    "cni-artifacts",
}


@dataclass
class Mirror:
    """Answers any path below it; `gone` are parts of paths that are not there."""

    gone: set[str] = field(default_factory=set)
    checksums: bool = True
    status: int = 404
    asked: list[str] = field(default_factory=list)
    host: str = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        if any(part in request.path for part in self.gone):
            return web.Response(status=self.status)
        if request.path.endswith(("sha256", "sha256sum")):
            return web.Response(text=CONTENT_SHA256) if self.checksums else web.Response(status=403)
        return web.Response(body=b"content")


@dataclass
class Place:
    """A host, and all that its configuration names."""

    paths: HostPaths
    mirror: Mirror
    registry: Registry
    config: AgentConfig

    async def preflight(
        self, config: AgentConfig | Rejected | None = None, unknown_keys: tuple[str, ...] = (), **facts: Any
    ) -> PreflightReport:
        given, host = config or self.config, HostFacts(**facts)
        return await run_preflight(given, host, self.paths, NoCommands(), NoUnits(), unknown_keys=unknown_keys)

    async def findings(self, config: AgentConfig | None = None, **more: Any) -> dict[str, list[PreflightFinding]]:
        told = await self.preflight(config, **more)
        found: dict[str, list[PreflightFinding]] = {}
        for one in told.findings:
            found.setdefault(one.name, []).append(one)
        return found


def mirrored(host: str) -> Downloads:
    source = ArtifactSource(base_url=f"http://{host}/mirror")
    return Downloads(kubernetes=source, containerd=source, runc=source, cni=source, crictl=source, sandbox=source)


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    mirror, registry = Mirror(), Registry()
    registry.add(image([files({"etc/os-release": b"ID=debian"})]), "v1")
    async with running(folder / "data") as (server, _), served(mirror.answer) as mirror.host, registry.running():
        ca = from_kubeconfig(server.kubeconfig_path).ca
        assert ca is not None
        made = config(
            api_server=server.url,
            ca_pem=ca.decode(),
            oci_image=f"{registry.host}/root:v1",
            downloads=mirrored(mirror.host),
        )
        yield Place(HostPaths(folder / "host"), mirror, registry, made)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


def severities(found: dict[str, list[PreflightFinding]]) -> dict[str, set[Severity]]:
    return {name: {one.severity for one in found[name]} for name in NAMED}


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.slow
async def test_available_artifacts_pass_the_preflight(here: Place) -> None:
    found = await here.findings()
    assert severities(found) == {name: {OK} for name in NAMED}
    assert [one.target for one in found["kubernetes-artifacts"]] == [
        f"{name} 1.34.0" for name in ("kubelet", "kubectl", "kube-proxy")
    ]
    assert [one.target for one in found["cri-artifacts"]] == [
        "containerd 2.1.8",
        "runc 1.5.0",
        "crictl 1.34.0",
        "sandbox 1.0.0",
    ]
    assert found["agent-config"][0].severity is OK
    assert "attestation" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "name", "status", "words"),
    [
        ("/kubelet", "kubernetes-artifacts", 404, "it does not exist: 404"),
        ("/containerd", "cri-artifacts", 403, "this host has no permission: 403"),
        ("/runc", "cri-artifacts", 500, "the answer is 500"),
        ("/cni-plugins", "cni-artifacts", 404, "Downloads.CNI"),
    ],
)
async def test_an_artifact_that_is_not_to_be_had_is_named(
    here: Place, gone: str, name: str, status: int, words: str
) -> None:
    here.mirror.gone, here.mirror.status = {gone}, status
    found = await here.findings()
    wrong = [one for ones in found.values() for one in ones if one.severity is ERROR and one.name in NAMED]
    assert [(one.name, words in one.message) for one in wrong] == [(name, True)]


@pytest.mark.slow
async def test_a_sandbox_image_that_the_mirror_lacks_is_named(here: Place) -> None:
    def sandbox(found: dict[str, list[PreflightFinding]]) -> tuple[Severity, str]:
        (one,) = (one for one in found["cri-artifacts"] if one.target.startswith("sandbox"))
        return one.severity, one.message

    here.mirror.gone = {"/sandbox"}
    lacks = "it does not exist: 404 (Downloads.Sandbox)"
    holds = "the node image must contain /usr/share/unbounded/sandbox.tar"
    assert sandbox(await here.findings()) == (WARNING, f"{lacks}; {holds}")
    bare = replace(here.config, oci_image="")
    assert sandbox(await here.findings(bare, debootstrap=True)) == (ERROR, lacks)
    here.mirror.status = 500
    assert sandbox(await here.findings())[0] is ERROR, "it may be there"
    nowhere = replace(here.config, downloads=replace(here.config.downloads, sandbox=ArtifactSource()))
    no_mirror = "no mirror is configured for it (Downloads.Sandbox)"
    assert sandbox(await here.findings(nowhere)) == (OK, f"{no_mirror}: {holds}")
    bare = replace(nowhere, oci_image="")
    assert sandbox(await here.findings(bare, debootstrap=True)) == (
        ERROR,
        f"{no_mirror}, and debootstrap does not provide it",
    )


@pytest.mark.slow
async def test_a_proxy_that_refuses_or_is_not_there_is_named(here: Place) -> None:
    async def refuses(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=403)

    source = ArtifactSource(base_url="http://mirror.example.com")
    far = replace(here.config, downloads=replace(here.config.downloads, cni=source), oci_image="r.example.com/root:v1")
    async with served(refuses) as host:
        for at, words in (
            (host, "this host has no permission: 403"),
            (f"127.0.0.1:{closed_port()}", "connection refused: nothing listens there"),
        ):
            found = await here.findings(replace(far, proxy=Proxy(http=f"http://{at}", https=f"http://{at}")))
            assert found["cni-artifacts"][0].message == f"{words} (Downloads.CNI, through Proxy.HTTP)"
            assert found["oci-image-reachable"][0].message.startswith(f"{words} (OCIImage, through Proxy.HTTPS)")
            assert severities(found)["api-server-reachable"] == {OK}, "it is reached directly"


@pytest.mark.slow
async def test_a_mirror_whose_authority_is_not_known_needs_it_in_the_configuration(
    here: Place,
) -> None:
    source = ArtifactSource(base_url=here.config.kubelet.api_server)  # of an authority that the system does not know
    changed = replace(here.config, downloads=replace(here.config.downloads, cni=source))
    (found,) = (await here.findings(changed))["cni-artifacts"]
    said = "its certificate is not trusted: CaBundle must contain its authority (Downloads.CNI)"
    assert (found.severity, found.message) == (ERROR, said)


@pytest.mark.slow
async def test_a_url_in_place_of_the_base_is_what_is_asked_for(here: Place) -> None:
    runc = ArtifactSource(url=f"http://{here.mirror.host}/own/runc-{{version}}?key=opensesame")
    changed = replace(here.config, downloads=replace(here.config.downloads, runc=runc))
    found = await here.findings(changed)
    assert severities(found)["cri-artifacts"] == {OK}
    assert "/own/runc-1.5.0" in here.mirror.asked


@pytest.mark.slow
async def test_unknown_url_placeholder_is_a_configuration_fault(here: Place) -> None:
    runc = ArtifactSource(url=f"http://{here.mirror.host}/runc-{{flavour}}")
    changed = replace(here.config, downloads=replace(here.config.downloads, runc=runc))
    found = await here.findings(changed)
    assert (found["agent-config"][0].severity, "Downloads.Runc" in found["agent-config"][0].message) == (ERROR, True)


@pytest.mark.slow
async def test_artifact_without_published_sha256_is_a_warning_until_pinned(here: Place) -> None:
    here.mirror.checksums = False
    found = await here.findings()
    assert {severities(found)[name] == {WARNING} for name in NAMED if name.endswith("-artifacts")} == {True}
    assert "no sha256 is published beside it; publish it there, or set Downloads.CNI.SHA256" in (
        found["cni-artifacts"][0].message
    )
    sources = here.config.downloads
    pinned = replace(sources, cni=replace(sources.cni, version="1.5.1", sha256=CONTENT_SHA256.upper()))
    config = replace(here.config, downloads=pinned)
    assert (await here.findings(config))["cni-artifacts"][0].severity is OK
    (cni,) = (one for one in artifacts(goal_from_config(config, HostFacts()), "amd64") if one.name == "cni")
    shelf = BlobStore(here.paths.artifacts)
    shelf.open()
    async with Web(patience=PATIENT) as web_:
        assert (await ArtifactCache(shelf, web_, web_).get(replaced(cni, sha256=""), lambda _: None)).checked is False
    assert (await here.findings(config))["cni-artifacts"][0].message == "it is on this host"
    assert "it is on this host, but unverified" in (await here.findings())["cni-artifacts"][0].message


@pytest.mark.slow
async def test_preflight_of_an_existing_node_requests_no_artifacts(here: Place) -> None:
    """Artifacts of an earlier configuration may be gone, and the node may have been recreated from others."""
    here.mirror.gone = {"/"}
    newer = replace(goal_from_config(here.config, HostFacts()), kubernetes_version="1.35.0", image="another/root:v2")
    write_build_record(here.paths, Slot.KUBE2, BuildRecord(goal=newer))
    assert severities(await here.findings())["kubernetes-artifacts"] == {ERROR}  # none registered: it is built again
    write_build_record(here.paths, Slot.KUBE2, BuildRecord(goal=newer, node_uid="uid-1"))
    here.mirror.asked.clear()
    assert severities(await here.findings()) == {name: {OK} for name in NAMED}
    assert here.mirror.asked == []


@pytest.mark.slow
async def test_what_is_odd_about_a_configuration_is_a_warning(here: Place) -> None:
    told = (await here.findings(unknown_keys=("unknown key A (B?)",)))["agent-config"]
    assert [(one.severity, one.message) for one in told] == [(WARNING, "unknown key A (B?)")]
    program = KubeletAuth(exec_credential=ExecCredential(command="aws-iam"))
    by_program = replace(here.config, kubelet=replace(here.config.kubelet, auth=program))
    told = (await here.findings(by_program))["agent-config"]
    assert [(one.severity, one.target) for one in told] == [(WARNING, "Kubelet.Auth.ExecCredential")]
    assert "kubectl certificate approve" in told[0].message
    here.paths.identity.mkdir(parents=True)
    (here.paths.identity / "agent.pem").write_text("a certificate")
    assert (await here.findings(by_program))["agent-config"][0].severity is OK


@pytest.mark.slow
async def test_a_name_that_no_image_has(here: Place) -> None:
    (found,) = (await here.findings(replace(here.config, oci_image="Not An Image")))["oci-image-reachable"]
    assert (found.severity, "not an image name" in found.message) == (ERROR, True)


@pytest.mark.slow
async def test_an_image_that_the_registry_does_not_have(here: Place) -> None:
    found = await here.findings(replace(here.config, oci_image=f"{here.registry.host}/root:v2"))
    assert (found["oci-image-reachable"][0].severity, found["oci-image-reachable"][0].message) == (
        ERROR,
        "it does not exist: 404 (OCIImage)",
    )


@pytest.mark.slow
async def test_a_private_image_is_a_warning_until_the_host_has_its_login(here: Place) -> None:
    async def closed(request: web.BaseRequest) -> web.StreamResponse | None:
        if request.headers.get("Authorization") == encode_basic_auth("robot", "calvin"):
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": "Basic realm=lab"})

    here.registry.dial = closed
    later = "start reads the logins of containerd.pullSecrets when the host has joined"
    (found,) = (await here.findings())["oci-image-reachable"]
    assert (found.severity, found.message) == (WARNING, f"this host has no permission: 403 (OCIImage); {later}")
    for password, severity in (("hobbes", WARNING), ("calvin", OK)):
        auth = {here.registry.host: {"username": "robot", "password": password}}
        here.paths.pull_secrets.parent.mkdir(parents=True, exist_ok=True)
        here.paths.pull_secrets.write_text(json.dumps({"auth": auth}))  # as pull_secrets keeps it
        (found,) = (await here.findings())["oci-image-reachable"]
        assert found.severity is severity


@pytest.mark.slow
async def test_by_debootstrap_no_image_is_asked_for(here: Place) -> None:
    found = await here.findings(replace(here.config, oci_image=""), debootstrap=True)
    assert found["oci-image-reachable"][0].severity is OK
    assert here.registry.seen == []
    assert any("debootstrap" in one.message for one in found["host-packages"])


@pytest.mark.slow
async def test_api_server_of_another_authority_is_a_preflight_error(here: Place) -> None:
    import trustme

    other = trustme.CA().cert_pem.bytes().decode()
    changed = config(api_server=here.config.kubelet.api_server, ca_pem=other)
    found = await here.findings(changed)
    assert found["api-server-reachable"][0].severity is ERROR
    assert "not signed by Cluster.CaCertBase64" in found["api-server-reachable"][0].message


@pytest.mark.slow
async def test_connection_error_is_reported_by_its_kind(here: Place) -> None:
    for server, words in (
        (f"https://127.0.0.1:{closed_port()}", "refused"),
        ("https://no-such-host.invalid", "cannot be resolved"),
        (f"https://{here.mirror.host}", "its TLS handshake fails"),
    ):
        auth = Kubelet(api_server=server, auth=here.config.kubelet.auth)
        (one,) = (await here.findings(replace(here.config, kubelet=auth)))["api-server-reachable"]
        assert (one.severity, words in one.message) == (ERROR, True), one


async def test_an_api_server_that_is_not_ready_yet(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from unbounded.agent.preflight.checks import api_server
    from unbounded.agent.preflight.observations import ServiceAnswer

    severity = {
        status: api_server(ServiceAnswer("", "", status=status)).severity for status in (200, 401, 403, 500, 503)
    }
    assert severity == {200: OK, 401: OK, 403: OK, 500: ERROR, 503: ERROR}


@pytest.mark.slow
async def test_what_is_in_the_cache_needs_no_mirror_and_no_registry(here: Place) -> None:
    goal = goal_from_config(here.config, HostFacts())
    shelf = BlobStore(here.paths.artifacts)
    shelf.open()
    async with Web(patience=PATIENT) as open_web:
        sandbox = sandbox_artifact(goal, "amd64")
        assert sandbox is not None
        for one in (*artifacts(goal, "amd64"), sandbox):
            await ArtifactCache(shelf, open_web, open_web).get(one, lambda _: None)
        await ImageCache(shelf, open_web, open_web).get(goal.image, Platform("linux", "amd64"), lambda _: None)
    here.mirror.gone, here.mirror.status = {"/"}, 503
    here.registry.manifests.clear()
    here.mirror.asked.clear()
    found = await here.findings()
    assert severities(found) == {name: {OK} for name in NAMED}
    assert here.mirror.asked == []


@pytest.mark.slow
async def test_attestation_wants_a_tpm_where_no_token_is_given(here: Place) -> None:
    attested = replace(
        here.config,
        kubelet=replace(here.config.kubelet, auth=KubeletAuth()),
        attest=Attest(url=f"http://{here.mirror.host}/boot/x"),
    )
    found = (await here.findings(attested))["attestation"]
    assert [(one.severity, one.target) for one in found] == [(ERROR, "TPM")]
    here.paths.at("/dev").mkdir(parents=True)
    here.paths.at("/dev/tpmrm0").touch()
    found = (await here.findings(attested))["attestation"]
    assert [(one.severity, one.target) for one in found] == [(OK, "Attest.URL")]


async def test_preflight_without_configuration_runs_the_other_checks(here: Place) -> None:
    told = await here.preflight(Rejected("config.json: MachineName '': must be the name of a Machine"))
    by_name = {one.name: one for one in told.findings}
    assert by_name["agent-config"].severity is ERROR
    assert {by_name[name].severity for name in NAMED} == {WARNING}
    assert "disk-space" in by_name
    assert told.failed


@pytest.mark.slow
async def test_preflight_report_contains_no_secrets_or_addresses(here: Place) -> None:
    """Whatever goes wrong, reports can be pasted into a ticket."""
    secret = "opensesame"
    closed = closed_port()
    broken = replace(
        here.config,
        oci_image=f"127.0.0.1:{closed}/root:v1",
        kubelet=replace(here.config.kubelet, api_server=f"https://127.0.0.1:{closed}"),
        downloads=Downloads(
            kubernetes=ArtifactSource(base_url="http://mirror.invalid"),
            containerd=ArtifactSource(url=f"http://127.0.0.1:{closed}/c?key={secret}"),
            runc=ArtifactSource(url=f"http://{here.mirror.host}/gone?key={secret}"),
            cni=ArtifactSource(url=f"https://{here.mirror.host}/cni"),
            crictl=ArtifactSource(url=f"http://127.0.0.1:{closed}/crictl-{{nothing}}?key={secret}"),
        ),
    )
    fixed = replace(broken, downloads=replace(broken.downloads, crictl=ArtifactSource()))
    here.mirror.gone = {"gone"}
    for given in (here.config, broken, fixed):
        told = await here.preflight(given)
        for text in (as_text(told), as_json(told)):
            assert TOKEN not in text
            assert secret not in text
            assert PEM not in text
            assert not re.search(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}", text), text
            assert ".invalid" not in text
            assert str(closed) not in text
        assert json.loads(as_json(told))["status"] == "failed"
