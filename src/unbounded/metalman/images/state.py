"""What is known of an image, as frozen data where others see it, and at which pace it is looked after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from unbounded.fetch.store import Progress, Stored
from unbounded.kube.backoff import Backoff
from unbounded.metalman.images.metadata import Metadata
from unbounded.metalman.images.wants import Use, Want

FAILED: Final = Backoff(2.0, 60.0)
REFUSED: Final = Backoff(60.0, 600.0)


@dataclass(frozen=True)
class Pace:
    """
    Args:
        look_up_s: between two looks at what a tag means; nothing tells that it has moved.
        after_failure, after_refusal: of what may work later, and of an image that came and cannot be used: to see that
            it has changed, it is fetched anew.
        collect_after_s: from a change to the removal of what is not used any more; changes come several at a time.
        check_s: between two looks whether what is served is still in the cache; each boot's requests look, too.
        keep_bytes: of images that nobody names any more: a tag that is set back is there at once.
    """

    look_up_s: float = 300.0
    after_failure: Backoff = FAILED
    after_refusal: Backoff = REFUSED
    collect_after_s: float = 30.0
    check_s: float = 10.0
    keep_bytes: int = 8 << 30


USUAL: Final = Pace()


@dataclass(frozen=True)
class Problem:
    """Why an image is not there, or not as its reference says now; `unusable`: it came, and is nothing to boot from."""

    text: str
    unusable: bool = False


@dataclass
class Held:
    """State of one image. `stored` stays through problems; `read` is of the digest that is stored."""

    stored: Stored | None = None
    read: dict[Use, Metadata | str | Problem] = field(default_factory=dict)
    problem: Problem | None = None
    failures: int = 0
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # set when nobody names it any more


@dataclass(frozen=True)
class State:
    """An image as the conditions tell it.

    Args:
        digest: of what is served; empty when nothing is.
        progress: of a pull that is under way.
    """

    want: Want
    digest: str = ""
    problem: Problem | None = None
    progress: Progress | None = None
