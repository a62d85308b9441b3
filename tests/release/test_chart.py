"""The Helm chart renders what kustomize renders, and what `install` brings for a site and a provider."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml
from scripts.deploy_files import REGISTRY

from tests.cli.running import KUBECTL, PATH
from tests.support.paths import ROOT
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.console_workload import (
    CONSOLE,
    ConsoleOidc,
    ConsoleWorkload,
    SecretKey,
    console_objects,
)
from unbounded.cli.deploy.live_machina import image_of
from unbounded.cli.deploy.objects import CONFIG_DIGEST
from unbounded.cli.deploy.workloads import (
    MACHINE_OPS,
    MachineOpsWorkload,
    MetalmanWorkload,
    machine_ops_config,
    machine_ops_objects,
    metalman_objects,
)
from unbounded.console import main as console_main
from unbounded.console.oidc_settings import OidcSettings
from unbounded.containercloud.settings import add_arguments, parse_settings
from unbounded.metalman import flags as metalman_flags

Raw = dict[str, Any]
CHART: Final = ROOT / "deploy" / "chart"
HELM: Final = ROOT / ".venv" / "tools" / "bin" / "helm"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HELM.exists(), reason="needs helm, which scripts/release-tools gets"),
]
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
DIGEST: Final = re.compile(r"(?<=[a-z])-config-[a-z0-9]{10}(?=\n)")
HERE: Final = {"imageRegistry": REGISTRY, "crds": {"keep": False}, "namespace": {"keep": False}}


def helm(values: Raw, folder: Path, *, ok: bool = True) -> str:
    """Return the output of `helm template`, or its error."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    command = [str(HELM), "template", "unbounded", str(ROOT / "deploy" / "chart"), "--values", str(file)]
    env = {"PATH": PATH, "HOME": str(folder)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode == 0) is ok, ran.stderr
    return ran.stdout if ok else ran.stderr


def objects(text: str) -> dict[tuple[str, str], Raw]:
    """By kind and name. Helm and kustomize compute the digest in a ConfigMap's name differently: it is left out."""
    return by_name(yaml.load_all(DIGEST.sub("-config", text), Loader=yaml.CSafeLoader))


def by_name(bodies: Iterable[Raw | None]) -> dict[tuple[str, str], Raw]:
    return {(body["kind"], place(body["metadata"])): body for body in bodies if body}


def place(metadata: Raw) -> str:
    """The name; with the namespace where it is another one than the project's."""
    namespace = metadata.get("namespace", NAMESPACE)
    return str(metadata["name"]) if namespace == NAMESPACE else f"{namespace}/{metadata['name']}"


