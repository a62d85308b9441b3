"""Sanitizing of a provider's texts for a status: the provider may be third-party code, and quotes a cloud."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from unbounded.api import fields, operation
from unbounded.api.failures import Failure
from unbounded.api.fields import CONDITION_REASON
from unbounded.machineops import reasons
from unbounded.machineops.provider import Instance, Loss, NotDone, Provider, Refusal, one_line
from unbounded.workflow.procedure import Observation

DETAIL_CHARS: Final = 3072  # of a detail, which may list disks; leaves space for the rest of a message
FIELD_CHARS: Final = 256
CONSEQUENCE_CHARS: Final = 1024
ABOUT_KINDS: Final = 16
MOST_LOSSES: Final = 64  # a refusal names all
REASON: Final = re.compile(CONDITION_REASON)


def parse_instance(provider: Provider, provider_id: str) -> Instance:
    """Parse a providerID.

    Raises:
        ValueError: it is invalid, or the provider failed.
    """
    try:
        return provider.instance(provider_id)
    except ValueError as error:
        raise ValueError(one_line(str(error), DETAIL_CHARS)) from error
    except Exception as error:
        raise ValueError(f"provider {provider.name} cannot read it ({type(error).__name__})") from error


def sanitize_observation(observation: Observation) -> Observation:
    """Sanitize an observation."""
    return replace(
        observation,
        detail=one_line(observation.detail, DETAIL_CHARS),
        where=one_line(observation.where, DETAIL_CHARS),
        progress=one_line(observation.progress, DETAIL_CHARS),
    )


def status_losses(losses: Sequence[Loss]) -> tuple[operation.ReplacementLoss, ...]:
    """Convert losses to their form in a status: each field once, and at most MOST_LOSSES."""
    reported = {one.field: _status_loss(one) for one in losses[:MOST_LOSSES]}
    return tuple(reported.values())


def _status_loss(loss: Loss) -> operation.ReplacementLoss:
    """Convert a loss to its form in a status."""
    return operation.ReplacementLoss(
        field=one_line(loss.field, FIELD_CHARS) or "?",
        consequence=one_line(loss.consequence, CONSEQUENCE_CHARS),
        lessens_security=loss.lessens_security or None,
    )


def _sanitize_cause(cause: fields.Cause) -> fields.Cause | None:
    if not REASON.match(cause.code):
        return None
    about = list(cause.about.items())[:ABOUT_KINDS]
    fitting = {one_line(kind, FIELD_CHARS): one_line(value, CONSEQUENCE_CHARS) for kind, value in about}
    return fields.Cause(code=cause.code, about=fitting)


@contextmanager
def sanitize_failures() -> Iterator[None]:
    """Sanitize the message and reason of failures in the block: otherwise the final status could not be written."""
    try:
        yield
    except Failure as failure:
        words = str(failure)
        if isinstance(failure, Refusal | NotDone) and not REASON.match(failure.reason):
            words, failure.reason = f"{failure.reason}: {words}", reasons.PROVIDER_REFUSED
        failure.args = (one_line(words, DETAIL_CHARS),)
        if isinstance(failure, Refusal | NotDone) and failure.cause is not None:
            failure.cause = _sanitize_cause(failure.cause)
        raise
