"""deploy/: kustomize renders what the command line brings, and every field in it is one that Kubernetes knows."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.deploy_files import REGISTRY

from tests.cli.running import KUBECTL, PATH
from tests.join.signing import PUBLIC_KEY
from tests.support.paths import ROOT
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.console_workload import (
    CONSOLE,
    OIDC_CLIENT_FILE,
    ConsoleOidc,
    ConsoleWorkload,
    SecretKey,
    console_deployment,
    console_objects,
)
from unbounded.cli.deploy.live_machina import image_of
from unbounded.cli.deploy.machina_settings import SETTINGS, settings_from_flags
from unbounded.cli.deploy.machine_ops import requested_scope, running_as
from unbounded.cli.deploy.objects import CONFIG_DIGEST, config_text
from unbounded.cli.deploy.pods import NOBODY, confined
from unbounded.cli.deploy.workloads import (
    MACHINA_CONFIG,
    MACHINE_OPS,
    MACHINE_OPS_CONFIG,
    ContainerCloudWorkload,
    MachinaWorkload,
    MachineOpsWorkload,
    MetalmanWorkload,
    container_cloud_objects,
    machina_config,
    machina_objects,
    machine_ops_config,
    machine_ops_objects,
    metalman_objects,
    stages,
)
from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import CliError
from unbounded.cli.plugin.parsing import commands
from unbounded.console import main as console_main
from unbounded.console.oidc_settings import OidcSettings
from unbounded.explain_api import settings as explain_settings
from unbounded.join.agent_install import AgentOrigin
from unbounded.kube.config import SERVICE_ACCOUNT
from unbounded.kube.settings import Address
from unbounded.machina import settings as machina_settings
from unbounded.machineops import settings as machineops_settings
from unbounded.machineops.providers.oci.logins import Principal, principal
from unbounded.metalman.flags import add_arguments, parse_settings

Raw = dict[str, Any]
OVERLAY_REGISTRY = "registry.example.net/unbounded"  # of examples/kustomize


@cache
def rendered(folder: str) -> tuple[Raw, ...]:
    if KUBECTL is None:
        pytest.skip("kubectl is not on PATH")
    done = subprocess.run(
        [KUBECTL, "kustomize", folder], cwd=ROOT, env={"PATH": PATH}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


DIGEST = "a" * 64


def named(bodies: Any) -> dict[tuple[str, str, str], Raw]:
    """Objects by kind, namespace and name, without what kustomize appends to the name of a ConfigMap that it made."""
    found = {}
    made = rf"({MACHINA_CONFIG}|{MACHINE_OPS_CONFIG})-[a-z0-9]{{10}}"
    for body in json.loads(re.sub(made, r"\1", json.dumps(list(bodies)))):
        meta = body["metadata"]
        found[body["kind"], meta.get("namespace", ""), meta["name"]] = body
    return found


@pytest.mark.slow
def test_the_base_is_what_install_brings() -> None:
    wanted = named(
        body
        for stage in stages(MachinaWorkload(image_of("machina", REGISTRY), machina_config()))
        for body in stage.objects
    )
    found = named(rendered("deploy"))
    assert found.keys() == wanted.keys()
    for key, body in wanted.items():
        there = found[key]
        if key[0] == "Deployment":  # kustomize gives other content another name
            del body["spec"]["template"]["metadata"]["annotations"][CONFIG_DIGEST]
            assert body["spec"]["template"]["metadata"].pop("annotations") == {}
        if key[0] == "ConfigMap":
            assert set(there["data"]) == set(body["data"])
            assert [yaml.safe_load(one["data"]["config.yaml"]) for one in (there, body)] == [machina_config()] * 2
            continue
        assert there == body


@pytest.mark.slow
def test_an_overlay_gives_a_site_its_metalman_and_machina_its_own_configuration() -> None:
    found = rendered("examples/kustomize")
    by_kind: dict[tuple[str, str], Raw] = {(body["kind"], body["metadata"]["name"]): body for body in found}
    metalman = by_kind["Deployment", "metalman-controller-rack1"]
    machina = by_kind["Deployment", "machina-controller"]
    (config,) = [name for kind, name in by_kind if kind == "ConfigMap" and name.startswith(f"{MACHINA_CONFIG}-")]
    assert machina["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == config
    assert "api.example.com:6443" in by_kind["ConfigMap", config]["data"]["config.yaml"]
    pod = metalman["spec"]["template"]
    deployed, _service = reversed(
        metalman_objects(MetalmanWorkload("registry.example.com/metalman:v0.1.0", "rack1", "eth1"))
    )
    assert metalman["spec"]["selector"] == deployed["spec"]["selector"]
    assert pod["metadata"]["labels"] == deployed["spec"]["template"]["metadata"]["labels"]
    wanted = deployed["spec"]["template"]["spec"]
    assert (pod["spec"]["nodeSelector"], pod["spec"]["containers"][0]["args"]) == (
        wanted["nodeSelector"],
        wanted["containers"][0]["args"],
    )
    assert {body["metadata"]["name"] for body in found if body["kind"] == "ServiceMonitor"} == {
        "machina-controller",
        "machine-ops-controller",
        "metalman-controller",
    }
    services = {body["metadata"]["name"]: body for body in found if body["kind"] == "Service"}
    for monitor in (body for body in found if body["kind"] == "ServiceMonitor"):  # each finds a Service with its port
        wanted_labels = monitor["spec"]["selector"]["matchLabels"].items()
        ports = [
            port["name"]
            for service in services.values()
            if wanted_labels <= service["metadata"]["labels"].items()
            for port in service["spec"]["ports"]
        ]
        assert set(ports) - {"explain"} == {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}


@pytest.mark.slow
def test_overlay_deploys_a_controller_per_cloud_with_workload_identity() -> None:
    found = rendered("examples/kustomize")
    by_kind: dict[tuple[str, str], Raw] = {(body["kind"], body["metadata"]["name"]): body for body in found}
    azure = MachineOpsWorkload(f"{OVERLAY_REGISTRY}/machine-ops-controller:v0.1.0", provider="AzureVM")
    phoenix = replace(azure, site="phoenix", provider="OCIInstance")
    assert not azure.shares_with(phoenix)
    for one in (azure, phoenix):
        _, service, budget, network, wanted = machine_ops_objects((one,), {})
        assert by_kind["Service", one.name] == service
        assert by_kind["PodDisruptionBudget", one.name] == budget
        assert by_kind["NetworkPolicy", one.name] == network
        there = by_kind["Deployment", one.name]
        assert running_as(there).scope == one
        pod, as_installed = there["spec"]["template"], wanted["spec"]["template"]
        config = next(volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if volume["name"] == "config")
        assert "api.example.com:6443" in by_kind["ConfigMap", config]["data"]["config.yaml"]
        as_installed["spec"]["volumes"][0]["configMap"]["name"] = config
        as_installed["metadata"].pop("annotations")
        if one is azure:  # the label that the webhook of Azure's workload identity selects
            as_installed["metadata"]["labels"]["azure.workload.identity/use"] = "true"
            account = by_kind["ServiceAccount", pod["spec"]["serviceAccountName"]]
            assert account["metadata"]["annotations"].keys() == {"azure.workload.identity/client-id"}
        else:
            environ = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
            assert principal(environ | {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) is Principal.WORKLOAD
            as_installed["spec"]["containers"][0]["env"] = pod["spec"]["containers"][0]["env"]
        assert there["spec"] == wanted["spec"]


@pytest.mark.slow
def test_overlay_lets_the_console_log_in_with_a_provider_as_install_does() -> None:
    (there,) = [
        body
        for body in rendered("examples/kustomize")
        if (body["kind"], body["metadata"]["name"]) == ("Deployment", CONSOLE)
    ]
    oidc = ConsoleOidc("https://idp.example.com", "kubernetes", SecretKey(f"{CONSOLE}-oidc", "client-secret"))
    assert there == console_deployment(ConsoleWorkload(f"{OVERLAY_REGISTRY}/{CONSOLE}:v0.1.0", oidc=oidc))
    args = there["spec"]["template"]["spec"]["containers"][0]["args"]
    assert console_main.parse(args, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).oidc == OidcSettings(
        issuer=oidc.issuer, client_id=oidc.client_id, client_secret_file=Path(OIDC_CLIENT_FILE)
    )


@pytest.mark.slow
def test_a_base_of_metalman_is_for_machines_without_a_site() -> None:
    found = named(rendered("deploy/components/metalman"))
    assert found == named(metalman_objects(MetalmanWorkload(image_of("metalman", REGISTRY))))


@pytest.mark.slow
def test_a_base_of_machine_ops_controller_is_for_all_sites_and_providers() -> None:
    found = named(rendered("deploy/components/machine-ops-controller"))
    config = machine_ops_config()
    wanted = named(machine_ops_objects((MachineOpsWorkload(image_of(MACHINE_OPS, REGISTRY)),), config))
    del wanted["Deployment", NAMESPACE, MACHINE_OPS]["spec"]["template"]["metadata"]["annotations"]
    there = found.pop(("ConfigMap", NAMESPACE, MACHINE_OPS_CONFIG))["data"]["config.yaml"]
    told = wanted.pop(("ConfigMap", NAMESPACE, MACHINE_OPS_CONFIG))["data"]["config.yaml"]
    assert found == wanted
    assert yaml.safe_load(there) == yaml.safe_load(told) == config


@pytest.mark.slow
def test_no_field_is_one_that_kubernetes_does_not_know() -> None:
    """Its own Python client reads what it knows, and drops the rest."""
    from kubernetes import client

    api: Any = client.ApiClient()
    oidc = ConsoleOidc("https://idp.example.com", "kubernetes", SecretKey("idp", "key"), "PEM", ("groups",))
    others = (
        *metalman_objects(MetalmanWorkload("image", "rack1")),
        *machine_ops_objects((MachineOpsWorkload("image"), MachineOpsWorkload("image", "west", "AzureVM")), {}),
        *container_cloud_objects(ContainerCloudWorkload("image")),
        *console_objects(ConsoleWorkload("image", allow_operations=True, oidc=oidc)),
    )
    for stage in stages(MachinaWorkload("image"), others, container_cloud=True):
        for body in stage.objects if stage.name != "definitions" else ():
            read = api.deserialize(json.dumps(body), f"V1{body['kind']}", "application/json")
            assert api.sanitize_for_serialization(read) == body


def test_container_of_explanations_has_no_token_of_the_account() -> None:
    """The account's token is mounted where no other volume is: the authority of the API server is there."""
    explain = next(one for one in pods()["machina-controller"]["containers"] if one["name"] == "explain")
    (mount,) = [one for one in explain["volumeMounts"] if one["mountPath"] == str(SERVICE_ACCOUNT)]
    (volume,) = [one for one in pods()["machina-controller"]["volumes"] if one["name"] == mount["name"]]
    assert volume["configMap"] == {"name": "kube-root-ca.crt"}
    assert Path(explain_settings.IN_CLUSTER_CA) == SERVICE_ACCOUNT / "ca.crt"
    assert explain["securityContext"] == confined()
    parser = argparse.ArgumentParser()
    explain_settings.add_arguments(parser, {})
    settings = explain_settings.parse_settings(
        parser.parse_args(explain["args"]), {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    )
    ports = {one["name"]: one["containerPort"] for one in explain["ports"]}
    assert (settings.tls, settings.health) == (Address("", ports["explain"]), Address("", ports["explain-health"]))
    assert (settings.plain, settings.api_server) == (Address("127.0.0.1", 8090), "https://10.96.0.1:443")


def pods() -> dict[str, Raw]:
    clouds = machine_ops_objects((MachineOpsWorkload("image", "west", "AzureVM"),), {})
    bodies = (
        *machina_objects(MachinaWorkload("image")),
        *clouds,
        *metalman_objects(MetalmanWorkload("image", "rack1")),
    )
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"] for body in bodies if body["kind"] == "Deployment"
    }


