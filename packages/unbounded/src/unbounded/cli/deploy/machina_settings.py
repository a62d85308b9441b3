"""Settings of machina about the cluster and hosts, each as a flag of `install` and as a key of machina's file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from unbounded.cli.deploy import validation
from unbounded.cli.plugin.command import USAGE, CliError
from unbounded.join.host_options import base_url, web_url
from unbounded.join.release_key import public_key


@dataclass(frozen=True)
class MachinaSetting:
    """A setting of machina.

    Args:
        up: the same for `unbounded up`, where machina runs beside the API server.
    """

    flag: str
    key: str
    check: Callable[[str], str]
    up: str

    def command(self, value: str, program: str, *, beside: bool) -> str:
        """Return the command that sets it."""
        return f"unbounded up {self.up}" if beside else f"{program} install {self.flag} {value}"


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


ENDPOINT: Final = MachinaSetting(
    "--api-server-endpoint", "apiServerEndpoint", validation.endpoint, "--bind 0.0.0.0 --advertise-address ADDRESS"
)
DNS: Final = MachinaSetting("--cluster-dns", "clusterDns", _address, "--cluster-dns ADDRESS")
AGENT_URL: Final = MachinaSetting("--agent-url", "agentUrl", web_url, "--agent-url URL")
AGENT_DIGEST: Final = MachinaSetting("--agent-sha256", "agentSha256", validation.sha256, "--agent-sha256 DIGEST")
SETTINGS: Final = (
    ENDPOINT,
    DNS,
    MachinaSetting("--artifact-mirror", "artifactMirror", base_url, "--artifact-mirror URL"),
    MachinaSetting("--agent-version", "agentVersion", str, "--agent-version VERSION"),
    MachinaSetting("--agent-base-url", "agentBaseUrl", base_url, "--agent-base-url URL"),
    AGENT_URL,
    AGENT_DIGEST,
    MachinaSetting("--agent-public-key", "agentPublicKey", public_key, "--agent-public-key KEY"),
    MachinaSetting("--agent-image", "agentImage", validation.image, "--agent-image IMAGE"),
)


def settings_from_flags(args: Namespace) -> dict[str, str]:
    """Return the settings that flags give, under the keys of machina's file. Raises CliError."""
    found: dict[str, str] = {}
    for setting in SETTINGS:
        if text := getattr(args, setting.flag.removeprefix("--").replace("-", "_")):
            try:
                found[setting.key] = validation.flagged(setting.flag, setting.check, text)
            except validation.BadFlag as error:
                raise CliError(str(error), status=USAGE) from None
    return found
