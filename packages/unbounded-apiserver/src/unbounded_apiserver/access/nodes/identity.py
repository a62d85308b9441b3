"""Identity of nodes."""

from __future__ import annotations

from unbounded_apiserver.auth import User
from unbounded_apiserver.certificates.signers import NODE_PREFIX, NODES


def node_of(user: User) -> str | None:
    """Return the name of a user's node, None for other users; a node needs both the name and the group."""
    if not user.name.startswith(NODE_PREFIX) or NODES not in user.groups:
        return None
    return user.name.removeprefix(NODE_PREFIX)
