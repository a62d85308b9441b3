"""The agent's configuration: read from a file or from variables, and stored for the daemon.

The variables are those that earlier installers set. `start` stores the configuration without its bootstrap token, in
Layout.config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.daemon.identity import has_joined
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import make_folders
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig, Attest, JoinedCluster, Kubelet, KubeletAuth
from unbounded.join.agent_config_file import read_agent_config, unknown_keys
from unbounded.kube.durable_files import write_durably

FILE_VARIABLE: Final = "UNBOUNDED_AGENT_CONFIG_FILE"
KEYS: Final[Mapping[str, str]] = {
    "MACHINA_MACHINE_NAME": "MachineName",
    "KUBE_VERSION": "Cluster.Version",
    "API_SERVER": "Kubelet.ApiServer",
    "CA_CERT_BASE64": "Cluster.CaCertBase64",
    "CLUSTER_DNS": "Cluster.ClusterDNS",
    "BOOTSTRAP_TOKEN": "Kubelet.Auth.BootstrapToken",
    "AGENT_ATTEST_URL": "Attest.URL",
    "NODE_LABELS": "Kubelet.Labels",
    "REGISTER_WITH_TAINTS": "Kubelet.RegisterWithTaints",
}
NEEDED: Final = ("MACHINA_MACHINE_NAME", "KUBE_VERSION", "API_SERVER", "CA_CERT_BASE64", "CLUSTER_DNS")


@dataclass(frozen=True)
class LoadedConfig:
    """The configuration that was read.

    Args:
        config: validated.
        unknown_keys: messages about keys of the file that are ignored.
    """

    config: AgentConfig
    unknown_keys: tuple[str, ...] = ()


def load_config(file: Path | None, environ: Mapping[str, str], paths: HostPaths) -> LoadedConfig:
    """Read as read_config does. On a host that has joined, no credential is required, and the stored configuration
    serves where no source is named.
    """
    joined = has_joined(paths)
    named = file is not None or any(environ.get(name) for name in (FILE_VARIABLE, *KEYS))
    return read_config(file if named or not joined else paths.config, environ, joined=joined)


def read_config(file: Path | None, environ: Mapping[str, str], *, joined: bool = False) -> LoadedConfig:
    """Return the configuration of this host.

    Args:
        file: from the arguments; without one, UNBOUNDED_AGENT_CONFIG_FILE counts, then single variables.
        joined: as for read_agent_config.
    Raises:
        Rejected: there is none, or it is invalid; the message names each key or variable, and no secret.
    """
    named = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if named is not None:
        try:
            content = named.read_bytes()
        except OSError as error:
            raise Rejected(f"{named}: {error.strerror}") from error
        return LoadedConfig(read_agent_config(content, str(named), joined=joined), unknown_keys(content))
    if not any(environ.get(name) for name in KEYS):
        raise Rejected(f"no configuration: give --config FILE, or set {FILE_VARIABLE}")
    return LoadedConfig(_from_variables(environ, joined=joined))


def _from_variables(environ: Mapping[str, str], *, joined: bool) -> AgentConfig:
    def given(name: str) -> str:
        return environ.get(name, "").strip()

    wrong = list(_missing({name for name in KEYS if given(name)}, joined=joined))
    labels, unreadable = _labels(given("NODE_LABELS"))
    wrong += [f"NODE_LABELS {one!r}: must be a comma-separated list of key=value" for one in unreadable]
    if wrong:
        raise Rejected("environment: " + "; ".join(wrong))
    config = AgentConfig(
        machine_name=given("MACHINA_MACHINE_NAME"),
        cluster=JoinedCluster(
            ca_cert_base64=given("CA_CERT_BASE64"), cluster_dns=given("CLUSTER_DNS"), version=given("KUBE_VERSION")
        ),
        kubelet=Kubelet(
            api_server=given("API_SERVER"),
            auth=KubeletAuth(bootstrap_token=given("BOOTSTRAP_TOKEN")),
            labels=labels,
            register_with_taints=tuple(_parts(given("REGISTER_WITH_TAINTS"))),
        ),
        attest=Attest(url=given("AGENT_ATTEST_URL").rstrip("/")),
    )
    try:
        return read_agent_config(msgspec.json.encode(config), "environment", joined=joined)
    except Rejected as error:
        raise Rejected(_named_as_variables(str(error))) from None


def _missing(given: set[str], *, joined: bool) -> Iterator[str]:
    for name in NEEDED:
        if name not in given:
            yield f"{name} is not set ({KEYS[name]})"
    if not given & {"BOOTSTRAP_TOKEN", "AGENT_ATTEST_URL"} and not joined:
        yield "BOOTSTRAP_TOKEN is not set; only AGENT_ATTEST_URL replaces it"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _labels(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the labels in a text, and the entries that are none."""
    found = [part.partition("=") for part in _parts(text)]
    return {key: value for key, is_one, value in found if is_one}, [key for key, is_one, _ in found if not is_one]


def _named_as_variables(message: str) -> str:
    """Translate a message about keys for a user who set variables."""
    for variable, key in KEYS.items():
        message = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.])", variable, message)
    return message


_MODE: Final = 0o600


def without_token(config: AgentConfig) -> AgentConfig:
    """Return the configuration without the bootstrap token, which a host with a certificate no longer needs."""
    auth = msgspec.structs.replace(config.kubelet.auth, bootstrap_token="")
    return msgspec.structs.replace(config, kubelet=msgspec.structs.replace(config.kubelet, auth=auth))


def with_release_key(config: AgentConfig, public_key: str) -> AgentConfig:
    """Return the configuration with this public key of releases."""
    return msgspec.structs.replace(config, upgrade=msgspec.structs.replace(config.upgrade, public_key=public_key))


def with_stored_key(config: AgentConfig, stored: AgentConfig | None) -> AgentConfig:
    """Return the configuration with the stored public key where it has none: a start removes no key."""
    key = "" if stored is None else stored.upgrade.public_key
    return with_release_key(config, key) if key and not config.upgrade.public_key else config


def store_config(paths: HostPaths, config: AgentConfig) -> None:
    """Write the configuration without its token."""
    make_folders(paths.etc, mode=0o700)
    text = msgspec.json.format(msgspec.json.encode(without_token(config)), indent=2)
    write_durably(paths.config, text + b"\n", mode=_MODE)


def read_stored_config(paths: HostPaths) -> AgentConfig | None:
    """Return the configuration that a start stored; None where no start has stored one.

    Raises:
        Rejected: the file is invalid; the message names the keys.
    """
    try:
        content = paths.config.read_bytes()
    except FileNotFoundError:
        return None
    return read_agent_config(content, str(paths.config), joined=True)


def require_stored_config(paths: HostPaths) -> AgentConfig:
    """Return the stored configuration.

    Raises:
        Rejected: no start has stored one, or the file is invalid.
    """
    config = read_stored_config(paths)
    if config is None:
        raise Rejected(f"{paths.config} does not exist: run `unbounded-agent start` first")
    return config
