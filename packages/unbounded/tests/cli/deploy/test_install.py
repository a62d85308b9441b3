"""`kubectl unbounded install` on a cluster, and with `unbounded up`: its objects, the objects that it leaves, its
output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.cli.deploy.conftest import stand_in
from tests.cli.plugin.conftest import Cli, Ran
from tests.cli.running import KUBECTL, PATH
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.crd import CONTAINER_CLOUD_DEFINITIONS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.console_install import live_oidc
from unbounded.cli.deploy.console_workload import (
    ALLOW_OPERATIONS,
    CONSOLE,
    CONSOLE_TLS,
    OIDC_CA,
    ConsoleOidc,
    ConsoleWorkload,
    console_deployment,
)
from unbounded.cli.deploy.install import require_kubernetes
from unbounded.cli.deploy.live_machina import args_in, image_of, live_deployment, live_image
from unbounded.cli.deploy.machine_ops import ENABLE
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, PODS, kind_of
from unbounded.cli.deploy.workloads import (
    CONTAINER_CLOUD,
    CONTAINER_CLOUD_CONTROLLER,
    MACHINA,
    MACHINA_CONFIG,
    MACHINE_OPS,
    MACHINE_OPS_CONFIG,
    MachinaWorkload,
    MachineOpsWorkload,
    machine_ops_config,
    machine_ops_objects,
    stages,
)
from unbounded.cli.manifests import CRDS, KINDS, container_cloud_manifests
from unbounded.cli.plugin.command import CliError
from unbounded.console import main as console_main
from unbounded.console.oidc_settings import OidcSettings
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi

Raw = dict[str, Any]

pytestmark = pytest.mark.slow

AGENT = ("--agent-url", "https://example.com/agent.tar.gz")
LOGIN = ("--ssh-username", "admin")
HERE = "registry.example.com"  # where images come from
NAMELESS = (
    ("install",),
    ("install", "--diff"),
    ("install", "--dry-run", "client"),
    ("install", "--dry-run", "server"),
    ("site", "init", "--name", "rack9"),
    ("site", "init", "--name", "rack9", "--enable-machina=false", "--enable-metalman"),
    ("site", "deploy-pxe", "--site", "rack9"),
    ("site", "deploy-pxe", "--site", "rack9", "--dry-run", "client"),
)
MANY = 50  # objects, at the least: definitions, rights, policies, machina


def told(ran: Ran) -> dict[str, list[str]]:
    """The objects by what became of them."""
    found: dict[str, list[str]] = {}
    for line in ran.out.splitlines():
        name, _, verb = line.partition(" ")
        if "/" in name:
            found.setdefault(verb, []).append(name)
    return found


async def revision(api: HttpApi) -> dict[tuple[str, str, str], Any]:
    """The version of every object that an install brings; every write makes another one, but for those of a status."""
    found: dict[tuple[str, str, str], Any] = {}
    for stage in stages(MachinaWorkload("image")):
        for body in stage.objects:
            kind, name, namespace = kind_of(body), body["metadata"]["name"], body["metadata"].get("namespace", "")
            assert kind is not None
            with contextlib.suppress(NotFound):
                there: Raw = await api.get(kind, name, namespace=namespace)
                meta = there["metadata"]
                found[kind.kind, namespace, name] = meta.get("generation", meta["resourceVersion"])
    return found


async def test_a_cluster_gets_all_of_it_once_and_then_nothing(
    cluster_cli: Cli, cluster_api: HttpApi, tmp_path: Path
) -> None:
    mine = f"{HERE}/machina:mine"
    for words in NAMELESS:
        refused = await cluster_cli(*words)
        assert (refused.status, "no image is known for" in refused.err) == (2, True), (words, refused)
    assert set(await revision(cluster_api)) <= {("Namespace", "", NAMESPACE)}
    first = await cluster_cli("install", "-v", "--wait=false", "--image", mine)
    assert first.status == 0, first.err
    assert "machines" not in first.err
    assert told(first).pop("unchanged", []) in ([], ["namespace/unbounded-kube"])  # the embedded server has it
    assert len(told(first)["created"]) > MANY
    at = await revision(cluster_api)
    assert len(at) > MANY
    again = await cluster_cli("install", "-v", "--wait=false", "--image", mine)
    assert (again.status, set(told(again))) == (0, {"unchanged"})
    assert await revision(cluster_api) == at

    # a later one without flags keeps the registry, and uses the image of its own version there
    plain = await cluster_cli("install", "--diff")
    assert (
        re.findall(r"^[+-] +-? ?image: (\S+)$", plain.out, flags=re.MULTILINE)
        == [
            mine,
            image_of("machina", HERE),
        ]
        * 2
    )

    # hosts use the kubeconfig's API server, as no other setting names one
    config = await machina_config(cluster_api)
    assert config["apiServerEndpoint"] == cluster_api.config.server.removeprefix("https://")
    assert "hosts cannot reach this address: give --api-server-endpoint" in first.err

    # the diff shows what will change, and what a user has changed
    await cluster_api.patch(KINDS["ClusterRole"], "unbounded-machina", {"rules": []})
    at = await revision(cluster_api)
    shown = await cluster_cli(
        "install", "--diff", "--image", mine, "--api-server-endpoint", "https://api.example.com:6443"
    )
    assert (shown.status, await revision(cluster_api)) == (0, at)
    differing = re.findall(r"^\+\+\+ desired/(\S+)$", shown.out, flags=re.MULTILINE)
    assert differing == ["unbounded-machina", MACHINA_CONFIG, MACHINA]
    assert "api.example.com:6443" in shown.out
    assert "resourceVersion" not in shown.out

    # a site corrects it, prints only new objects, and does not change the image; manifests may be a third party's
    extra = tmp_path / "extra.yaml"
    extra.write_text("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: extra, namespace: unbounded-kube}\n")
    said = ["site", "init", "--name", "rack9"]
    ran = await cluster_cli(*said, "--machina-manifests", str(tmp_path))
    assert told(ran)["created"] == ["serviceaccount/extra"], ran.err
    site = asyncio.create_task(cluster_cli(*said, "--cluster-dns", "10.96.0.10", "--enable-metalman"))
    await roll_out(cluster_api, dns="10.96.0.10")
    await roll_out(cluster_api, name="metalman-controller-rack9", replicas=1)
    ran = await site
    assert ran.status == 0, ran.err
    configured = ["namespace/unbounded-kube", f"configmap/{MACHINA_CONFIG}", f"deployment.apps/{MACHINA}"]
    assert told(ran)["configured"] == configured  # the namespace is privileged for metalman
    metalman = ["service/metalman-controller-rack9", "deployment.apps/metalman-controller-rack9"]
    assert told(ran)["created"] == metalman
    assert "hosts of site rack9 can join with it until" in ran.out
    ran = await cluster_cli("plan", "machine", "register", "--site", "rack9", "--host", "192.0.2.9", *LOGIN, *AGENT)
    assert "set another one with `kubectl unbounded install --api-server-endpoint HOST:PORT`" in ran.err
    assert await image(cluster_api, MACHINA) == mine
    assert await image(cluster_api, "metalman-controller-rack9") == image_of("metalman", HERE)

    # a rollout that is stuck, with its cause; machina's settings stay
    pod: Raw = await cluster_api.create(PODS, stuck_pod(), namespace=NAMESPACE)
    status = {"status": stuck_pod()["status"]}
    await cluster_api.patch(PODS, pod["metadata"]["name"], status, namespace=NAMESPACE, subresource="status")
    failing = asyncio.create_task(cluster_cli("install", "--image", "registry.example.com/machina:v3"))
    await roll_out(cluster_api, image="registry.example.com/machina:v3", stuck="it has timed out progressing")
    failed = await failing
    assert failed.status == 1
    assert "it has timed out progressing" in failed.err
    assert "ImagePullBackOff: Back-off pulling image" in failed.err
    assert "describe deployment machina-controller" in failed.err
    assert await machina_config(cluster_api) == config | {"clusterDns": "10.96.0.10"}

    # hosts without internet need one setting for all of them, and not one for each; hints name it
    bootstrap = ("machine", "manual-bootstrap", "web8", "--site", "rack9")
    ran = await cluster_cli(*bootstrap)
    assert (ran.status, ran.out) == (1, "")
    assert "no release of the agent is configured: set spec.agent.url of the Machine, or --agent-url" in ran.err
    assert "`kubectl unbounded install --agent-url URL` for all hosts" in ran.err
    ran = await cluster_cli("install", "--diff", "--agent-url", "http://example.com/agent.tar.gz")
    assert "without a digest, which they reject: give --agent-sha256 DIGEST" in ran.err
    told_of = {"artifactMirror": "https://mirror.example.com/all", "agentImage": f"{HERE}/node:v1"}
    flags = ("--artifact-mirror", told_of["artifactMirror"], "--agent-image", told_of["agentImage"])
    assert (await cluster_cli("install", "-v", "--wait=false", *flags)).status == 0
    assert await machina_config(cluster_api) == config | {"clusterDns": "10.96.0.10"} | told_of
    ran = await cluster_cli(*bootstrap)
    assert ran.status == 0
    assert ran.err.startswith("the host gets https://127.0.0.1:")
    assert ran.err.count("\n") == 1
    assert "export AGENT_BASE_URL=https://mirror.example.com/all" in ran.out
    assert ran.out.count('"BaseURL": "https://mirror.example.com/all"') == 6
    assert f'"OCIImage": "{HERE}/node:v1"' in ran.out

    # flags in the Deployment override the file, also for hosts that are set up by hand
    deployment: Raw = await cluster_api.get(DEPLOYMENTS, MACHINA, namespace=NAMESPACE)
    containers = deployment["spec"]["template"]["spec"]["containers"]
    containers[0]["args"] += ["--api-server-endpoint=api.flag.example.com:6443", "--cluster-dns", "10.96.0.11"]
    change = {"spec": {"template": {"spec": {"containers": containers}}}}
    await cluster_api.patch(DEPLOYMENTS, MACHINA, change, namespace=NAMESPACE)
    ran = await cluster_cli(*bootstrap)
    assert (ran.status, ran.err) == (0, "")
    assert "api.flag.example.com:6443" in ran.out
    assert "10.96.0.11" in ran.out


async def test_install_names_the_other_groups_that_have_machines(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    for group in ("cluster.x-k8s.io", "machine.example.com"):
        spec = {
            "group": group,
            "names": {"kind": "Machine", "plural": "machines"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        }
        await cluster_api.create(CRDS, {"metadata": {"name": f"machines.{group}"}, "spec": spec})
    try:
        ran = await cluster_cli("install", "--wait=false", "--image", f"{HERE}/machina:mine")
        note = "Note: this cluster also has machines.cluster.x-k8s.io and machines.machine.example.com."
        assert (ran.status, f"{note} Use `kubectl get mach`" in ran.out + ran.err) == (0, True), ran
    finally:
        for group in ("cluster.x-k8s.io", "machine.example.com"):
            await cluster_api.delete(CRDS, f"machines.{group}")


async def test_a_site_leaves_a_machina_alone_that_kustomize_has_brought(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    """Its ConfigMap has a name of its own, and its creator would revert changes."""
    mine, config = f"{HERE}/a/machina:mine", "machina-config-7k2g5c9h4t"
    assert (await cluster_cli("install", "-v", "--wait=false", "--image", mine)).status == 0
    data = {"config.yaml": "apiServerEndpoint: api.mine.example.com:6443\n"}
    await cluster_api.create(CONFIG_MAPS, {"metadata": {"name": config}, "data": data}, namespace=NAMESPACE)
    deployment: Raw = await cluster_api.get(DEPLOYMENTS, MACHINA, namespace=NAMESPACE)
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    volumes[0]["configMap"]["name"] = config
    change = {"spec": {"template": {"spec": {"volumes": volumes}}}}
    await cluster_api.patch(DEPLOYMENTS, MACHINA, change, namespace=NAMESPACE)
    await roll_out(cluster_api)
    at = await revision(cluster_api)
    ran = await cluster_cli("site", "init", "--name", "rack8")
    assert (ran.status, ran.err, await revision(cluster_api)) == (0, "", at)
    assert "hosts of site rack8 can join with it until" in ran.out

    # its images come from machina's registry, and continue to
    for said, place in (
        ((), f"{HERE}/a"),
        (("--image-registry", "other.example.com"), "other.example.com"),
        ((), "other.example.com"),
    ):
        ran = await cluster_cli("site", "deploy-pxe", "--site", "rack8", "--interface", "eth1", *said)
        assert ran.status == 0, ran.err
        assert await image(cluster_api, "metalman-controller-rack8") == image_of("metalman", place)
    await roll_out(cluster_api, name="metalman-controller-rack8", replicas=1)
    metalman: Raw = await cluster_api.get(DEPLOYMENTS, "metalman-controller-rack8", namespace=NAMESPACE)
    ran = await cluster_cli("site", "init", "--name", "rack8", "--enable-metalman")
    assert ran.status == 0, ran.err
    assert await cluster_api.get(DEPLOYMENTS, "metalman-controller-rack8", namespace=NAMESPACE) == metalman

    # a requested change is applied, with machina's former settings, and with a warning for the administrator
    ran = await cluster_cli("install", "-v", "--wait=false", "--cluster-dns", "10.96.0.10")
    assert ran.status == 0, ran.err
    assert f"machina changes its configuration from ConfigMap {config} to {MACHINA_CONFIG}" in ran.err
    told_now = await machina_config(cluster_api)
    assert (told_now["apiServerEndpoint"], told_now["clusterDns"]) == ("api.mine.example.com:6443", "10.96.0.10")
    assert await image(cluster_api, MACHINA) == image_of("machina", f"{HERE}/a")


async def test_install_deploys_and_updates_machine_ops_controller_on_request(
    cluster_cli: Cli, cluster_api: HttpApi
) -> None:
    enabled = ("install", "-v", "--wait=false", "--enable-machine-ops-controller")
    azure, west = "machine-ops-controller-azurevm", "machine-ops-controller-west-ociinstance"
    mine, ours = f"{HERE}/a/machina:mine", image_of(MACHINE_OPS, f"{HERE}/a")
    ran = await cluster_cli("install", "-v", "--wait=false", "--image", mine, "--cluster-dns", "10.96.0.10")
    assert [name for names in told(ran).values() for name in names if MACHINE_OPS in name and "config" in name] == []

    # its image has machina's source, and new hosts get machina's settings
    ran = await cluster_cli(*enabled, "--provider", "AzureVM", "--image", mine)
    assert ran.status == 0, ran.err
    assert sorted(name for name in told(ran)["created"] if MACHINE_OPS in name) == [
        f"configmap/{MACHINE_OPS_CONFIG}",
        f"deployment.apps/{azure}",
        f"networkpolicy.networking.k8s.io/{azure}",
        f"poddisruptionbudget.policy/{azure}",
        f"service/{azure}",
    ]
    assert await image(cluster_api, azure) == ours
    config = await machina_config(cluster_api, MACHINE_OPS_CONFIG)
    assert (config["clusterDns"], config["maxConcurrentReconciles"]) == ("10.96.0.10", 10)

    # two for the same Machines are refused; one for others is deployed in addition, with a user's own image
    for more in ((), ("--site", "west"), ("--site", "west", "--provider", "AzureVM")):
        ran = await cluster_cli(*enabled, *more)
        assert (ran.status, "AzureVM of all sites: both would work on the same Machines" in ran.err) == (2, True)
        assert f"delete deployment {azure}" in ran.err
    ran = await cluster_cli(*enabled, "--site", "azurevm")
    assert (ran.status, "the new one would replace it" in ran.err) == (2, True)
    other = ("--site", "west", "--provider", "OCIInstance", "--machine-ops-image", f"{HERE}/with-acme:v7")
    assert (await cluster_cli(*enabled, *other)).status == 0
    deployment: Raw = await cluster_api.get(DEPLOYMENTS, west, namespace=NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][3:] == ["--site=west", "--provider=OCIInstance"]

    # other writers' fields stay, such as the label of Azure's workload identity, and so do its own settings
    pod: Raw = {"metadata": {"labels": {"azure.workload.identity/use": "true"}}}
    old = {"containers": [{"name": MACHINE_OPS, "image": f"{HERE}/a/machine-ops-controller:v0.0.1"}]}
    await cluster_api.patch(DEPLOYMENTS, azure, {"spec": {"template": pod}}, namespace=NAMESPACE)
    there: Raw = await cluster_api.get(DEPLOYMENTS, azure, namespace=NAMESPACE)
    containers = there["spec"]["template"]["spec"]["containers"]
    containers[0] |= old["containers"][0]
    change: Raw = {"spec": {"template": {"spec": {"containers": containers}}}}
    await cluster_api.patch(DEPLOYMENTS, azure, change, namespace=NAMESPACE)
    data = {"config.yaml": yaml.safe_dump(config | {"maxConcurrentReconciles": 4})}
    await cluster_api.patch(CONFIG_MAPS, MACHINE_OPS_CONFIG, {"data": data}, namespace=NAMESPACE)
    foreign = there | {"metadata": {"name": f"{MACHINE_OPS}-east", "labels": there["metadata"]["labels"]}}
    await cluster_api.create(DEPLOYMENTS, foreign, namespace=NAMESPACE)

    # a later one without flags brings those that run up to this version, and waits for all of them
    plain = asyncio.create_task(cluster_cli("install", "--cluster-dns", "10.96.0.11"))
    for name in (MACHINA, azure, west):
        await roll_out(cluster_api, name=name, dns="10.96.0.11" if name == MACHINA else "")
    ran = await plain
    assert ran.status == 0, ran.err
    east = f"{MACHINE_OPS}-east reads ConfigMap {MACHINE_OPS_CONFIG}: `install` did not create it, and it is not"
    assert east in ran.err
    config = await machina_config(cluster_api, MACHINE_OPS_CONFIG)
    assert (config["clusterDns"], config["maxConcurrentReconciles"]) == ("10.96.0.11", 4)
    assert (await image(cluster_api, azure), await image(cluster_api, west)) == (ours, f"{HERE}/with-acme:v7")
    deployment = await cluster_api.get(DEPLOYMENTS, azure, namespace=NAMESPACE)
    assert deployment["spec"]["template"]["metadata"]["labels"]["azure.workload.identity/use"] == "true"

    # a site that changes machina's settings changes these, too, and not the image
    await cluster_api.patch(DEPLOYMENTS, azure, change, namespace=NAMESPACE)
    site = asyncio.create_task(cluster_cli("site", "init", "--name", "rack7", "--cluster-dns", "10.96.0.12"))
    await roll_out(cluster_api, dns="10.96.0.12")
    ran = await site
    assert ran.status == 0, ran.err
    assert (await machina_config(cluster_api, MACHINE_OPS_CONFIG))["clusterDns"] == "10.96.0.12"
    assert await image(cluster_api, azure) == old["containers"][0]["image"]


async def image(api: HttpApi, name: str) -> str:
    deployment: Raw = await api.get(DEPLOYMENTS, name, namespace=NAMESPACE)
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


async def machina_config(api: HttpApi, name: str = MACHINA_CONFIG) -> Any:
    found = await api.get(CONFIG_MAPS, name, namespace=NAMESPACE)
    return yaml.safe_load(found.data["config.yaml"])


async def roll_out(
    api: HttpApi, name: str = MACHINA, *, replicas: int = 2, image: str = "", dns: str = "", stuck: str = ""
) -> None:
    """Do what the controller of Deployments does, once the image or the configuration is set."""
    before = (await api.get(DEPLOYMENTS, name, namespace=NAMESPACE))["metadata"]["generation"] if dns else 0
    async with asyncio.timeout(60):
        while True:
            try:
                body: Raw = await api.get(DEPLOYMENTS, name, namespace=NAMESPACE)
            except NotFound:
                body = {}
            if not body or body["metadata"]["generation"] == before:
                pass
            elif not image or body["spec"]["template"]["spec"]["containers"][0]["image"] == image:
                break
            await asyncio.sleep(0.05)
    status: Raw = {
        "observedGeneration": body["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
    }
    if stuck:
        condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": stuck}
        status |= {"availableReplicas": 0, "conditions": [condition]}
    else:
        status |= {"availableReplicas": replicas, "conditions": []}
    await api.patch(DEPLOYMENTS, name, {"status": status}, namespace=NAMESPACE, subresource="status")


def stuck_pod() -> Raw:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    return {
        "metadata": {"name": "machina-1", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "machina"}},
        "spec": {"containers": [{"name": "machina", "image": "registry.example.com/machina:v3"}]},
        "status": {"containerStatuses": [{"name": "machina", "state": {"waiting": waiting}}]},
    }


async def test_kubectl_takes_the_bases(cluster: Path) -> None:
    """The server has everything of them checked, but for what only a cluster serves."""

    async def applied(folder: str) -> list[str]:
        command = [KUBECTL or "kubectl", "--kubeconfig", str(cluster), "apply", "-k", folder]
        command += ["--server-side", "--force-conflicts", "--dry-run=server"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={"PATH": PATH, "HOME": str(cluster.parent)}, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode().splitlines()

    names = ("machine-ops-controller", "container-cloud", "unbounded-console")
    folders = ("deploy", *(f"deploy/components/{name}" for name in names))
    base, clouds, container_cloud, console = await asyncio.gather(*map(applied, folders))
    assert len(base) > MANY
    assert len(clouds) == 5
    assert len(console) == 3
    assert len(container_cloud) == 5 + len(CONTAINER_CLOUD_DEFINITIONS) + len(list(container_cloud_manifests()))


async def test_install_runs_the_console_on_request(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    words = ("install", "--wait=false", "--image", f"{HERE}/machina:mine")
    alone = await cluster_cli(*words, "--console-image", "x")
    assert (alone.status, "--console-image applies only to the console" in alone.err) == (2, True)
    first = await cluster_cli(*words, "--console", "--console-allow-operations", "-v")
    assert first.status == 0, first.err
    created = told(first)["created"]
    assert ALLOW_OPERATIONS in await console_args(cluster_api)
    assert {f"{kind}/unbounded-console" for kind in ("deployment.apps", "service")} <= set(created)
    assert await live_image(cluster_api, CONSOLE, CONSOLE) == image_of("unbounded-console", HERE)
    command = re.search(r"`(kubectl create secret tls unbounded-console-tls .*)`", first.out + first.err)
    assert command is not None
    pair = {"tls.crt": "eA==", "tls.key": "eA=="}
    body = {"metadata": {"name": CONSOLE_TLS}, "type": "kubernetes.io/tls", "data": pair}
    await cluster_api.create(SECRETS, body, namespace=NAMESPACE)
    plain = await cluster_cli(*words, "-v")
    assert (plain.status, set(told(plain))) == (0, {"unchanged"}), "without the flag it is updated, too"
    assert "deployment.apps/unbounded-console" in told(plain)["unchanged"]
    assert "unbounded-console-tls" not in plain.out + plain.err
    assert (await cluster_cli(*words, "--console", "--console-allow-operations=false")).status == 0
    assert ALLOW_OPERATIONS not in await console_args(cluster_api)
    gone = await cluster_cli("uninstall", "--force")
    assert gone.status == 0, gone.err
    assert "deployment.apps/unbounded-console deleted" in gone.out
    assert (await cluster_cli("uninstall", "--delete-data", "--force")).status == 0


async def test_install_waits_for_the_console_only_once_it_has_its_certificate(
    cluster_cli: Cli, cluster_api: HttpApi
) -> None:
    image = f"{HERE}/machina:waited"
    words = ("install", "--image", image, "--console")
    pair = {"tls.crt": "eA==", "tls.key": "eA=="}
    secret = {"metadata": {"name": CONSOLE_TLS}, "type": "kubernetes.io/tls", "data": pair}
    try:
        installing = asyncio.create_task(cluster_cli(*words))
        await roll_out(cluster_api, image=image)
        first = await installing
        assert first.status == 0, first.err
        assert f"deployment.apps/{CONSOLE}: " not in first.out + first.err
        assert "without which its Pod is not ready: `kubectl create secret tls" in first.out + first.err
        await cluster_api.create(SECRETS, secret, namespace=NAMESPACE)
        installing = asyncio.create_task(cluster_cli(*words))
        await roll_out(cluster_api, CONSOLE, replicas=1)
        second = await installing
        assert second.status == 0, second.err
        assert f"deployment.apps/{CONSOLE}: 1 of 1 Pods are available" in second.out + second.err
    finally:
        await cluster_cli("uninstall", "--force")
        await cluster_cli("uninstall", "--delete-data", "--force")


async def console_args(api: HttpApi) -> tuple[str, ...]:
    return args_in(await live_deployment(api, CONSOLE), CONSOLE)


async def provider_of_console(api: HttpApi) -> OidcSettings | None:
    """Return what the console's process would read from the arguments of its Deployment, whose files are mounted."""
    found = console_main.parse(await console_args(api), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).oidc
    pod = (await live_deployment(api, CONSOLE))["spec"]["template"]["spec"]
    mounts = {Path(one["mountPath"]) for one in pod["containers"][0]["volumeMounts"]}
    for file in () if found is None else (found.client_secret_file, found.ca_file):
        assert file is None or file.parent in mounts
    assert ("oidc" in str(pod)) is (found is not None)
    return found


