"""State of a cluster: the images of its Deployments, and the configuration of its machina.

Image and agent of a new component come from the flags, else from this state; an error says which flag is missing.
"""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import yaml

from unbounded.agent.node_spec import NO_IMAGE
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import components, validation
from unbounded.cli.deploy.machina_settings import AGENT_DIGEST, AGENT_URL, DNS, ENDPOINT, SETTINGS
from unbounded.cli.deploy.objects import CONFIG_FILE
from unbounded.cli.deploy.pods import PRIVILEGED, RESTRICTED
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS
from unbounded.cli.deploy.workloads import MACHINA, MACHINA_CONFIG
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.join.agent_install import NO_DIGEST, AgentOrigin, HostDefaults, origin_of
from unbounded.kube.api import Api, NotFound
from unbounded.operations.component_record import COMPONENTS

Raw = dict[str, Any]

IMAGE_FLAGS: Final = ("--image", "--container-cloud-image", "--console-image")
_NONE: Final[Raw] = {}


@dataclass(frozen=True)
class LiveMachina:
    """The machina of a cluster.

    Attributes:
        image: of its Deployment; empty where there is none.
        config_map: the ConfigMap with its configuration; kustomize appends to its name.
        config: keys and values of its file; empty where it has none.
        flags: the same keys, with the values of its Deployment's flags, which override the file.
        beside: it runs in `unbounded up`, beside the API server, and the flags of that configure it.
    """

    image: str = ""
    config_map: str = MACHINA_CONFIG
    config: Raw = field(default_factory=dict)
    embedded: bool = False
    flags: Raw = field(default_factory=dict)

    @property
    def settings(self) -> Raw:
        """Keys and values of the file, overridden by its flags."""
        return {**self.config, **self.flags}

    def dns_command(self, program: str) -> str:
        """Return the command that sets the DNS server of nodes."""
        return DNS.command("ADDRESS", program, beside=self.embedded)

    def endpoint_command(self, program: str) -> str:
        """Return the command that sets the API server's address for hosts."""
        return ENDPOINT.command("HOST:PORT", program, beside=self.embedded)

    def agent_command(self, program: str) -> str:
        """Return the command that sets the agent's URL for all hosts."""
        return AGENT_URL.command("URL", program, beside=self.embedded)

    def digest_command(self, program: str) -> str:
        """Return the command that sets the digest of the agent for all hosts."""
        return AGENT_DIGEST.command("DIGEST", program, beside=self.embedded)


async def live_machina(api: Api) -> LiveMachina:
    """Read machina's Deployment and the ConfigMap that it mounts; without one, the ConfigMap of `unbounded up`.

    Raises:
        CliError: its configuration is no YAML.
    """
    deployment = await live_deployment(api, MACHINA)
    is_embedded = not deployment and "machina" in await components.running(api)
    config_map = COMPONENTS if is_embedded else mounted_config(deployment, "machina", MACHINA_CONFIG)
    config = await config_in(api, config_map)
    return LiveMachina(image_in(deployment, "machina"), config_map, config, is_embedded, _flags(deployment, "machina"))


async def pod_security(api: Api) -> str:
    """Return the Pod security standard that the Pods on a cluster need; empty where no Deployments are served."""
    try:
        found = await api.list(DEPLOYMENTS, namespace=NAMESPACE, labels="app.kubernetes.io/name=metalman")
    except NotFound:
        return ""
    return PRIVILEGED if found.items else RESTRICTED


async def live_image(api: Api, name: str, container: str) -> str:
    """Return the image that a Deployment runs; empty where there is none."""
    return image_in(await live_deployment(api, name), container)


async def live_deployment(api: Api, name: str) -> Raw:
    """Read a Deployment; empty where there is none, or where the server does not serve Deployments."""
    try:
        found: Raw = await api.get(DEPLOYMENTS, name, namespace=NAMESPACE)
    except NotFound:
        return {}
    return found


def image_in(deployment: Raw, container: str) -> str:
    """Return the image of a container; empty where there is none of the name."""
    return next((str(one.get("image", "")) for one in containers(deployment) if one.get("name") == container), "")


def args_in(deployment: Raw, container: str) -> tuple[str, ...]:
    """Return the arguments of a container; empty where there is none of the name."""
    found = (one for one in containers(deployment) if one.get("name") == container)
    return tuple(str(word) for one in found for word in one.get("args") or ())


