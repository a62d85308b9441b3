"""State of an image, as frozen data for readers, and the intervals of the image cache."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from unbounded.fetch.store import PullProgress, Stored
from unbounded.kube.clock import Backoff
from unbounded.metalman.images.metadata import Metadata
from unbounded.metalman.images.references import ImageReference, ImageUse

FAILED: Final = Backoff(2.0, 60.0)
REFUSED: Final = Backoff(60.0, 600.0)


@dataclass(frozen=True)
class ImageIntervals:
    """Intervals of the image cache.

    Args:
        look_up_s: between two resolutions of a tag, as no registry announces that a tag has moved.
        after_failure: backoff of errors that may resolve themselves.
        after_refusal: backoff of an image that was pulled and is unusable; detecting a correction requires another
            pull.
        collect_after_s: from a change to the removal of unused images; changes come several at a time.
        check_s: between two checks that served images are still in the cache; the requests of each boot check, too.
        keep_bytes: limit on the unused images that are kept: a tag that is set back resolves at once.
    """

    look_up_s: float = 300.0
    after_failure: Backoff = FAILED
    after_refusal: Backoff = REFUSED
    collect_after_s: float = 30.0
    check_s: float = 10.0
    keep_bytes: int = 8 << 30


DEFAULT_INTERVALS: Final = ImageIntervals()


@dataclass(frozen=True)
class ImageProblem:
    """Reason why an image is missing or outdated; `unusable` if it was pulled but cannot be booted."""

    text: str
    unusable: bool = False


@dataclass
class ImageEntry:
    """State of one image. `stored` remains during problems; `read` belongs to the stored digest."""

    stored: Stored | None = None
    read: dict[ImageUse, Metadata | str | ImageProblem] = field(default_factory=dict)
    problem: ImageProblem | None = None
    failures: int = 0
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # set when no Machine refers to the image any more


@dataclass(frozen=True)
class ImageState:
    """State of an image for conditions.

    Args:
        digest: of the served image; empty if none is served.
        progress: of a running pull.
    """

    want: ImageReference
    digest: str = ""
    problem: ImageProblem | None = None
    progress: PullProgress | None = None