IDP = ("--console-oidc-issuer-url", "https://idp.example.com/realms/a", "--console-oidc-client-id", "kubernetes")


async def test_install_lets_the_console_log_in_with_a_provider(
    cluster: Path, cluster_cli: Cli, cluster_api: HttpApi, tmp_path: Path
) -> None:
    ca, secret = tmp_path / "ca.crt", tmp_path / "secret"
    trustme.CA().cert_pem.write_to_path(str(ca))
    secret.write_text("S3cret!")
    words = ("install", "--wait=false", "--image", f"{HERE}/machina:mine")
    documented = re.search(
        r"kubectl unbounded (install --console .*\\\n.*)", (ROOT / "docs" / "console.md").read_text()
    )
    assert documented is not None
    done = await cluster_cli(*documented[1].replace("\\\n", "").split(), *words[1:])
    assert done.status == 0, done.err
    assert "`kubectl create secret generic unbounded-console-oidc -n unbounded-kube --from-file " in done.out + done.err
    more = ("--console-oidc-client-secret", "idp/key", "--console-oidc-ca-file", str(ca))
    first = await cluster_cli(*words, "--console", *IDP, *more, "--console-oidc-scopes", "groups,email")
    assert first.status == 0, first.err
    said = first.out + first.err
    found = await provider_of_console(cluster_api)
    assert found is not None
    assert (found.issuer, found.client_id, found.scopes) == (IDP[1], IDP[3], ("openid", "groups", "email"))
    assert (await cluster_api.get(CONFIG_MAPS, OIDC_CA, namespace=NAMESPACE)).data == {"ca.crt": ca.read_text()}
    assert f"at {IDP[1]}, register https://HOST[:PORT]/login/oidc/callback as a redirect URI of the client" in said
    command = re.search(r"`(kubectl create secret generic idp .*)FILE`", said)
    assert command is not None
    create = [KUBECTL or "kubectl", "--kubeconfig", str(cluster), *command[1].split()[1:]]
    create[-1] += str(secret)
    process = await asyncio.create_subprocess_exec(*create, env={"PATH": PATH, "HOME": str(tmp_path)})
    assert await process.wait() == 0

    plain = await cluster_cli(*words, "-v")
    assert (plain.status, set(told(plain))) == (0, {"unchanged"}), plain.err
    assert f"configmap/{OIDC_CA}" in told(plain)["unchanged"]
    assert "idp" not in plain.out + plain.err
    changed = await cluster_cli(*words, "--console", "--console-oidc-client-secret", "idp/other")
    assert f"Secret {NAMESPACE}/idp has no key other" in changed.err
    assert await provider_of_console(cluster_api) == found
    public = await cluster_cli(*words, "--console", "--console-oidc-client-secret", "", "--console-oidc-ca-file", "")
    assert public.status == 0, public.err
    assert await provider_of_console(cluster_api) == OidcSettings(
        issuer=found.issuer, client_id=found.client_id, scopes=found.scopes
    )
    none = await cluster_cli(*words, "--console", "--console-oidc-issuer-url", "")
    assert none.status == 0, none.err
    assert await provider_of_console(cluster_api) is None
    lone = await cluster_cli(*words, "--console", "--console-oidc-scopes", "groups")
    assert (lone.status, "--console-oidc-scopes needs --console-oidc-issuer-url" in lone.err) == (2, True)
    gone = await cluster_cli("uninstall", "--force")
    assert gone.status == 0, gone.err
    assert f"configmap/{OIDC_CA} deleted" in gone.out
    assert (await cluster_cli("uninstall", "--delete-data", "--force")).status == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (IDP, "--console-oidc-issuer-url applies only to the console"),
        (("--console", *IDP[:2]), "--console-oidc-issuer-url needs --console-oidc-client-id"),
        (("--console", *IDP[2:]), "--console-oidc-client-id needs --console-oidc-issuer-url"),
        (
            ("--console", IDP[0], "http://idp.example.com"),
            "--console-oidc-issuer-url: 'http://idp.example.com' is not ",
        ),
        (("--console", IDP[0], "http://127.0.0.1"), "--console-oidc-issuer-url: 'http://127.0.0.1' is not https://"),
        (("--console", IDP[0], "https://a?b"), "--console-oidc-issuer-url: 'https://a?b' has a query or a fragment"),
        (("--console", *IDP[:3], "two\nlines"), "--console-oidc-client-id: 'two\\nlines' is not the ID of a client"),
        (("--console", *IDP, "--console-oidc-scopes", 'a "b'), "--console-oidc-scopes: '\"b' is not a scope"),
        (
            ("--console", *IDP, "--console-oidc-ca-file", "/nowhere.pem"),
            "--console-oidc-ca-file: /nowhere.pem: No such file or directory",
        ),
        (
            ("--console", *IDP, "--console-oidc-ca-file", __file__),
            "--console-oidc-ca-file: " + __file__ + ": must contain PEM certificates of authorities",
        ),
    ],
)
def test_settings_of_a_provider_that_cannot_be_meant(cluster_cli: Cli, flags: tuple[str, ...], says: str) -> None:
    ran = cluster_cli.now("install", "--dry-run", "client", "--image", f"{HERE}/machina:mine", *flags)
    assert (ran.status, ran.out, says in ran.err) == (2, "", True), ran


