"""Errors of calls to the outside, by the party that acts next. Each boundary translates its errors once."""


class Failure(Exception):
    """A call to the outside failed; the message is for operators."""


class Transient(Failure):
    """The call had no effect, and may succeed later: keep the phase and retry with backoff."""


class Uncertain(Failure):
    """The call was sent, and its answer was lost: it may have taken effect. Observe before a retry."""


class Stale(Failure):
    """The state changed after the plan was made: read it again and plan at once."""


class Rejected(Failure):
    """The request cannot succeed as written: a person has to change something first."""
