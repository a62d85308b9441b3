"""State of a cluster: the images of its Deployments, and the configuration of its machina."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import components
from unbounded.cli.deploy.kinds import DEPLOYMENTS
from unbounded.cli.deploy.namespace import PRIVILEGED, RESTRICTED
from unbounded.cli.deploy.settings import AGENT_DIGEST, AGENT_URL, DNS, ENDPOINT, SETTINGS
from unbounded.cli.deploy.workloads import CONFIG_FILE, MACHINA, MACHINA_CONFIG
from unbounded.cli.plugin.command import CliError
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

Raw = dict[str, Any]

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
    deployment = await _deployment(api, MACHINA)
    beside = not deployment and "machina" in await components.running(api)
    config_map = components.NAME if beside else mounted_config(deployment, "machina", MACHINA_CONFIG)
    config = await config_in(api, config_map)
    return LiveMachina(image_in(deployment, "machina"), config_map, config, beside, _flags(deployment, "machina"))


async def pod_security(api: Api) -> str:
    """Return the Pod security standard that the Pods on a cluster need; empty where no Deployments are served."""
    try:
        found = await api.list(DEPLOYMENTS, namespace=NAMESPACE, labels="app.kubernetes.io/name=metalman")
    except NotFound:
        return ""
    return PRIVILEGED if found.items else RESTRICTED


async def live_image(api: Api, name: str, container: str) -> str:
    """Return the image that a Deployment runs; empty where there is none."""
    return image_in(await _deployment(api, name), container)


async def _deployment(api: Api, name: str) -> Raw:
    """Read a Deployment; empty where there is none, or where the server does not serve Deployments."""
    try:
        found: Raw = await api.get(DEPLOYMENTS, name, namespace=NAMESPACE)
    except NotFound:
        return {}
    return found


def image_in(deployment: Raw, container: str) -> str:
    """Return the image of a container; empty where there is none of the name."""
    return next((str(one.get("image", "")) for one in containers(deployment) if one.get("name") == container), "")


def _flags(deployment: Raw, container: str) -> Raw:
    """Return the settings of hosts in a container's arguments, under the keys of machina's file."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for setting in SETTINGS:
        parser.add_argument(setting.flag, dest=setting.key)
    words = [
        str(word) for one in containers(deployment) if one.get("name") == container for word in one.get("args") or ()
    ]
    try:
        given, _ = parser.parse_known_args(words)
    except ArgumentError:  # machina does not start with these either
        return {}
    return {key: value for key, value in vars(given).items() if value}


def mounted_config(deployment: Raw, component: str, otherwise: str) -> str:
    """Return the name of the ConfigMap that a component mounts as its file; `otherwise` where it mounts none."""
    mounts = (mount for one in containers(deployment) for mount in one.get("volumeMounts") or ())
    volumes = {mount["name"] for mount in mounts if mount.get("mountPath", "").rstrip("/") == f"/etc/{component}"}
    for volume in _pod(deployment).get("volumes") or ():
        if volume.get("name") in volumes and (name := (volume.get("configMap") or {}).get("name")):
            return str(name)
    return otherwise


def containers(deployment: Raw) -> Iterator[Raw]:
    """Yield the containers in the Pod template of a Deployment."""
    yield from _pod(deployment).get("containers") or ()


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