async def test_scopes_that_keep_a_console_from_its_start_do_not_stop_install(cluster_api: HttpApi) -> None:
    broken = ConsoleWorkload("image", oidc=ConsoleOidc("https://idp.example.com", "c", scopes=('a"b',)))
    found = await live_oidc(cluster_api, console_deployment(broken))
    assert found == ConsoleOidc("https://idp.example.com", "c")


@pytest.mark.parametrize("secret", ["hunter2", "0123456789abcdef", "Sup3r/Secret", "a/b/c", "idp/", "/key"])
def test_the_secret_of_a_client_is_not_accepted_on_the_command_line(cluster_cli: Cli, secret: str) -> None:
    words = ("install", "--dry-run", "client", "--image", f"{HERE}/machina:mine", "--console", *IDP)
    ran = cluster_cli.now(*words, "--console-oidc-client-secret", secret)
    assert (ran.status, ran.out) == (2, "")
    assert "--console-oidc-client-secret: must be SECRET/KEY, a Secret of unbounded-kube and its key" in ran.err
    assert secret not in ran.err


def test_a_file_of_authorities_with_a_private_key_is_refused(cluster_cli: Cli, tmp_path: Path) -> None:
    authority, pem = trustme.CA(), tmp_path / "both.pem"
    authority.cert_pem.write_to_path(str(pem))
    authority.private_key_pem.write_to_path(str(pem), append=True)
    words = ("install", "--dry-run", "client", "--image", f"{HERE}/machina:mine", "--console", *IDP)
    ran = cluster_cli.now(*words, "--console-oidc-ca-file", str(pem))
    assert (ran.status, ran.out, f"--console-oidc-ca-file: {pem}: has a private key" in ran.err) == (2, "", True)