def kustomized(folder: str) -> dict[tuple[str, str], Raw]:
    ran = subprocess.run(
        [KUBECTL or "kubectl", "kustomize", folder],
        cwd=ROOT,
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    return objects(ran.stdout)


@needs_kubectl
def test_it_renders_what_kustomize_renders(tmp_path: Path) -> None:
    assert objects(helm(HERE, tmp_path)) == kustomized("deploy")


@needs_kubectl
def test_with_all_components_too(tmp_path: Path) -> None:
    beside = os.path.relpath(ROOT / "deploy", tmp_path)
    resources = [beside, *(f"{beside}/components/{name}" for name in (MACHINE_OPS, "metalman"))]
    kustomization = {
        "resources": resources,
        "components": [f"{beside}/components/{name}" for name in ("monitoring", "privileged")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    values = {"machineOps": {"deployments": [{}]}, "metalman": {"sites": [{}]}, "monitoring": {"enabled": True}}
    rendered = objects(helm(HERE | values, tmp_path))
    assert rendered == kustomized(str(tmp_path))
    kinds = [kind for kind, _ in rendered]
    assert (kinds.count("Deployment"), kinds.count("ServiceMonitor")) == (3, 3)


def test_alerts_link_to_the_documentation_of_the_user_or_are_left_out(tmp_path: Path) -> None:
    place = {"enabled": True, "docsURL": "https://docs.internal/unbounded"}
    rendered = objects(helm(HERE | {"monitoring": place}, tmp_path))
    rules = [
        rule for group in rendered["PrometheusRule", "unbounded-alerts"]["spec"]["groups"] for rule in group["rules"]
    ]
    links = {rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
    assert "https://docs.internal/unbounded/docs/alerts.html#unboundednoleader" in links
    assert all(link.startswith("https://docs.internal/unbounded/docs/alerts.html#") for link in links)
    without = objects(helm(HERE | {"monitoring": place | {"rules": False}}, tmp_path))
    assert rendered.keys() - without.keys() == {("PrometheusRule", "unbounded-alerts")}
    assert "docsURL" in helm(HERE | {"monitoring": place | {"docsURL": "docs.internal"}}, tmp_path, ok=False)


@needs_kubectl
def test_with_container_cloud_too(tmp_path: Path) -> None:
    beside = os.path.relpath(ROOT / "deploy", tmp_path)
    kustomization = {
        "resources": [beside, f"{beside}/components/container-cloud"],
        "components": [f"{beside}/components/{name}" for name in ("monitoring", "container-cloud-monitoring")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    values = {"containerCloud": {"enabled": True}, "monitoring": {"enabled": True}}
    rendered = objects(helm(HERE | values, tmp_path))
    assert rendered == kustomized(str(tmp_path))
    definitions = [name for kind, name in rendered if kind == "CustomResourceDefinition"]
    assert "l2templates.ipam.mirantis.com" in definitions
    assert ("ServiceMonitor", "container-cloud-controller") in rendered
    bare = objects(helm(HERE | values | {"crds": {"install": False}}, tmp_path))
    assert not [name for kind, name in bare if kind == "CustomResourceDefinition"]
    own = {"sharedHostNamespaces": "default,stock", "minOtherManagers": 0}  # as values.yaml has it
    assert '{sharedHostNamespaces: "default,stock", minOtherManagers: 0}' in (CHART / "values.yaml").read_text()
    config = {"containerCloud": {"enabled": True, "config": own}}
    given = objects(helm(HERE | config, tmp_path))[("ConfigMap", "container-cloud-config")]
    file = tmp_path / "config.yaml"
    file.write_text(given["data"]["config.yaml"])
    parser = argparse.ArgumentParser()
    add_arguments(parser, {})
    settings, _ = parse_settings(parser.parse_args(["--config", str(file)]), {})
    assert (settings.shared_host_namespaces, settings.min_other_managers) == (("default", "stock"), 0)


@needs_kubectl
def test_with_the_console_too(tmp_path: Path) -> None:
    beside = os.path.relpath(ROOT / "deploy", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [beside, f"{beside}/components/unbounded-console"],
                "components": [
                    f"{beside}/components/{name}" for name in ("monitoring", "unbounded-console-monitoring")
                ],
            }
        )
    )
    rendered = objects(helm(HERE | {"console": {"enabled": True}, "monitoring": {"enabled": True}}, tmp_path))
    assert rendered == kustomized(str(tmp_path))
    monitor = rendered["ServiceMonitor", "unbounded-console"]["spec"]
    service = rendered["Service", "unbounded-console"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["endpoints"]} <= {one["name"] for one in service["spec"]["ports"]}
    pod = rendered["Deployment", "unbounded-console"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    values = {"enabled": True, "image": "example.com/console:mine", "allowOperations": True}
    spec = objects(helm(HERE | {"console": values}, tmp_path))["Deployment", "unbounded-console"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == "example.com/console:mine"
    assert container["args"] == [*pod["containers"][0]["args"], "--allow-operations"]


CA: Final = trustme.CA().cert_pem.bytes().decode()
IDP: Final = {"issuerURL": "https://idp.example.com/realms/a", "clientID": "kube: #1"}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, ConsoleOidc(IDP["issuerURL"], IDP["clientID"])),
        (
            {"clientSecret": {"name": "true"}, "ca": CA, "scopes": ["openid", "groups"]},
            ConsoleOidc(
                IDP["issuerURL"], IDP["clientID"], SecretKey("true", "client-secret"), CA, ("openid", "groups")
            ),
        ),
        (
            {"clientSecret": {"name": "idp", "key": "42"}},
            ConsoleOidc(IDP["issuerURL"], IDP["clientID"], SecretKey("idp", "42")),
        ),
    ],
    ids=["public", "all", "confidential"],
)
def test_the_console_logs_in_with_a_provider_as_with_install(more: Raw, wanted: ConsoleOidc, tmp_path: Path) -> None:
    rendered = objects(helm(HERE | {"console": {"enabled": True, "oidc": IDP | more}}, tmp_path))
    workload = ConsoleWorkload(image_of(CONSOLE, REGISTRY), oidc=wanted)
    assert {key: body for key, body in rendered.items() if CONSOLE in key[1]} == by_name(console_objects(workload))
    pod = rendered["Deployment", CONSOLE]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = console_main.parse(container["args"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    files = {Path(one["mountPath"]): one["name"] for one in container["volumeMounts"]}
    assert settings.oidc is not None
    assert settings.oidc == OidcSettings(
        issuer=wanted.issuer,
        client_id=wanted.client_id,
        client_secret_file=settings.oidc.client_secret_file,
        ca_file=settings.oidc.ca_file,
        scopes=wanted.scopes,
    )
    for file, is_set in ((settings.oidc.client_secret_file, wanted.client_secret), (settings.oidc.ca_file, wanted.ca)):
        assert (file is not None) is bool(is_set)
        assert file is None or files[file.parent] in [one["name"] for one in pod["volumes"]]


def test_the_documented_values_let_the_console_log_in_with_a_provider(tmp_path: Path) -> None:
    given = re.findall(r"--set (\S+)", (ROOT / "docs" / "console.md").read_text())
    command = [str(HELM), "template", "unbounded", str(CHART), "--set", f"imageRegistry={REGISTRY}"]
    command += [word for one in given for word in ("--set", one)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": PATH, "HOME": str(tmp_path)})
    (container,) = objects(ran.stdout)["Deployment", CONSOLE]["spec"]["template"]["spec"]["containers"]
    oidc = console_main.parse(container["args"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).oidc
    assert oidc is not None
    assert (oidc.issuer, oidc.client_id) == ("https://idp.example.com", "kubernetes")
    assert oidc.client_secret_file is not None


@pytest.mark.parametrize(
    ("site", "provider"),
    [("rack1", ""), ("", "AzureVM"), ("phoenix", "OCIInstance"), ("Rack.1", "My_Own"), ("true", ""), ("42", "")],
)
def test_with_a_site_and_a_provider_it_is_what_install_brings(site: str, provider: str, tmp_path: Path) -> None:
    relays = ("10.0.0.1", "10.1.0.0/24") if site == "rack1" else ()
    one = MachineOpsWorkload(image_of(MACHINE_OPS, REGISTRY), site, provider)
    wanted = by_name(machine_ops_objects((one,), machine_ops_config()))
    values: Raw = {"machineOps": {"deployments": [{"site": site, "provider": provider}]}}
    if site and site != "Rack.1":
        values["metalman"] = {"sites": [{"site": site, "interface": "eth1", "relays": list(relays)}]}
        wanted |= by_name(metalman_objects(MetalmanWorkload(image_of("metalman", REGISTRY), site, "eth1", relays)))
    rendered = objects(helm(HERE | values, tmp_path))
    for key, body in wanted.items():
        if key[0] == "ConfigMap":
            continue
        found = rendered[key]
        assert plain(found) == plain(body), key
    assert len(rendered[("Deployment", one.name)]["metadata"]["labels"]) > 1


def plain(body: Raw) -> Raw:
    """Without the digest of settings on Pods, in whose place the chart has one in the name of the ConfigMap."""
    if body["kind"] == "Deployment":
        template = body["spec"]["template"]
        if set(template["metadata"].get("annotations", {})) == {CONFIG_DIGEST}:
            del template["metadata"]["annotations"]
    return body


def test_other_settings_make_other_pods(tmp_path: Path) -> None:
    texts = [helm(HERE | {"machina": {"config": {"clusterDns": dns}}}, tmp_path) for dns in ("10.0.0.1", "10.0.0.2")]
    names = [set(re.findall(r"machina-config-[a-z0-9]{10}", text)) for text in texts]
    assert [len(one) for one in names] == [1, 1]
    assert names[0] != names[1]


def test_values_change_what_they_name_alone(tmp_path: Path) -> None:
    resources = {"limits": {"memory": "1Gi"}}
    values: Raw = {
        "imageRegistry": "registry.example.net/unbounded/",
        "imageTag": "v9",
        "imagePullSecrets": [{"name": "login"}],
        "machina": {"resources": resources, "config": {"apiServerEndpoint": "api.example.com:6443"}},
        "namespace": {"create": False},
    }
    before, after = objects(helm(HERE, tmp_path)), objects(helm(values, tmp_path))
    pod = after[("Deployment", "machina-controller")]["spec"]["template"]["spec"]
    container, explain = pod["containers"]
    assert container["image"] == explain["image"] == "registry.example.net/unbounded/machina:v9"
    assert explain["resources"]["limits"]["memory"] == "512Mi"
    # Helm lays these over the defaults, key by key
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi"}
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    (config,) = [body for (kind, _), body in after.items() if kind == "ConfigMap"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    settings = yaml.safe_load(config["data"]["config.yaml"])
    assert settings == {"apiServerEndpoint": "api.example.com:6443", "maxConcurrentReconciles": 50}
    changed = {key[0] for key in before.keys() ^ after.keys()} | {
        key[0] for key in before.keys() & after.keys() if before[key] != after[key]
    }
    assert changed == {"ConfigMap", "Deployment", "Namespace", "CustomResourceDefinition"}
    for (kind, _), body in after.items():
        if kind == "CustomResourceDefinition":
            assert body["metadata"].get("annotations", {})["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("keeps", [None, True, False])
def test_recordings_of_consoles_are_turned_off_by_a_value(keeps: bool | None, tmp_path: Path) -> None:
    site: Raw = {} if keeps is None else {"keepConsoleOutput": keeps}
    rendered = objects(helm(HERE | {"metalman": {"sites": [site]}}, tmp_path))
    (container,) = rendered[("Deployment", "metalman-controller")]["spec"]["template"]["spec"]["containers"]
    assert ("--keep-console-output=false" in container["args"]) is (keeps is False)


def test_a_site_names_the_mirror_and_the_dns_server_of_its_nodes(tmp_path: Path) -> None:
    site = {"site": "rack1", "interface": "eth1", "artifactMirror": "https://mirror.example.com/all"}
    sites = [site | {"clusterDNS": "10.96.0.10"}, {"site": "rack2", "interface": "eth1"}]
    rendered = objects(helm(HERE | {"metalman": {"sites": sites}}, tmp_path))
    flags = ("--cluster-dns=10.96.0.10", "--artifact-mirror=https://mirror.example.com/all")
    desired = by_name(metalman_objects(MetalmanWorkload(image_of("metalman", REGISTRY), "rack1", "eth1", (), flags)))
    assert metalman_args(rendered, "rack1") == metalman_args(desired, "rack1")
    parser = argparse.ArgumentParser()
    metalman_flags.add_arguments(parser, {}, netboot=True)
    args = parser.parse_args(metalman_args(rendered, "rack1")[1:])
    netboot = metalman_flags.parse_settings(args, {}, netboot=True)[0].netboot
    assert netboot is not None
    assert (netboot.cluster_dns, netboot.artifact_mirror) == ("10.96.0.10", "https://mirror.example.com/all")
    assert not [one for one in metalman_args(rendered, "rack2") if "mirror" in one or "dns" in one]


def metalman_args(bodies: dict[tuple[str, str], Raw], site: str) -> list[str]:
    pod = bodies["Deployment", f"metalman-controller-{site}"]["spec"]["template"]["spec"]
    args: list[str] = pod["containers"][0]["args"]
    return args


def test_machines_and_secrets_outlive_a_release(tmp_path: Path) -> None:
    """`helm uninstall` on a real cluster took the namespace with the SSH keys and credentials of all Machines."""
    rendered = objects(helm({"imageRegistry": REGISTRY}, tmp_path))
    kept = {
        kind
        for (kind, _), body in rendered.items()
        if body["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {"Namespace", "CustomResourceDefinition"}


def console(**oidc: Any) -> Raw:
    return {"console": {"enabled": True, "oidc": oidc}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "imageRegistry: wanted where images come from, such as registry.example.com/unbounded"),
        ({"imageRegistri": "x"}, "imageRegistri"),
        ({"imagePullSecrets": ["login"]}, "imagePullSecrets/0"),
        ({"imageRegistry": "https://registry.example.com"}, "imageRegistry"),
        ({"imageRegistry": "registry.example.com/Team"}, "imageRegistry"),
        ({"imageTag": "a b"}, "imageTag"),
        ({"machina": {"image": "registry.example.com/my machina"}}, "machina/image"),
        ({"metalman": {"sites": [{"site": "no site"}]}}, "metalman/sites/0/site"),
        ({"metalman": {"sites": [{"site": "Rack_1"}]}}, "metalman/sites/0/site"),
        ({"metalman": {"sites": [{"site": "s" * 44}]}}, "metalman/sites/0/site"),
        ({"metalman": {"sites": ["rack1"]}}, "metalman/sites/0"),
        (
            {"metalman": {"sites": [{"site": "a"}, {"site": "b"}, {"site": "a"}]}},
            "metalman.sites[2]: site a is there twice",
        ),
        (
            {"metalman": {"sites": [{}, {"interface": "eth0"}]}},
            "metalman.sites[1]: a site without a name is there twice",
        ),
        (
            {"metalman": {"sites": [{"dhcpMode": "none", "interface": "eth0"}]}},
            "metalman.sites[0]: dhcpMode none excludes interface and relays",
        ),
        (
            {"metalman": {"sites": [{"dhcpMode": "none"}, {"site": "a", "dhcpMode": "none", "relays": ["10.0.0.1"]}]}},
            "metalman.sites[1]: dhcpMode none excludes interface and relays",
        ),
        ({"metalman": {"sites": [{"keepConsoleOutput": "no"}]}}, "metalman/sites/0/keepConsoleOutput"),
        ({"metalman": {"sites": [{"artifactMirror": "mirror.example.com"}]}}, "metalman/sites/0/artifactMirror"),
        ({"metalman": {"sites": [{"artifactMirror": "https://u:p@mirror"}]}}, "metalman/sites/0/artifactMirror"),
        ({"metalman": {"sites": [{"artifactMirror": "https://mirror/?a"}]}}, "metalman/sites/0/artifactMirror"),
        ({"metalman": {"sites": [{"clusterDNS": "kube-dns"}]}}, "metalman/sites/0/clusterDNS"),
        ({"machina": {"resources": {"limit": {}}}}, "machina/resources"),
        ({"machineOps": {"deployments": [{"provider": "a/b"}]}}, "machineOps/deployments/0/provider"),
        (
            {"machineOps": {"deployments": [{"provider": "AzureVM"}, {"site": "rack1"}]}},
            "machineOps.deployments[0] and [1]: both would work on the same Machines",
        ),
        (
            {"machineOps": {"deployments": [{"site": "s" * 60}]}},
            "has more than 63 characters, which a Service's name may have",
        ),
        (console(issuerURL="http://idp.example.com", clientID="a"), "console/oidc/issuerURL"),
        (console(issuerURL="https://a?b", clientID="a"), "console/oidc/issuerURL"),
        (console(issuerURL="https://a:b", clientID="a"), "console/oidc/issuerURL"),
        (console(issuerURL="https://:443/a", clientID="a"), "console/oidc/issuerURL"),
        (console(issuerURL="https://a/é", clientID="a"), "console/oidc/issuerURL"),
        (console(issuerURL="https://a"), "console.oidc: issuerURL needs clientID"),
        (console(clientID="a"), "console.oidc: clientID, clientSecret, ca and scopes need issuerURL"),
        (console(clientSecret={"name": "a"}), "console.oidc: clientID, clientSecret, ca and scopes need issuerURL"),
        (console(**IDP, clientSecret="S3cret"), "console/oidc/clientSecret"),
        (console(**IDP, clientSecret={"name": "S3cret"}), "console/oidc/clientSecret/name"),
        (console(**IDP, clientSecret={"name": "a", "key": ""}), "console/oidc/clientSecret/key"),
        (console(**IDP, scopes=["a b"]), "console/oidc/scopes/0"),
        (console(**IDP, ca="ca.crt"), "console/oidc/ca"),
        (console(**IDP, ca=f"{CA}-----BEGIN PRIVATE KEY-----"), "console.oidc.ca: has a private key"),
    ],
)
def test_values_that_cannot_be_meant_are_named(values: Raw, said: str, tmp_path: Path) -> None:
    whole = values if not values or "imageRegistri" in values else HERE | values
    assert said in helm(whole, tmp_path, ok=False)
