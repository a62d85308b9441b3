"""The project's objects on a cluster: the Deployments of its processes, and all objects in stages. Pure.

`deploy/components/` is generated from it; `install`, `site init` and `site deploy-pxe` apply the same objects. Those of
the console are in `console_workload`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.api.crd import container_cloud_definitions, custom_resource_definitions
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import objects, pods
from unbounded.cli.deploy.console_workload import CONSOLE
from unbounded.cli.deploy.pods import RESTRICTED, deny_all, namespace, priority_class
from unbounded.cli.manifests import container_cloud_manifests, manifests
from unbounded.kube.process_epoch import SYSTEM
from unbounded.machineops.settings import deployment_name

Raw = dict[str, Any]

MACHINA: Final = "machina-controller"
METALMAN: Final = "metalman-controller"
MACHINE_OPS: Final = "machine-ops-controller"
MACHINA_CONFIG: Final = "machina-config"
CONTAINER_CLOUD: Final = "container-cloud"
CONTAINER_CLOUD_CONTROLLER: Final = "container-cloud-controller"
CONTAINER_CLOUD_CONFIG: Final = "container-cloud-config"
MACHINE_OPS_CONFIG: Final = "machine-ops-controller-config"
EK_CA_FOLDER: Final = "/etc/unbounded/ek-ca"
EK_CA_FILE: Final = "roots.pem"
MEDIA_FOLDER: Final = "/etc/unbounded/media"
WITHOUT_INTERFACE: Final = frozenset({"--dhcp-mode=none", "--dhcp-mode=relay"})
CACHE: Final = "/var/cache/metalman"
_METRICS: Final = {"name": "metrics", "port": 8080, "targetPort": "metrics"}

# The memory limit allows for 10,000 Machines, above the reference's 256Mi.
_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}
EXPLAIN: Final = "unbounded-explain"
EXPLAIN_TLS: Final = "unbounded-explain-tls"  # a Secret of the user, with tls.crt and tls.key
EXPLAIN_TLS_FOLDER: Final = "/etc/unbounded-explain/tls"
_EXPLAIN: Final = {"protocol": "TCP", "name": "explain", "port": 443, "targetPort": "explain"}
_EXPLAIN_METRICS: Final = {"protocol": "TCP", "name": "explain-metrics", "port": 8082, "targetPort": "explain-health"}
_EXPLAIN_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "128Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}
POLICIES: Final = frozenset({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})


@dataclass(frozen=True)
class MachinaWorkload:
    """The Deployment of machina.

    Args:
        config: keys and values of its file.
    """

    image: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerCloudWorkload:
    """The Deployment of container-cloud.

    Args:
        config: keys and values of its file.
    """

    image: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetalmanWorkload:
    """The Deployment of the metalman of one site.

    Args:
        site: empty for the Machines without one.
        interface: of DHCP; empty for the one with the address that machines reach.
        relays: addresses and networks of the site's DHCP relays; empty for any.
        options: other flags of `metalman serve-pxe`, each as --NAME=VALUE.
        ek_ca: PEM with roots that the certificate of a TPM must chain to; empty for none.
        media_secret: Secret of unbounded-kube with the certificate and the key by which boot images are served to BMCs
            (type kubernetes.io/tls); empty to serve none.
    """

    image: str
    site: str = ""
    interface: str = ""
    relays: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ek_ca: str = ""
    media_secret: str = ""

    @property
    def name(self) -> str:
        return f"{METALMAN}-{self.site}" if self.site else METALMAN


@dataclass(frozen=True)
class MachineOpsWorkload:
    """A Deployment of machine-ops-controller.

    Args:
        site: the site of its Machines; empty for all sites.
        provider: likewise; empty for all providers that its image has.
    """

    image: str
    site: str = ""
    provider: str = ""

    @property
    def name(self) -> str:
        """The name of its objects."""
        return deployment_name(self.site, self.provider)

    def shares_with(self, other: MachineOpsWorkload) -> bool:
        """Return whether both can serve the same Machine."""
        sites, providers = {self.site, other.site}, {self.provider, other.provider}
        return all("" in scope or len(scope) == 1 for scope in (sites, providers))


def machina_config(existing: Mapping[str, Any] | None = None, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return machina's configuration: the given settings over the existing ones over the defaults."""
    return {"maxConcurrentReconciles": 50} | dict(existing or {}) | dict(given or {})


def machina_objects(machina: MachinaWorkload) -> tuple[Raw, ...]:
    """Return machina's objects beside its account and rights, in the order of application."""
    return (
        machina_config_map(machina.config),
        machina_service(),
        machina_budget(),
        machina_network(),
        machina_deployment(machina.image, annotations=objects.config_digest(machina.config)),
    )


