"""kubelet's credential in a new slot: the previous one, or a fresh one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from unbounded.agent.model import CertificateAccess, KubeletAccess, Slot
from unbounded.agent.ports import Nodes, OnProgress
from unbounded.kube.clock import WallClock, utc_now

Fresh = Callable[[OnProgress], Awaitable[KubeletAccess]]
AccessFor = Callable[[Slot, int, OnProgress], Awaitable[KubeletAccess]]
"""(the slot that the node leaves, the attempt, progress) → how kubelet introduces itself in the new slot."""

LEAST: Final = timedelta(hours=1)  # remaining validity; kubelet renews its certificate long before


def reuse_or(nodes: Nodes, fresh: Fresh, *, now: WallClock = utc_now) -> AccessFor:
    """Return a source of credentials: kubelet's certificate from the old slot while it is valid, else a fresh
    credential.

    After a failed attempt it is a fresh one: the old certificate may have been the cause.
    """

    async def access(source: Slot, attempt: int, tell: OnProgress) -> KubeletAccess:
        held = await nodes.kubelet_certificate(source) if attempt == 1 else None
        return held if held is not None and remaining_validity(held, now()) >= LEAST else await fresh(tell)

    return access


def remaining_validity(access: CertificateAccess, now: datetime) -> timedelta:
    """Return the remaining validity of a certificate; zero for an unreadable one."""
    try:
        leaf = x509.load_pem_x509_certificates(access.pem.reveal().encode())[0]
    except (ValueError, IndexError):
        return timedelta()
    return leaf.not_valid_after_utc - now if leaf.not_valid_before_utc <= now else timedelta()
