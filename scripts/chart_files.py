"""deploy/chart: the objects of deploy/ as a Helm chart with values.

The chart, kustomize and `install` share their objects. Placeholders mark the fields that a value decides, and become
Helm's expressions in the text. So the chart has each new field of an object too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from scripts import crd_files, deploy_files, manifest_files, packages
from scripts.crd_files import as_yaml
from scripts.deploy_files import HEADER, ROOT
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import workloads
from unbounded.cli.deploy.console_workload import (
    ALLOW_OPERATIONS,
    CONSOLE,
    OIDC_CA,
    OIDC_CA_VOLUME,
    OIDC_CLIENT,
    ConsoleOidc,
    ConsoleWorkload,
    SecretKey,
    console_objects,
)
from unbounded.cli.deploy.objects import CONFIG_DIGEST, CONFIG_FILE
from unbounded.cli.deploy.pods import MODES, PRIVILEGED, RESTRICTED, ROOT_CA
from unbounded.cli.deploy.workloads import (
    CONTAINER_CLOUD,
    MACHINE_OPS,
    ContainerCloudWorkload,
    MachinaWorkload,
    MachineOpsWorkload,
    MetalmanWorkload,
)
from unbounded.console.oidc_settings import CA_FILE, CLIENT_ID, CLIENT_SECRET_FILE, ISSUER_URL, SCOPES

Raw = dict[str, Any]

FOLDER: Final = "deploy/chart"
SOURCES: Final = ROOT / "scripts" / "chart"
SITE, PROVIDER, INTERFACE, RELAYS = "xsitex", "xproviderx", "xinterfacex", "xrelaysx"
MEDIA_SECRET, MEDIA_URL = "xmediasecretx", "xmediaurlx"
CLUSTER_DNS, MIRROR = "xclusterdnsx", "xmirrorx"
OIDC_SECRET: Final = SecretKey("xsecretx", "xsecretkeyx")
OIDC: Final = ConsoleOidc("xissuerx", "xclientx", OIDC_SECRET, "xcax", ("xscopesx",))
KEEP_CONSOLE: Final = "--keep-console-output=false"
CONTAINER_CLOUD_KEY: Final = "containerCloud"
VALUES: Final = {  # keys of values.yaml
    "machina": "machina",
    MACHINE_OPS: "machineOps",
    "metalman": "metalman",
    CONTAINER_CLOUD: CONTAINER_CLOUD_KEY,
    CONSOLE: "console",
}
IMAGE, RESOURCES, PULL, CONFIG_MAP = "ximagex", "xresourcesx", "xpullx", "xconfigmapx"
DOCS: Final = "https://docs.example.com"  # in the runbook links of deploy/monitoring/rules.yaml
KEEP: Final = "helm.sh/resource-policy: keep\n"


def files() -> dict[str, str]:
    """Return each file of the chart by its path."""
    version = packages.version()
    found = {
        "Chart.yaml": HEADER + as_yaml(_chart(str(version))),
        "values.yaml": (SOURCES / "values.yaml").read_text(),
        "values.schema.json": json.dumps(json.loads((SOURCES / "values.schema.json").read_text()), indent=2) + "\n",
        "templates/_helpers.tpl": (SOURCES / "helpers.tpl").read_text().replace("@HEADER@", HEADER.strip()),
        **dict(_shared_files()),
        "templates/machina.yaml": _when("machina.enabled", _machina()),
        "templates/machine-ops-controller.yaml": _machine_ops(),
        "templates/metalman.yaml": _metalman(),
        **dict(_container_cloud_files()),
        f"templates/{CONSOLE}.yaml": _when("console.enabled", _console()),
        "templates/monitoring.yaml": _when("monitoring.enabled", _monitoring()),
    }
    return {f"{FOLDER}/{path}": text for path, text in found.items()}


def _chart(version: str) -> Raw:
    return {
        "apiVersion": "v2",
        "name": "unbounded",
        "description": "The control plane for the life of machines that become Kubernetes nodes.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.32.0-0",
    }


def _shared_files() -> Iterable[tuple[str, str]]:
    """Yield the templates that the chart shares with deploy/: definitions, rights, policies and the namespace."""
    texts = {**crd_files.files(), **manifest_files.files(), **deploy_files.files()}
    for path, text in sorted(texts.items()):
        parts = Path(path).parts[1:]
        if parts[0] in ("components", "images") or parts[-1] == "kustomization.yaml":
            continue
        if Path(path).suffix != ".yaml":
            continue
        escaped = _escaped(text)
        if parts[0] == "crd":
            escaped = _when("crds.install", _outliving("crds.keep", escaped))
        elif parts[-1] == "namespace.yaml":
            escaped = _when("namespace.create", _outliving("namespace.keep", _privileged_with_metalman(escaped)))
        yield f"templates/{'-'.join(parts)}", escaped


def _escaped(text: str) -> str:
    """Return a text in which Helm finds no expression."""
    return text.replace("{{", "\0").replace("\0", '{{ "{{" }}')


def _container_cloud_files() -> Iterable[tuple[str, str]]:
    """Yield the templates of Container Cloud: definitions, rights, policies and the process."""
    on = f"{CONTAINER_CLOUD_KEY}.enabled"
    for path, text in sorted(crd_files.container_cloud_files().items()):
        definition = _when("crds.install", _outliving("crds.keep", _escaped(text)))
        yield f"templates/crd-{CONTAINER_CLOUD}-{Path(path).name}", _when(on, definition)
    for path, text in sorted(manifest_files.container_cloud_files().items()):
        yield f"templates/{Path(path).stem}-{CONTAINER_CLOUD}.yaml", _when(on, _escaped(text))
    bodies = workloads.container_cloud_objects(ContainerCloudWorkload(IMAGE, {}))
    yield (
        f"templates/{CONTAINER_CLOUD}.yaml",
        _when(on, HEADER + _written(bodies, CONTAINER_CLOUD, lambda text: text)),
    )


def _monitoring() -> str:
    container_cloud, console = (
        f"---\n{as_yaml(one)}" for one in (workloads.container_cloud_monitor(), workloads.console_monitor())
    )
    rules = _escaped(as_yaml(deploy_files.alert_rules())).replace(DOCS, "{{ $.Values.monitoring.docsURL }}")
    return "".join(
        (
            _documents(map(as_yaml, workloads.monitors())),
            _when(f"{CONTAINER_CLOUD_KEY}.enabled", container_cloud),
            _when("console.enabled", console),
            _when("monitoring.rules", f"---\n{rules}"),
        )
    )


def _outliving(value: str, text: str) -> str:
    """Let an object outlive the release: deleting a definition deletes all Machines, the namespace their Secrets."""
    if re.search(r"^  annotations:$", text, re.MULTILINE):
        annotation = f"    {{{{- if $.Values.{value} }}}}\n    {KEEP}    {{{{- end }}}}\n"
        return re.sub(r"^  annotations:\n", lambda match: match[0] + annotation, text, count=1, flags=re.MULTILINE)
    annotation = f"  {{{{- if $.Values.{value} }}}}\n  annotations:\n    {KEEP}  {{{{- end }}}}\n"
    return re.sub(r"^metadata:\n", lambda match: match[0] + annotation, text, count=1, flags=re.MULTILINE)


def _privileged_with_metalman(text: str) -> str:
    """Give the namespace the level that metalman's Pods need, as deploy/components/privileged does for kustomize."""
    level = f"{{{{ if $.Values.metalman.sites }}}}{PRIVILEGED}{{{{ else }}}}{RESTRICTED}{{{{ end }}}}"
    for mode in MODES:
        text = text.replace(f"{mode}: {RESTRICTED}", f"{mode}: {level}")
    return text