def machina_config_map(config: Mapping[str, Any]) -> Raw:
    return objects.config_map(MACHINA_CONFIG, objects.selector_of("machina"), config)


def machina_service() -> Raw:
    service = objects.service(MACHINA, objects.selector_of("machina"), _METRICS)
    service["spec"]["ports"] += [dict(_EXPLAIN), dict(_EXPLAIN_METRICS)]
    return service


def machina_budget() -> Raw:
    return objects.budget(MACHINA, objects.selector_of("machina"))


def machina_network() -> Raw:
    return pods.controller_network(
        MACHINA, objects.selector_of("machina"), served="explain", scraped=("metrics", "explain-health")
    )


def machina_deployment(image: str, *, annotations: Mapping[str, str] | None = None) -> Raw:
    selector = objects.selector_of("machina")
    pod = _leading_pod("machina", image, ["controller"], MACHINA_CONFIG, selector)
    pod["containers"].append(_explain_container(image))
    pod["volumes"] += [
        {"name": "api-server-ca", "configMap": {"name": pods.ROOT_CA}},
        {"name": "explain-tls", "secret": {"secretName": EXPLAIN_TLS, "optional": True}},
    ]
    return objects.deployment(MACHINA, selector, pod, replicas=2, annotations=annotations)


def _explain_container(image: str) -> Raw:
    """Return the container that serves explanations and plans."""
    return {
        "name": "explain",
        "image": image,
        "command": [EXPLAIN],
        **pods.tls_server(
            "explain", "explain-health", "explain-tls", EXPLAIN_TLS_FOLDER, objects.copied(_EXPLAIN_RESOURCES)
        ),
    }


def container_cloud_objects(workload: ContainerCloudWorkload) -> tuple[Raw, ...]:
    """Return container-cloud's objects beside its account and rights, in the order of application."""
    return (
        container_cloud_config_map(workload.config),
        container_cloud_service(),
        container_cloud_budget(),
        container_cloud_network(),
        container_cloud_deployment(workload.image, annotations=objects.config_digest(workload.config)),
    )


def container_cloud_config_map(config: Mapping[str, Any]) -> Raw:
    return objects.config_map(CONTAINER_CLOUD_CONFIG, objects.selector_of(CONTAINER_CLOUD), config)


def container_cloud_service() -> Raw:
    return objects.service(CONTAINER_CLOUD_CONTROLLER, objects.selector_of(CONTAINER_CLOUD), _METRICS)


def container_cloud_budget() -> Raw:
    return objects.budget(CONTAINER_CLOUD_CONTROLLER, objects.selector_of(CONTAINER_CLOUD))


def container_cloud_network() -> Raw:
    return pods.controller_network(CONTAINER_CLOUD_CONTROLLER, objects.selector_of(CONTAINER_CLOUD))


def container_cloud_deployment(image: str, *, annotations: Mapping[str, str] | None = None) -> Raw:
    selector = objects.selector_of(CONTAINER_CLOUD)
    pod = _leading_pod(CONTAINER_CLOUD, image, ["controller"], CONTAINER_CLOUD_CONFIG, selector)
    return objects.deployment(CONTAINER_CLOUD_CONTROLLER, selector, pod, replicas=2, annotations=annotations)


def machine_ops_config(existing: Mapping[str, Any] | None = None, hosts: Mapping[str, Any] | None = None) -> Raw:
    """Return the configuration of machine-ops-controller: machina's settings of new hosts over the existing ones."""
    return {"maxConcurrentReconciles": 10} | dict(existing or {}) | dict(hosts or {})


def machine_ops_objects(deployments: Sequence[MachineOpsWorkload], config: Mapping[str, Any]) -> tuple[Raw, ...]:
    """Return machine-ops-controller's objects beside its account and rights, in the order of application.

    Args:
        config: for all Deployments; no ConfigMap is returned where there are none.
    """
    found: list[Raw] = [machine_ops_config_map(config)] if deployments else []
    for one in deployments:
        digest = objects.config_digest(config)
        found += [machine_ops_service(one), machine_ops_budget(one), machine_ops_network(one)]
        found.append(machine_ops_deployment(one, annotations=digest))
    return tuple(found)


def machine_ops_config_map(config: Mapping[str, Any]) -> Raw:
    return objects.config_map(MACHINE_OPS_CONFIG, objects.selector_of(MACHINE_OPS), config)


def machine_ops_service(one: MachineOpsWorkload) -> Raw:
    return objects.service(one.name, _selector_of(one), _METRICS)


def machine_ops_budget(one: MachineOpsWorkload) -> Raw:
    return objects.budget(one.name, _selector_of(one))


