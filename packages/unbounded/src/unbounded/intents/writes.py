"""Execution of the writes of an intent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbounded.plan.intent import Intent, IntentPatch, Raw
from unbounded.plan.kinds import kind_of

if TYPE_CHECKING:
    from unbounded.kube.client import HttpApi


async def perform_intent(api: HttpApi, intent: Intent, *, manager: str) -> list[Raw]:
    """Perform the writes of an intent, and return the written objects. The caller has the user's consent.

    Args:
        manager: the field manager of the writes.

    Raises:
        ApiError: the API rejected a write; those before it were done.
    """
    done = [await write_patch(api, patch, manager=manager) for patch in intent.patches]
    return done + [await write_creation(api, manifest, manager=manager) for manifest in intent.creates]


async def write_patch(api: HttpApi, patch: IntentPatch, *, manager: str, dry_run: bool = False) -> Raw:
    """Patch an object; return it as it is then."""
    return await api.patch(
        patch.kind.raw(),
        patch.name,
        patch.body,
        namespace=patch.namespace,
        subresource="status" if patch.status else "",
        manager=manager,
        dry_run=dry_run,
    )


async def write_creation(api: HttpApi, manifest: Raw, *, manager: str, dry_run: bool = False) -> Raw:
    """Create an object; return it with what the server has added."""
    return await api.create(kind_of(manifest), manifest, manager=manager, dry_run=dry_run)