@pytest.mark.parametrize(
    "name", ["machina-controller", "machine-ops-controller-west-azurevm", "metalman-controller-rack1"]
)
def test_a_process_has_no_more_rights_on_its_node_than_it_needs(name: str) -> None:
    pod = pods()[name]
    container, *others = pod["containers"]
    assert [one["name"] for one in others] == ["explain"] * (name == "machina-controller")
    confined = container["securityContext"]
    assert confined["readOnlyRootFilesystem"] is True
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"]["drop"] == ["ALL"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set(container["resources"]) == {"requests", "limits"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}
    assert ports["health"] == 8081
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written >= {"/tmp"}
    if name != "metalman-controller-rack1":
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == NOBODY
        assert "add" not in confined["capabilities"]
        assert "hostNetwork" not in pod
    else:
        assert confined["capabilities"]["add"] == ["NET_BIND_SERVICE", "NET_RAW"]
        assert "/var/cache/metalman" in written


def test_metalman_understands_what_its_deployment_tells_it() -> None:
    args = pods()["metalman-controller-rack1"]["containers"][0]["args"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser, {}, netboot=True)
    settings, process = parse_settings(parser.parse_args(args[1:]), {}, netboot=args[0] == "serve-pxe")
    assert settings.netboot is not None
    assert (settings.site, settings.netboot.auto_interface) == ("rack1", True)
    assert str(settings.netboot.cache_dir) == "/var/cache/metalman"
    assert [address.port for address in process.health] == [8081]