def _flags(deployment: Raw, container: str) -> Raw:
    """Return the settings of hosts in a container's arguments, under the keys of machina's file."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for setting in SETTINGS:
        parser.add_argument(setting.flag, dest=setting.key)
    try:
        given, _ = parser.parse_known_args(args_in(deployment, container))
    except ArgumentError:  # machina does not start with these either
        return {}
    return {key: value for key, value in vars(given).items() if value}


def mounted_config(deployment: Raw, component: str, otherwise: str) -> str:
    """Return the name of the ConfigMap that a component mounts as its file; `otherwise` where it mounts none."""
    mounts = (mount for one in containers(deployment) for mount in one.get("volumeMounts") or ())
    volumes = {mount["name"] for mount in mounts if mount.get("mountPath", "").rstrip("/") == f"/etc/{component}"}
    for volume in volumes_in(deployment):
        if volume.get("name") in volumes and (name := (volume.get("configMap") or {}).get("name")):
            return str(name)
    return otherwise


def containers(deployment: Raw) -> Iterator[Raw]:
    """Yield the containers in the Pod template of a Deployment."""
    yield from _pod(deployment).get("containers") or ()


def volumes_in(deployment: Raw) -> Iterator[Raw]:
    """Yield the volumes in the Pod template of a Deployment."""
    yield from _pod(deployment).get("volumes") or ()


def _pod(deployment: Raw) -> Raw:
    pod: Raw = deployment.get("spec", _NONE).get("template", _NONE).get("spec", _NONE)
    return pod


async def config_in(api: Api, name: str) -> Raw:
    """Return keys and values of the file in a ConfigMap; empty where there is none.

    Raises:
        CliError: it is no YAML.
    """
    try:
        found = await api.get(CONFIG_MAPS, name, namespace=NAMESPACE)
    except NotFound:
        return {}
    where = f"ConfigMap {NAMESPACE}/{name}, key {CONFIG_FILE}"
    try:
        body = yaml.load(found.data.get(CONFIG_FILE, ""), Loader=yaml.CSafeLoader) or {}  # the safe loader, in C
    except yaml.YAMLError as error:
        raise CliError(
            f"{where}: not YAML", next_step=f"kubectl --namespace {NAMESPACE} edit configmap {name}"
        ) from error
    if not isinstance(body, dict):
        raise CliError(f"{where}: expected keys and values")
    return body


def require_usable(args: Namespace) -> None:
    """Raise CliError where a flag for images is invalid, as far as the command has these flags."""
    given = {"--image-registry": validation.registry, **dict.fromkeys(IMAGE_FLAGS, validation.image)}
    try:
        for flag, check in given.items():
            if text := getattr(args, flag.strip("-").replace("-", "_"), ""):
                validation.flagged(flag, check, text)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None


def image_of(component: str, registry: str) -> str:
    """Return the image of this version of a component, such as machina.

    Args:
        registry: empty for none, which is the form of images that were built on the node.
    """
    path = f"{registry.rstrip('/')}/{component}" if registry else component
    return f"{path}:v{version('unbounded')}"


def chosen_image(component: str, *, image: str = "", registry: str = "", there: str = "", beside: str = "") -> str:
    """Return the image of this version.

    Args:
        image, registry: the flags, in order of precedence; empty where they were not given.
        there: the running image; a new version comes from the same repository, whatever its name is.
        beside: the running image of another component: one registry has the images of all components.

    Raises:
        CliError: none of these gives the source.
    """
    if image:
        return image
    if registry:
        return image_of(component, registry)
    if there:
        return f"{repository(there)}:v{version('unbounded')}"
    if beside:
        return image_of(component, repository(beside).rpartition("/")[0])
    raise CliError(
        f"no image is known for {component}: it does not run yet, and the project publishes no images",
        next_step=f"build it with `make release`, push it as {image_of(component, 'REGISTRY')}, and give "
        "--image-registry REGISTRY",
        status=USAGE,
    )


def repository(image: str) -> str:
    """Return an image without its tag and its digest, but with the port of its registry."""
    path, slash, name = image.partition("@")[0].rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}"


def default_origin(config: Mapping[str, Any]) -> AgentOrigin:
    """Return machina's origin of agents, for Machines that name none; the mirror has the lowest precedence."""
    return AgentOrigin(
        version=str(config.get("agentVersion") or ""),
        base_url=str(config.get("agentBaseUrl") or config.get("artifactMirror") or ""),
        url=str(config.get("agentUrl") or ""),
        sha256=str(config.get("agentSha256") or ""),
    )


def host_defaults(config: Mapping[str, Any]) -> HostDefaults:
    """Return machina's settings for all hosts."""
    mirror, image = str(config.get("artifactMirror") or ""), str(config.get("agentImage") or "")
    return HostDefaults(default_origin(config), mirror, image)


def require_origin(session: CommandSession, machine: Machine, live: LiveMachina) -> AgentOrigin:
    """Return the origin of the host's agent. Warn where no image of its node is named: a MachineConfiguration may name
    it.

    Raises:
        CliError: neither the Machine nor the settings of machina name a release that hosts may run.
    """
    origin = origin_of(machine.spec.agent, default_origin(live.settings))
    if origin.fault:
        raise CliError(origin.fault, next_step=_next_step(session.invocation.program, machine, live, origin.fault))
    if not (machine.spec.agent and machine.spec.agent.image) and not live.settings.get("agentImage"):
        session.printer.warn(NO_IMAGE)
    return origin


def _next_step(program: str, machine: Machine, live: LiveMachina, fault: str) -> str:
    """Return the flags that supply what is missing; for a release of one host, no digest for all hosts."""
    if fault != NO_DIGEST:
        return f"set it with --agent-url URL for this host, or with `{live.agent_command(program)}` for all hosts"
    agent, here = machine.spec.agent, "set it with --agent-sha256 DIGEST for this host"
    if agent is not None and (agent.url or agent.base_url or agent.version):
        return here
    return f"{here}, or with `{live.digest_command(program)}` for all hosts"


def warn_of_no_digest(session: CommandSession, config: Mapping[str, Any]) -> None:
    """Warn where hosts would reject their agent, unless their Machine has its digest."""
    if default_origin(config).fault == NO_DIGEST:
        session.printer.warn(
            "hosts would download the agent over plain http without a digest, which they reject: give "
            "--agent-sha256 DIGEST, or spec.agent.sha256 in each Machine"
        )
