"""Settings of machina about the cluster and hosts, each as a flag of `install` and as a key of machina's file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from unbounded.cli.deploying import checks
from unbounded.cli.plugin.command import USAGE, CliError
from unbounded.join.host_options import base_url, web_url
from unbounded.join.release_key import public_key


@dataclass(frozen=True)
class Setting:
    """A setting of machina.

    Args:
        up: the same for `unbounded up`, where machina runs beside the API server.
    """

    flag: str
    key: str
    check: Callable[[str], str]
    up: str

    def telling(self, value: str, program: str, *, beside: bool) -> str:
        """Return the command that sets it."""
        return f"unbounded up {self.up}" if beside else f"{program} install {self.flag} {value}"


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None


ENDPOINT: Final = Setting(
    "--api-server-endpoint", "apiServerEndpoint", checks.endpoint, "--bind 0.0.0.0 --advertise-address ADDRESS"
)
DNS: Final = Setting("--cluster-dns", "clusterDns", _address, "--cluster-dns ADDRESS")
AGENT_URL: Final = Setting("--agent-url", "agentUrl", web_url, "--agent-url URL")
AGENT_DIGEST: Final = Setting("--agent-sha256", "agentSha256", checks.sha256, "--agent-sha256 DIGEST")
SETTINGS: Final = (
    ENDPOINT,
    DNS,
    Setting("--artifact-mirror", "artifactMirror", base_url, "--artifact-mirror URL"),
    Setting("--agent-version", "agentVersion", str, "--agent-version VERSION"),
    Setting("--agent-base-url", "agentBaseUrl", base_url, "--agent-base-url URL"),
    AGENT_URL,
    AGENT_DIGEST,
    Setting("--agent-public-key", "agentPublicKey", public_key, "--agent-public-key KEY"),
    Setting("--agent-image", "agentImage", checks.image, "--agent-image IMAGE"),
)


def given_to_machina(args: Namespace) -> dict[str, str]:
    """Return the settings that flags give, under the keys of machina's file. Raises CliError."""
    found: dict[str, str] = {}
    for setting in SETTINGS:
        if text := getattr(args, setting.flag.removeprefix("--").replace("-", "_")):
            try:
                found[setting.key] = checks.flagged(setting.flag, setting.check, text)
            except checks.BadFlag as error:
                raise CliError(str(error), status=USAGE) from None
    return found
