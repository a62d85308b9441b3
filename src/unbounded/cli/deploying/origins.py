"""Where a host gets its agent from, as far as the command line knows, and a word where nobody has said it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded.cli.deploying.live import Live
from unbounded.cli.plugin.command import Session
from unbounded.join.install import RELEASES, AgentOrigin


def origin_told(config: Mapping[str, Any]) -> AgentOrigin:
    """Where agents come from that no Machine names a place for, as machina is told: the mirror counts last."""
    return AgentOrigin(
        version=str(config.get("agentVersion") or ""),
        base_url=str(config.get("agentBaseUrl") or config.get("artifactMirror") or ""),
        url=str(config.get("agentUrl") or ""),
    )


def note_origin(session: Session, origin: AgentOrigin, live: Live, *, unless: str = "") -> None:
    """Say so where a host would look for its agent where this project releases none.

    Args:
        unless: what cannot be seen from here.
    """
    if not origin.url and not origin.base_url:
        session.printer.warn(
            f"nothing says where the agent comes from: the host downloads it from {RELEASES}{unless};"
            f" --agent-url URL names your own (or `{live.telling_agent(session.told.program)}`, for all hosts)"
        )