def test_machina_understands_what_its_deployment_and_its_configuration_tell_it(tmp_path: Path) -> None:
    flags = {"--api-server-endpoint": "api.example.com:6443", "--cluster-dns": "10.96.0.10", "--agent-version": "v1"}
    flags |= dict.fromkeys(("--agent-base-url", "--agent-url", "--artifact-mirror"), "https://mirror.example.com")
    flags |= {
        "--agent-image": "registry.example.com/node:v1",
        "--agent-sha256": DIGEST,
        "--agent-public-key": PUBLIC_KEY,
    }
    _, args = parsing.parse(
        commands(), ["install", *(word for pair in flags.items() for word in pair)], program="", others={}
    )
    config = machina_config({"clusterDns": "10.0.0.1"}, settings_from_flags(args))
    (tmp_path / "config.yaml").write_text(config_text(config))
    args = pods()["machina-controller"]["containers"][0]["args"]
    assert args == ["controller", "--config", "/etc/machina/config.yaml"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    machina_settings.add_arguments(parser, {})
    given = parser.parse_args([args[1], str(tmp_path / "config.yaml")])
    process, settings, without_meaning = machina_settings.settings_of(given, {})
    assert without_meaning == []
    assert (settings.apiserver_endpoint, settings.cluster_dns) == ("https://api.example.com:6443", "10.96.0.10")
    told = {key: value for key, value in config.items() if key not in ("apiServerEndpoint", "maxConcurrentReconciles")}
    assert told["clusterDns"] == "10.96.0.10"
    assert machina_settings.config_values(settings) == told  # in the form of `unbounded up`
    assert [address.port for address in process.health] == [8080, 8081]
    assert process.leader_election is True  # it runs twice


def test_machine_ops_controller_understands_what_its_deployment_and_its_configuration_tell_it(tmp_path: Path) -> None:
    hosts = {"apiServerEndpoint": "api.example.com:6443", "clusterDns": "10.96.0.10", "agentVersion": "v1"}
    hosts |= dict.fromkeys(("agentBaseUrl", "agentUrl", "artifactMirror"), "https://mirror.example.com")
    hosts |= {"agentImage": "registry.example.com/node:v1", "agentSha256": DIGEST, "agentPublicKey": PUBLIC_KEY}
    assert hosts.keys() == {setting.key for setting in SETTINGS}  # all settings that machina passes to hosts
    (tmp_path / "config.yaml").write_text(config_text(machine_ops_config({"maxConcurrentReconciles": 3}, hosts)))
    pod = pods()["machine-ops-controller-west-azurevm"]
    assert pod["serviceAccountName"] == MACHINE_OPS
    args = pod["containers"][0]["args"]
    assert args[:3] == ["controller", "--config", "/etc/machine-ops-controller/config.yaml"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    machineops_settings.add_arguments(parser, {})
    given = parser.parse_args([args[1], str(tmp_path / "config.yaml"), *args[3:]])
    settings, process = machineops_settings.parse_settings(given, {})
    assert (settings.site, settings.provider, settings.concurrent) == ("west", "AzureVM", 3)
    assert settings.secret_namespace == NAMESPACE
    assert (settings.api_server_endpoint, settings.cluster_dns) == ("https://api.example.com:6443", "10.96.0.10")
    assert settings.origin == AgentOrigin("v1", hosts["agentBaseUrl"], hosts["agentUrl"], DIGEST)
    assert settings.agent_public_key == PUBLIC_KEY
    assert (settings.artifact_mirror, settings.agent_image) == (hosts["artifactMirror"], hosts["agentImage"])
    assert [address.port for address in process.health] == [8080, 8081]
    assert process.leader_election is True  # it runs twice


def test_no_pod_belongs_to_two_deployments() -> None:
    """Its eviction is refused where two PodDisruptionBudgets are for it."""
    clouds = (
        MachineOpsWorkload("image"),
        MachineOpsWorkload("image", "west"),
        MachineOpsWorkload("image", "west", "AzureVM"),
    )
    bodies = machine_ops_objects(clouds, {})
    pods = [body["spec"]["template"]["metadata"]["labels"] for body in bodies if body["kind"] == "Deployment"]
    for kind in ("PodDisruptionBudget", "Deployment", "Service"):
        found = [body["spec"]["selector"] for body in bodies if body["kind"] == kind]
        selectors: list[dict[str, str]] = [selector.get("matchLabels", selector) for selector in found]
        assert [[one.items() <= pod.items() for pod in pods] for one in selectors] == [
            [mine == other for other in range(3)] for mine in range(3)
        ]


def test_a_site_with_a_long_name_gives_names_that_kubernetes_takes() -> None:
    for body in metalman_objects(MetalmanWorkload("image", "s" * 43)):
        assert len(body["metadata"]["name"]) <= 63
    for site, longest in (("s" * 32, "AzureVM"), ("s" * 40, "")):
        asked = argparse.Namespace(
            enable_machine_ops_controller=True, site=site, provider=longest, machine_ops_image=""
        )
        found = requested_scope(asked)
        assert found is not None
        assert len(found.name) == 63
        asked.site += "s"
        with pytest.raises(CliError, match="has 64 characters of at most 63"):
            requested_scope(asked)


def test_other_contents_of_the_configuration_make_other_pods() -> None:
    digests = {
        machina_objects(MachinaWorkload("image", machina_config(given={"clusterDns": dns})))[-1]["spec"]["template"][
            "metadata"
        ]["annotations"][CONFIG_DIGEST]
        for dns in ("", "10.96.0.10", "10.96.0.11")
    }
    assert len(digests) == 3
