"""The narrower failures of a BMC, each below the class of `unbounded.api.failures` that says who acts next."""

from __future__ import annotations

from unbounded.api.failures import Rejected, Transient, Uncertain


class Unreachable(Transient):
    """No answer, and nothing was changed: refused, no such name, TLS failed, timed out or cut off while reading."""


class AnswerLost(Uncertain):
    """A changing request was sent and no answer came."""


class Busy(Transient):
    """The BMC, or its queue, has no room now; nothing was done. `retry_after_s` as the BMC said, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpen(Busy):
    """Not asked, as the last calls got no answer; the message says since when and until when."""


class Garbled(Transient):
    """A reading came back cut off, or is not JSON."""


class TaskFailed(Transient):
    """The BMC took the action on and its task failed; the message is the task's."""


class PasswordRefused(Rejected):
    """The BMC refused the password. It is not offered again until the Secret changes."""


class CertificateUntrusted(Rejected):
    """The BMC's certificate does not verify against the CA bundle, or nothing is pinned yet. No password was sent."""


class CertificateChanged(CertificateUntrusted):
    """The BMC shows another certificate than the pinned one. No password was sent."""

    def __init__(self, message: str, *, pinned: str, seen: str) -> None:
        super().__init__(message)
        self.pinned = pinned
        self.seen = seen


class Misaddressed(Rejected):
    """`spec.pxe.redfish.url` is no address of a BMC. Nothing was sent."""


class Unsupported(Rejected):
    """This BMC cannot do that, as it says itself (400, 404, 405, 410, 501) or as its lists show."""