def _when(value: str, text: str) -> str:
    return f"{{{{- if $.Values.{value} }}}}\n{text}{{{{- end }}}}\n"


def _documents(texts: Iterable[str]) -> str:
    return "".join(f"---\n{text}" for text in texts)


# ---- processes


def _machina() -> str:
    bodies = workloads.machina_objects(MachinaWorkload(IMAGE, workloads.machina_config()))
    return HEADER + _written(bodies, "machina", lambda text: text)


def _console() -> str:
    ca, *others = console_objects(ConsoleWorkload(IMAGE, True, OIDC))
    authorities = as_yaml(ca).replace(f" {OIDC.ca}\n", " |\n{{ $oidc.ca | trim | indent 4 }}\n")
    return "".join(
        (
            HEADER,
            '{{- with include "unbounded.consoleFault" $ }}{{ fail . }}{{ end }}\n',
            "{{- $oidc := $.Values.console.oidc | default dict }}\n",
            "{{- $secret := $oidc.clientSecret | default dict }}\n",
            f"{{{{- if $oidc.ca }}}}\n{_documents([authorities])}{{{{- end }}}}\n",
            _written(others, CONSOLE, _optional_in_console),
        )
    )


def _optional_in_console(text: str) -> str:
    """Replace the placeholders of a provider, and put what not every console has under its condition."""
    for lines, condition in (
        (rf"( +)- {ALLOW_OPERATIONS}\n", "$.Values.console.allowOperations"),
        (rf"( +)- {ISSUER_URL.flag}=.*\n", "$oidc.issuerURL"),
        (rf"( +)- {CLIENT_ID.flag}=.*\n", "$oidc.clientID"),
        (rf"( +)- {CLIENT_SECRET_FILE.flag}=.*\n", "$secret.name"),
        (rf"( +)- {CA_FILE.flag}=.*\n", "$oidc.ca"),
        (rf"( +)- {SCOPES.flag}=.*\n", "$oidc.scopes"),
        (rf"( +)- name: {OIDC_CLIENT}\n(?:\1  .*\n)+", "$secret.name"),
        (rf"( +)- name: {OIDC_CA_VOLUME}\n(?:\1  .*\n)+", "$oidc.ca"),
    ):
        text = re.sub(lines, rf"\1{{{{- if {condition} }}}}\n\g<0>\1{{{{- end }}}}\n", text)
    for flag, value in (
        (ISSUER_URL.flag, "$oidc.issuerURL"),
        (CLIENT_ID.flag, "$oidc.clientID"),
        (SCOPES.flag, '(join "," $oidc.scopes)'),
    ):
        text = re.sub(rf"- {flag}=.*", f'- {{{{ printf "{flag}=%s" {value} | quote }}}}', text)
    text = text.replace(f": {OIDC_SECRET.name}\n", ": {{ $secret.name | quote }}\n")
    return text.replace(f": {OIDC_SECRET.key}\n", ": {{ $secret.key | quote }}\n")