async def test_install_serves_container_cloud_on_request(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    words = ("install", "--wait=false", "--image", f"{HERE}/machina:mine")
    alone = await cluster_cli(*words, "--container-cloud-image", "x")
    assert (alone.status, "--container-cloud-image applies only to container-cloud" in alone.err) == (2, True)
    name, definition = "baremetalhosts.metal3.io", stand_in("metal3.io", "BareMetalHost", "baremetalhosts")
    await cluster_api.create(CRDS, definition)
    refused = await cluster_cli(*words, "--container-cloud")
    said = f"--container-cloud: this cluster has definitions of other controllers: {name}"
    assert (refused.status, said in refused.err) == (1, True), refused
    await cluster_api.delete(CRDS, name)
    await eventually(lambda: is_gone(cluster_api, name), within_s=30)

    first = await cluster_cli(*words, "--container-cloud", "-v")
    assert first.status == 0, first.err
    created = told(first)["created"]
    assert f"deployment.apps/{CONTAINER_CLOUD_CONTROLLER}" in created
    assert f"customresourcedefinition.apiextensions.k8s.io/{name}" in created
    assert (
        "Note: for kubectl, `machines` now means the Machines of Container Cloud, short `ma`" in first.out + first.err
    )
    image = await live_image(cluster_api, CONTAINER_CLOUD_CONTROLLER, CONTAINER_CLOUD)
    assert image == image_of("container-cloud", HERE)
    plain = await cluster_cli(*words, "-v")
    assert (plain.status, set(told(plain))) == (0, {"unchanged"}), "without the flag it is updated, too"
    assert f"deployment.apps/{CONTAINER_CLOUD_CONTROLLER}" in told(plain)["unchanged"]

    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    labels = {"kaas.mirantis.com/provider": "baremetal", "cluster.sigs.k8s.io/cluster-name": "c"}
    body = {"metadata": {"name": "m", "labels": labels}, "spec": {"providerSpec": {"value": value}}}
    await cluster_api.create(CONTAINER_CLOUD_MACHINES, body, namespace="default")
    kept = await cluster_cli("uninstall", "--force")
    assert (kept.status, "1 Machine of Container Cloud exists: default/m" in kept.err) == (1, True), kept
    await cluster_api.delete(CONTAINER_CLOUD_MACHINES, "m", namespace="default")
    gone = await cluster_cli("uninstall", "--force")
    assert gone.status == 0, gone.err
    assert f"deployment.apps/{CONTAINER_CLOUD_CONTROLLER} deleted" in gone.out
    assert f"  customresourcedefinition.apiextensions.k8s.io/{name}" in gone.out
    assert (await cluster_cli("uninstall", "--delete-data", "--force")).status == 0
    assert await is_gone(cluster_api, name)


async def is_gone(api: HttpApi, definition: str) -> bool | None:
    try:
        await api.get(CRDS, definition)
    except NotFound:
        return True
    return None


async def test_beside_up_the_controllers_are_found_running(up_cli: Cli, up_api: HttpApi) -> None:
    before = await revision(up_api)
    tried = await up_cli("install", "-v", "--dry-run", "server")
    assert set(told(tried)) == {"unchanged (server dry run)"}
    ran = await up_cli("install", "-v", "--cluster-dns", "10.96.0.10", "--api-server-endpoint", "api.example.com")
    assert ran.status == 0, ran.err
    assert "--cluster-dns: no effect, as no Deployment runs machina" in ran.err
    assert "set it with `unbounded up --cluster-dns ADDRESS`" in ran.err
    assert "set it with `unbounded up --bind 0.0.0.0 --advertise-address ADDRESS`" in ran.err
    assert set(told(ran)) == {"unchanged"}
    images = await up_cli("install", "--image-registry", "registry.example.com")
    assert "--image-registry: no effect, as no Deployment runs the controllers" in images.err
    assert "machina runs: unbounded up" in ran.out
    assert "machine-ops-controller runs: unbounded up" in ran.out
    assert "metalman runs: unbounded up" in ran.out
    assert await revision(up_api) == before
    ran = await up_cli("site", "deploy-pxe", "--site", "rack1")
    assert (ran.status, "metalman runs for all sites: unbounded up" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--namespace", "other"], "--namespace: 'other' is not supported"),
        (["--api-server-endpoint", "http://x"], "--api-server-endpoint: 'http://x' is not an address of an API server"),
        (["--cluster-dns", "kube-dns"], "--cluster-dns: 'kube-dns' is not an IP address"),
        (["--artifact-mirror", "mirror"], "--artifact-mirror: 'mirror' is not a URL"),
        (["--agent-image", "https://x/y"], "--agent-image: "),
        (["--image", "r.example.com/machina:a b"], "--image: "),
        (["--image-registry", "https://r.example.com"], "--image-registry: 'https://r.example.com' is not a registry"),
        (["--site", "west"], "--site applies only to machine-ops-controller"),
        ([ENABLE, "--site", "West"], "--site: 'West' is not the name of a site"),
        ([ENABLE, "--provider", "acme/vm"], "--provider: 'acme/vm' is not the name of a provider"),
        ([ENABLE, "--machine-ops-image", "https://x/y"], "--machine-ops-image: "),
        (["--console", "--console-image", "https://x/y"], "--console-image: "),
        (["--container-cloud", "--container-cloud-image", "r.example.com/A:1"], "--container-cloud-image: "),
    ],
    ids=[
        "namespace",
        "endpoint",
        "dns",
        "mirror",
        "image",
        "own image",
        "registry",
        "nobody's site",
        "site",
        "provider",
        "cloud image",
        "console image",
        "container-cloud image",
    ],
)
async def test_what_cannot_be_meant_is_refused(arguments: list[str], words: str, up_cli: Cli) -> None:
    ran = await up_cli("install", *arguments)
    assert (ran.status, words in ran.err) == (2, True), ran.err


