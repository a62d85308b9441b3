"""Options of the processes that set up hosts: facts of the cluster for a host, and the source of its agent."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from unbounded.join.release_key import public_key
from unbounded.kube.options import Option, sha256_or_none
from unbounded.kube.settings import endpoint_url


def web_url(text: str) -> str:
    """Return an http or https URL, valid in specs (`api.fields.HTTP_URL`); empty for none. Raise ValueError."""
    if text and not _is_web_url(text):
        raise ValueError(f"{text!r} is not a URL like https://example.com/path, without user and password")
    return text


def _is_web_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and has_host and "@" not in parts.netloc and text.split() == [text]


def base_url(text: str) -> str:
    """Return a URL to which paths are appended; empty for none. Raise ValueError."""
    if {"?", "#"} & set(web_url(text)):
        raise ValueError(f"{text!r} is not a URL like https://example.com/path, to which paths can be appended")
    return text


def _endpoint_or_none(text: str) -> str:
    return endpoint_url(text) if text else ""


def _ip_or_none(text: str) -> str:
    return str(ip_address(text)) if text else ""


ENDPOINT: Final = Option(
    "api-server-endpoint",
    _endpoint_or_none,
    "",
    "Give hosts this URL of the API server (default: the one in kube-public/cluster-info)",
    "URL",
)
DNS: Final = Option("cluster-dns", _ip_or_none, "", "Give hosts this DNS server (default: Service kube-dns)", "ADDRESS")
MIRROR: Final = Option(
    "artifact-mirror", base_url, "", "Set the download mirror of hosts whose Machine names none", "URL"
)
AGENT_VERSION: Final = Option(
    "agent-version", str, "", "Install this version of the agent for Machines that name none", "VERSION"
)
AGENT_BASE: Final = Option(
    "agent-base-url", base_url, "", "Install the agent from this release directory for Machines that name none", "URL"
)
AGENT_URL: Final = Option(
    "agent-url", web_url, "", "Install this tarball of the agent for Machines that name none", "URL"
)
AGENT_SHA256: Final = Option(
    "agent-sha256", sha256_or_none, "", "Verify the agent's tarball with this digest; required for plain http", "DIGEST"
)
AGENT_KEY: Final = Option(
    "agent-public-key",
    public_key,
    "",
    "Publish this public key of agent releases: hosts run only releases that it signed",
    "KEY",
)
HOST_OPTIONS: Final = (DNS, MIRROR, AGENT_VERSION, AGENT_BASE, AGENT_URL, AGENT_SHA256, AGENT_KEY)