def _machine_ops() -> str:
    def of(site: str, provider: str) -> str:
        one = MachineOpsWorkload(IMAGE, site, provider)
        bodies = workloads.machine_ops_objects((one,), workloads.machine_ops_config())
        if not site and not provider:
            return _written((body for body in bodies if body["kind"] != "ConfigMap"), MACHINE_OPS, lambda text: text)
        return _written(
            (body for body in bodies if body["kind"] != "ConfigMap"),
            MACHINE_OPS,
            lambda text: _scoped(text.replace(one.name, "{{ $name }}")),
        )

    config = [
        body for body in workloads.machine_ops_objects((MachineOpsWorkload(IMAGE),), {}) if body["kind"] == "ConfigMap"
    ]
    cases = (("and .site .provider", SITE, PROVIDER), (".site", SITE, ""), (".provider", "", PROVIDER), ("", "", ""))
    head = '{{- with include "unbounded.machineOpsFault" $ }}{{ fail . }}{{ end }}\n'
    text = f"{HEADER}{head}{{{{- if $.Values.machineOps.deployments }}}}\n"
    text += _written(config, MACHINE_OPS, lambda text: text) + "{{- end }}\n"
    text += '{{- range $.Values.machineOps.deployments }}\n{{- $name := include "unbounded.machineOpsName" . }}\n'
    return text + _cases((condition, of(site, provider)) for condition, site, provider in cases) + "{{- end }}\n"


def _metalman() -> str:
    def of(site: str) -> str:
        return _written(
            workloads.metalman_objects(
                MetalmanWorkload(
                    IMAGE,
                    site,
                    INTERFACE,
                    (RELAYS,),
                    (
                        f"--cluster-dns={CLUSTER_DNS}",
                        f"--artifact-mirror={MIRROR}",
                        f"--media-url={MEDIA_URL}",
                        KEEP_CONSOLE,
                    ),
                    media_secret=MEDIA_SECRET,
                )
            ),
            "metalman",
            _scoped,
        )

    cases = _cases(((".site", of(SITE)), ("", of(""))))
    head = '{{- with include "unbounded.metalmanFault" $ }}{{ fail . }}{{ end }}\n'
    return f"{HEADER}{head}{{{{- range $.Values.metalman.sites }}}}\n{cases}{{{{- end }}}}\n"


def _cases(cases: Iterable[tuple[str, str]]) -> str:
    """Join cases as if, else if and else; only the last one may lack a condition."""
    found = ""
    for number, (condition, text) in enumerate(cases):
        word = f"else if {condition}" if number and condition else f"if {condition}" if condition else "else"
        found += f"{{{{- {word} }}}}\n{text}"
    return found + "{{- end }}\n"