async def test_the_manifests_are_printed_as_kubectl_takes_them(up_cli: Cli) -> None:
    printed = ("install", "--image-registry", HERE, "--dry-run", "client", "-o")
    as_json, as_yaml = await up_cli(*printed, "json"), await up_cli(*printed, "yaml")
    items = json.loads(as_json.out)["items"]
    assert items == list(yaml.load_all(as_yaml.out, Loader=yaml.CSafeLoader))
    assert [items[0]["kind"], items[-1]["kind"]] == ["CustomResourceDefinition", "Deployment"]
    with_clouds = json.loads((await up_cli(*printed, "json", ENABLE, "--site", "west")).out)["items"]
    assert with_clouds[: len(items)] == items
    wanted = machine_ops_objects((MachineOpsWorkload(image_of(MACHINE_OPS, HERE), "west"),), machine_ops_config())
    assert with_clouds[len(items) :] == list(wanted)


@pytest.mark.parametrize("version", ["v1.32.0", "v1.40.1-eks-1", "v2.0.0", "v0.0.0-master+faecb196815e2"])
def test_a_cluster_with_all_that_definitions_need_is_taken(version: str) -> None:
    require_kubernetes(version)


@pytest.mark.parametrize("version", ["v1.20.2", "v1.31.9+k3s1"])
def test_an_older_cluster_is_refused_with_its_version(version: str) -> None:
    with pytest.raises(CliError, match=rf"Kubernetes {re.escape(version)}, and Unbounded needs 1\.32 or newer"):
        require_kubernetes(version)
