"""Options of the processes that set up hosts: facts of the cluster for a host, and the source of its agent."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from unbounded.join.release_key import public_key
from unbounded.kube.endpoint import endpoint_url
from unbounded.kube.options import Option, sha256_or_none


def web_url(text: str) -> str:
    """Return an http or https URL, valid in specs (`api.fields.HTTP_URL`); empty for none. Raise ValueError."""
    if text and not _is_web_url(text):
        raise ValueError(f"{text!r} is no URL like https://example.com/path, without user and password")
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
        raise ValueError(f"{text!r} is no URL like https://example.com/path, to which paths can be added")
    return text


def _endpoint_or_none(text: str) -> str:
    return endpoint_url(text) if text else ""


def _ip_or_none(text: str) -> str:
    return str(ip_address(text)) if text else ""


ENDPOINT: Final = Option(
    "api-server-endpoint",
    _endpoint_or_none,
    "",
    "what hosts are told, in place of what kube-public/cluster-info says",
    "URL",
)
DNS: Final = Option("cluster-dns", _ip_or_none, "", "what hosts are told, in place of Service kube-dns", "ADDRESS")
MIRROR: Final = Option(
    "artifact-mirror", base_url, "", "where hosts download what their Machine gives no place for", "URL"
)
AGENT_VERSION: Final = Option("agent-version", str, "", "of agents, for Machines that do not say", "VERSION")
AGENT_BASE: Final = Option("agent-base-url", base_url, "", "where releases of the agent are, for the same", "URL")
AGENT_URL: Final = Option("agent-url", web_url, "", "the agent's tarball itself, for the same", "URL")
AGENT_SHA256: Final = Option(
    "agent-sha256", sha256_or_none, "", "digest of the agent's tarball; needed where it comes over plain http", "DIGEST"
)
AGENT_KEY: Final = Option(
    "agent-public-key",
    public_key,
    "",
    "public key of releases of the agent: hosts run those that it signed alone",
    "KEY",
)
HOST_OPTIONS: Final = (DNS, MIRROR, AGENT_VERSION, AGENT_BASE, AGENT_URL, AGENT_SHA256, AGENT_KEY)
