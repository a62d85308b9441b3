"""What can go wrong outside, sorted by who acts next. Every boundary turns its trouble into one of these, once."""


class Failure(Exception):
    """The outside did not do what was asked; the message is what an operator reads."""


class Transient(Failure):
    """Not done, and may work later: keep the phase and come back with back-off."""


class Uncertain(Failure):
    """Sent, and the answer was lost: perhaps done. Observe before anything is repeated."""


class Stale(Failure):
    """The world moved under the plan: read again and plan anew, at once."""


class Rejected(Failure):
    """Cannot work as written: somebody has to change something first."""