def machine_ops_network(one: MachineOpsWorkload) -> Raw:
    return pods.controller_network(one.name, _selector_of(one))


def machine_ops_deployment(one: MachineOpsWorkload, *, annotations: Mapping[str, str] | None = None) -> Raw:
    """Return the Deployment. Its Pods get the account's token, with which workloads of OKE log in to their cloud."""
    scope = [f"{flag}={value}" for flag, value in (("--site", one.site), ("--provider", one.provider)) if value]
    pod = _leading_pod(MACHINE_OPS, one.image, ["controller", *scope], MACHINE_OPS_CONFIG, _selector_of(one))
    pod["automountServiceAccountToken"] = True
    return objects.deployment(one.name, _selector_of(one), pod, replicas=2, annotations=annotations)


def _selector_of(one: MachineOpsWorkload) -> dict[str, str]:
    """Return labels unique to a Deployment: a Pod with two PodDisruptionBudgets cannot be evicted."""
    return objects.selector_of(MACHINE_OPS, one.site) | {"app.kubernetes.io/instance": one.name}


def _leading_pod(component: str, image: str, args: Sequence[str], config_map: str, selector: Mapping[str, str]) -> Raw:
    """Return the Pod of a process that elects a leader among its replicas and has no rights on its node."""
    folder = f"/etc/{component}"
    container = {
        "name": component,
        "image": image,
        "command": [component],
        "args": [args[0], "--config", f"{folder}/{objects.CONFIG_FILE}", *args[1:]],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the Pod's own, and empty
        "ports": [
            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
            {"name": "health", "containerPort": 8081, "protocol": "TCP"},
        ],
        "livenessProbe": pods.probe("/healthz", delay_s=5, period_s=10),
        "readinessProbe": pods.probe("/readyz", delay_s=3, period_s=5),
        "resources": objects.copied(_RESOURCES),
        "securityContext": pods.confined(),
        "volumeMounts": [
            {"name": "config", "mountPath": folder, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "run", "mountPath": str(SYSTEM)},
        ],
    }
    return {
        "serviceAccountName": component,
        "priorityClassName": pods.PRIORITY,
        "securityContext": pods.as_nobody(),
        "tolerations": objects.copied(pods.TOLERATIONS),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": dict(selector)},
            }
        ],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": config_map}}, pods.tmp_volume(), pods.run_volume()],
    }


def metalman_objects(metalman: MetalmanWorkload) -> tuple[Raw, ...]:
    """Return the objects of a site's metalman beside its account and rights."""
    trusted = (metalman_ek_ca(metalman),) if metalman.ek_ca else ()
    return (*trusted, metalman_service(metalman), metalman_deployment(metalman))


def metalman_ek_ca(metalman: MetalmanWorkload) -> Raw:
    """Return the ConfigMap with the roots of TPM manufacturers that metalman trusts."""
    meta = objects.metadata(metalman.name, objects.selector_of("metalman", metalman.site))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {EK_CA_FILE: metalman.ek_ca}}


def metalman_service(metalman: MetalmanWorkload) -> Raw:
    """Return the Service of its metrics; booting machines use the node's own address."""
    port = {"name": "metrics", "port": 8081, "targetPort": "health"}
    return objects.service(metalman.name, objects.selector_of("metalman", metalman.site), port, headless=True)


