"""Registry logins: Secrets of the cluster, copied to this host and into its slot.

The agent fetches the node's image with them, and kubelet pulls the images of Pods.

kubelet requests them from a credential provider, a script that prints a file which only root can read. So no login is
in an API object, in a command line or in an environment. kubelet requests by the registry in an image's name, and so
has no login for a mirror of it: containerd reads that from the mirror's hosts.toml.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from unbounded.agent.node.slot_files import SlotFile
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import make_folders
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.names import NAMESPACE
from unbounded.fetch.logins import RegistryLogin, RegistryLogins
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.durable_files import remove_durably, write_durably
from unbounded.kube.logs import SecretStr
from unbounded.kube.tasks import run_in_thread

KEY: Final = ".dockerconfigjson"
PROVIDER: Final = "unbounded-pull-secrets"
PROGRAMS: Final = "/usr/local/libexec/unbounded-credentials"
FOLDER: Final = "/etc/kubernetes/credential-provider"
RESPONSE: Final = f"{FOLDER}/response.json"
FLAGS: Final = (
    f"--image-credential-provider-config={FOLDER}/config.json",
    f"--image-credential-provider-bin-dir={PROGRAMS}",
)
_MATCH: Final = re.compile(r"[A-Za-z0-9*]([-A-Za-z0-9.*]*[A-Za-z0-9*])?(:[0-9]{1,5})?(/[^\s]*)?")
_API: Final = "credentialprovider.kubelet.k8s.io/v1"


BringLogins = Callable[[NodeSettings], Awaitable[bytes]]  # signature of PullSecrets.bring


async def bring_none(_settings: NodeSettings) -> bytes:
    """Return no logins, for a host that has no API to read Secrets from."""
    return b""


def secret_names(settings: NodeSettings) -> tuple[str, ...]:
    """Return the names of the Secrets."""
    return tuple(one.name for one in settings.containerd.pull_secrets) if settings.containerd else ()


class PullSecrets:
    """Copies the logins of a node's Secrets to this host, readable by root only."""

    def __init__(self, api: Api, paths: HostPaths) -> None:
        self._api = api
        self._paths = paths

    async def bring(self, settings: NodeSettings) -> bytes:
        """Read the Secrets, store their logins and return them. The caller holds the host's lock.

        Raises:
            Rejected: a Secret does not exist, may not be read, or has no logins; the message names the field.
        """
        logins = await self.read(settings)
        await self.keep(logins)
        return logins

    async def read(self, settings: NodeSettings) -> bytes:
        """Return the logins of the Secrets in the output format of kubelet's provider; empty where the settings name
        none.

        Raises:
            Rejected: as `bring` does.
        """
        logins = RegistryLogins()
        for name in secret_names(settings):
            logins = logins.joined(await self._logins_of(name))
        return msgspec.json.encode(_response(logins)) if secret_names(settings) else b""

    async def keep(self, logins: bytes) -> None:
        """Store the result of `read` for the next slots that are built or configured."""
        await run_in_thread(self._keep, logins)

    async def _logins_of(self, name: str) -> RegistryLogins:
        field = f"containerd.pullSecrets[{name}]"
        try:
            secret = await self._api.get(SECRETS, name, namespace=NAMESPACE)
        except (NotFound, Forbidden) as error:
            remedy = f"the Secret must be in namespace {NAMESPACE}, and agents need permission to get it"
            raise Rejected(f"{field}: {error}; {remedy}") from error
        try:
            content = secret.value(KEY)
        except binascii.Error:
            raise Rejected(f"{field}: key {KEY} is not base64") from None
        if content is None:
            raise Rejected(f"{field}: key {KEY} is missing, which Secrets of type kubernetes.io/dockerconfigjson have")
        logins = RegistryLogins.from_secret(content, field)
        for registry, login in logins.entries:
            if not _MATCH.fullmatch(registry) or not login.user:
                raise Rejected(f"{field}, {registry}: kubelet needs a registry with a user and a password")
        return logins

    def _keep(self, content: bytes) -> None:
        if content == stored_response(self._paths):
            return
        if content:
            make_folders(self._paths.etc, mode=0o700)
            write_durably(self._paths.pull_secrets, content, mode=0o600)
        else:
            remove_durably(self._paths.pull_secrets)


def stored_response(paths: HostPaths) -> bytes:
    """Return the logins stored on this host; empty for none."""
    try:
        return paths.pull_secrets.read_bytes()
    except FileNotFoundError:
        return b""


def stored_logins(paths: HostPaths) -> RegistryLogins:
    """Return the logins stored on this host, for the agent's own download of an image."""
    return parse_response(stored_response(paths))


def parse_response(response: bytes) -> RegistryLogins:
    """Return the logins in the provider's output; none for an empty one."""
    auth = msgspec.json.decode(response)["auth"] if response else {}
    return RegistryLogins(
        tuple((key, RegistryLogin(one["username"], SecretStr(one["password"]))) for key, one in auth.items())
    )


def _response(logins: RegistryLogins) -> dict[str, Any]:
    """Return the provider's output: all logins, from which kubelet takes those of the image's registry."""
    auth = {
        registry: {"username": login.user, "password": login.password.reveal()} for registry, login in logins.entries
    }
    kind = {"apiVersion": _API, "kind": "CredentialProviderResponse"}
    return {**kind, "cacheKeyType": "Registry", "cacheDuration": "0s", "auth": auth}


def files(response: bytes) -> tuple[SlotFile, ...]:
    """Return the provider, its configuration and its logins.

    Args:
        response: as stored on this host.
    """
    auth = msgspec.json.decode(response)["auth"] if response else {}
    provider = {"name": PROVIDER, "matchImages": sorted(auth), "defaultCacheDuration": "0s", "apiVersion": _API}
    configuration = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
    script = f"#!/bin/sh\nexec cat {RESPONSE}\n"
    return (
        SlotFile(f"{PROGRAMS}/{PROVIDER}", script.encode(), 0o755),
        SlotFile(f"{FOLDER}/config.json", msgspec.json.encode({**configuration, "providers": [provider]})),
        SlotFile(RESPONSE, response, 0o600),
    )
