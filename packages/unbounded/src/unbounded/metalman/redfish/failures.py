"""Narrower failures of a BMC, each a subclass of the class in `unbounded.api.failures` that decides who acts next."""

from __future__ import annotations

from unbounded.api.failures import Rejected, Transient, Uncertain


class BmcUnreachable(Transient):
    """No answer, and nothing changed: refused, unknown host, TLS failed, timed out, or cut off while reading."""


class BmcAnswerLost(Uncertain):
    """A changing request was sent, and its answer was lost."""


class BmcBusy(Transient):
    """The BMC or its queue has no capacity now, and nothing was done. `retry_after_s` is the BMC's, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpen(BmcBusy):
    """No call was made, as the last calls got no answer; the message has the start and the end of the pause."""


class Garbled(Transient):
    """The answer to a read was cut off, or is not JSON."""


class TaskFailed(Transient):
    """The BMC accepted the action, and its task failed; the message is the task's."""


class PasswordRejected(Rejected):
    """The BMC rejected the password, which is not offered again until the Secret changes."""


class CertificateUntrusted(Rejected):
    """The CA bundle does not verify the BMC's certificate, or nothing is pinned yet. No password was sent."""


class CertificateChanged(CertificateUntrusted):
    """The BMC presents another certificate than the pinned one. No password was sent."""

    def __init__(self, message: str, *, pinned: str, seen: str) -> None:
        super().__init__(message)
        self.pinned = pinned
        self.seen = seen


class InvalidBmcUrl(Rejected):
    """`spec.pxe.redfish.url` is not an address of a BMC. Nothing was sent."""


class Unsupported(Rejected):
    """The BMC does not support the call, by its status (400, 404, 405, 410, 501) or its lists."""