def metalman_deployment(metalman: MetalmanWorkload) -> Raw:
    """Return the Deployment: one process on the network of its node, which must be in the site.

    Ports 67 and 69 and raw packets need two capabilities. A process that is not root would get them from its image's
    file capabilities only, which `allowPrivilegeEscalation: false` disables. So it runs as root, without root's other
    capabilities.
    """
    interface = [f"--dhcp-interface={metalman.interface}" if metalman.interface else "--dhcp-auto-interface"]
    if not metalman.interface and WITHOUT_INTERFACE.intersection(metalman.options):
        interface = []
    relays = [f"--dhcp-relay={','.join(metalman.relays)}"] if metalman.relays else []
    trusted = [f"--ek-ca={EK_CA_FOLDER}/{EK_CA_FILE}"] if metalman.ek_ca else []
    files = {"--media-certificate": "tls.crt", "--media-key": "tls.key"} if metalman.media_secret else {}
    media = [f"{flag}={MEDIA_FOLDER}/{file}" for flag, file in files.items()]
    options = [*relays, *metalman.options, *trusted, *media]
    container: Raw = {
        "name": "metalman",
        "image": metalman.image,
        "command": ["metalman"],
        "args": ["serve-pxe", f"--site={metalman.site}", *interface, *options, f"--cache-dir={CACHE}"],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            # the way to the serial consoles: kubectl port-forward to this Pod
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": "health", "containerPort": 8081, "protocol": "TCP"}],
        "livenessProbe": pods.probe("/healthz", delay_s=5, period_s=10),
        "readinessProbe": pods.probe("/readyz", delay_s=3, period_s=5),
        "resources": objects.copied(_RESOURCES),
        "securityContext": pods.confined("NET_BIND_SERVICE", "NET_RAW"),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "run", "mountPath": str(SYSTEM)},
            {"name": "cache", "mountPath": CACHE},
        ],
    }
    pod: Raw = {
        "serviceAccountName": "metalman",
        "priorityClassName": pods.PRIORITY,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [pods.tmp_volume(), pods.run_volume(), pods.cache_volume()],
    }
    if metalman.ek_ca:
        container["volumeMounts"] += [{"name": "ek-ca", "mountPath": EK_CA_FOLDER, "readOnly": True}]
        pod["volumes"] += [{"name": "ek-ca", "configMap": {"name": metalman.name}}]
    if metalman.media_secret:
        container["volumeMounts"] += [{"name": "media", "mountPath": MEDIA_FOLDER, "readOnly": True}]
        pod["volumes"] += [{"name": "media", "secret": {"secretName": metalman.media_secret}}]
    if metalman.site:
        pod["nodeSelector"] = {LABEL_SITE: metalman.site}
    # the ports belong to the node
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    digest = {objects.CONFIG_DIGEST: objects.digest_of(metalman.ek_ca)} if metalman.ek_ca else None
    selector = objects.selector_of("metalman", metalman.site)
    return objects.deployment(metalman.name, selector, pod, replicas=1, annotations=digest, strategy=strategy)


def monitors() -> tuple[Raw, ...]:
    """Return ServiceMonitors of the Prometheus operator, for clusters that have its definitions."""
    components = (("machina", MACHINA), ("metalman", METALMAN), (MACHINE_OPS, MACHINE_OPS))
    machina, *others = (_monitor(name, component) for component, name in components)
    machina["spec"]["endpoints"].append({"port": _EXPLAIN_METRICS["name"], "path": "/metrics"})
    return machina, *others


def container_cloud_monitor() -> Raw:
    """Return the ServiceMonitor of container-cloud, which not every installation has."""
    return _monitor(CONTAINER_CLOUD_CONTROLLER, CONTAINER_CLOUD)


def console_monitor() -> Raw:
    """Return the ServiceMonitor of the console, which not every installation has."""
    return _monitor(CONSOLE, CONSOLE)


def alert_rules(rules: Raw) -> Raw:
    """Return alert rules as an object of the Prometheus operator.

    Args:
        rules: the content of a rule file.
    """
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": objects.metadata("unbounded-alerts", {}),
        "spec": rules,
    }


def _monitor(name: str, component: str) -> Raw:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": objects.metadata(name, objects.selector_of(component)),
        "spec": {
            "selector": {"matchLabels": objects.selector_of(component)},
            "namespaceSelector": {"matchNames": [NAMESPACE]},
            "endpoints": [{"port": "metrics", "path": "/metrics"}],
        },
    }


@dataclass(frozen=True)
class InstallStage:
    """Objects that may be applied together, after the stages before."""

    name: str
    objects: tuple[Raw, ...]


def surroundings() -> tuple[InstallStage, ...]:
    """Return the cluster's objects that Pods need beside their namespace."""
    return (InstallStage("prerequisites", (priority_class(), deny_all())),)


def stages(
    machina: MachinaWorkload | None,
    others: Iterable[Raw] = (),
    *,
    level: str = RESTRICTED,
    container_cloud: bool = False,
) -> tuple[InstallStage, ...]:
    """Return all objects that the project needs on a cluster.

    Args:
        machina: None where it runs elsewhere, or is not to be installed.
        others: objects of other controllers.
        level: the Pod security standard of the namespace.
        container_cloud: with the definitions, rights and policies of Container Cloud.
    """
    brought = (*manifests(), *(container_cloud_manifests() if container_cloud else ()))
    definitions = (*custom_resource_definitions(), *(container_cloud_definitions() if container_cloud else ()))
    controllers = (*(() if machina is None else machina_objects(machina)), *others)
    found = (
        InstallStage("definitions", definitions),
        InstallStage("namespace", (namespace(level),)),
        InstallStage("rights", tuple(body for body in brought if body["kind"] not in POLICIES)),
        InstallStage("policies", tuple(body for body in brought if body["kind"] in POLICIES)),
        *(surroundings() if controllers else ()),
        InstallStage("controllers", controllers),
    )
    return tuple(stage for stage in found if stage.objects)