def _scoped(text: str) -> str:
    """Replace the placeholders of site, provider, interface, relays, node settings and virtual media."""
    text = re.sub(rf": {SITE}$", ": {{ .site | quote }}", text, flags=re.MULTILINE)
    text = text.replace(SITE, "{{ .site }}").replace(PROVIDER, "{{ .provider }}")
    none = '{{ if eq (.dhcpMode | default "") "none" }}--dhcp-mode=none{{ else '
    either = (
        f"{none}if .interface }}}}--dhcp-interface={{{{ .interface }}}}{{{{ else }}}}--dhcp-auto-interface{{{{ end }}}}"
    )
    some = '{{- with .relays }}\n        - --dhcp-relay={{ join "," . }}\n        {{- end }}'
    text = text.replace(f"--dhcp-interface={INTERFACE}", either).replace(f"- --dhcp-relay={RELAYS}", some)
    for flag, placeholder, value in (
        ("--cluster-dns", CLUSTER_DNS, "clusterDNS"),
        ("--artifact-mirror", MIRROR, "artifactMirror"),
        ("--media-url", MEDIA_URL, "mediaURL"),
    ):
        given = f"{{{{- with .{value} }}}}\n        - {flag}={{{{ . }}}}\n        {{{{- end }}}}"
        text = text.replace(f"- {flag}={placeholder}", given)
    keep = (
        '{{- if eq (toString .keepConsoleOutput) "false" }}\n        - --keep-console-output=false\n        {{- end }}'
    )
    text = text.replace(f"- {KEEP_CONSOLE}", keep)
    for lines in (
        r"( +)- --media-certificate=.*\n.*\n",
        r"( +)- name: media\n.*mountPath.*\n.*\n",
        r"( +)- name: media\n.*secret:\n.*\n",
    ):
        text = re.sub(lines, r"\1{{- if .mediaSecret }}\n\g<0>\1{{- end }}\n", text)
    return text.replace(MEDIA_SECRET, "{{ .mediaSecret }}")


def _written(bodies: Iterable[Raw], component: str, scoped: Callable[[str], str]) -> str:
    texts = []
    for body in bodies:
        if body["kind"] == "ConfigMap":
            texts.append(_config_map(body, component))
        else:
            texts.append(_expressed(scoped(as_yaml(_marked(body))), component))
    return _documents(texts)


def _config_map(body: Mapping[str, Any], component: str) -> str:
    """Return a ConfigMap; its name changes with its content, as kustomize's does."""
    name, key = body["metadata"]["name"], VALUES[component]
    named = f'{{{{ include "unbounded.configName" (list $ "{name}" "{key}") }}}}'
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {named}\n  namespace: {NAMESPACE}\n"
        f"data:\n  {CONFIG_FILE}: |\n"
        f'{{{{ include "unbounded.config" (list $ "{key}") | indent 4 }}}}\n'
    )


def _marked(body: Raw) -> Raw:
    """Put placeholders where values decide; only Deployments have such fields."""
    if body["kind"] != "Deployment":
        return body
    marked: Raw = json.loads(json.dumps(body))
    template = marked["spec"]["template"]
    annotations = template["metadata"].get("annotations", {})
    annotations.pop(CONFIG_DIGEST, None)  # the name of the ConfigMap has the digest
    if not annotations:
        template["metadata"].pop("annotations", None)
    template["spec"]["containers"][0]["resources"] = RESOURCES  # a second one has those of its manifest
    for volume in template["spec"].get("volumes", ()):
        if "configMap" in volume and volume["configMap"]["name"] not in (ROOT_CA, OIDC_CA):
            volume["configMap"]["name"] = f"{CONFIG_MAP}{volume['configMap']['name']}"
    template["spec"]["imagePullSecrets"] = PULL
    return marked


def _expressed(text: str, component: str) -> str:
    key = VALUES[component]
    text = text.replace(IMAGE, f'{{{{ include "unbounded.image" (list $ "{component}" "{key}") }}}}')
    text = re.sub(
        rf"^( *)((?:- )?)resources: {RESOURCES}$",
        lambda m: f"{m[1]}{m[2]}resources: {{{{- toYaml $.Values.{key}.resources | nindent {len(m[1] + m[2]) + 2} }}}}",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(
        rf"^( *)imagePullSecrets: {PULL}$",
        lambda m: (
            f"{m[1]}{{{{- with $.Values.imagePullSecrets }}}}\n"
            f"{m[1]}imagePullSecrets: {{{{- toYaml . | nindent {len(m[1]) + 2} }}}}\n{m[1]}{{{{- end }}}}"
        ),
        text,
        flags=re.MULTILINE,
    )
    return re.sub(
        rf"{CONFIG_MAP}([a-z-]+)",
        lambda m: f'{{{{ include "unbounded.configName" (list $ "{m[1]}" "{key}") }}}}',
        text,
    )
