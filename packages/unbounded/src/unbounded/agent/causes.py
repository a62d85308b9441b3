"""Mapping from the error of a command to a reason of condition Provisioning."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Rejected
from unbounded.fetch.failures import NotPublished

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class PreflightFailed(Rejected):
    """The host cannot become a node; nothing was changed."""


class NoImage(Rejected):
    """No source names the node's root file system."""


def cause_of(error: BaseException) -> ConditionReason | None:
    """Return the reason for an error or for one of its causes; None where no reason fits."""
    return next((reason for one in _chain(error) if (reason := _reason(one)) is not None), None)


def _reason(error: BaseException) -> ConditionReason | None:
    match error:
        case OSError() if error.errno in _FULL:
            return ConditionReason.DISK_FULL
        case NotPublished():
            return ConditionReason.ARTIFACT_NOT_FOUND
        case PreflightFailed():
            return ConditionReason.PREFLIGHT_FAILED
        case NoImage():
            return ConditionReason.IMAGE_MISSING
        case _:
            return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
