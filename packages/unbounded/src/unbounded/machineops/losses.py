"""Losses of a replacement as data, and the check whether they are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unbounded.machineops import reasons
from unbounded.operations.ports import Refusal


@dataclass(frozen=True)
class Loss:
    """Property of the old instance that the new one will not have.

    Args:
        field: path in the cloud's API, such as vnic.privateIp. Users accept losses by it, so it must not depend on the
            instance. At most 256 characters, without blanks and commas.
        consequence: effect of the loss, for users; one line.
        lessens_security: the new instance is less secure; the loss is refused unless it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


def check_losses(losses: Sequence[Loss], parameters: Mapping[str, str], named: str) -> None:
    """Check that all losses are acceptable.

    A loss of security needs acceptance by name (parameter `accept`); with `keep: strict` every loss does. The
    controller
    checks after each observation with losses. A provider checks if it observes again by itself.

    Args:
        named: the instance, for the message.
    Raises:
        Refusal: a loss is not accepted; the message names what to accept.
    """
    accepted = {one.strip() for one in parameters.get("accept", "").split(",")}
    left = [one for one in losses if one.field not in accepted]
    strict = parameters.get("keep") == "strict"
    if wrong := [one for one in left if strict or one.lessens_security]:
        rule = "keep: strict allows no loss" if strict else "security must not decrease"
        message = "; ".join(f"{one.field} ({one.consequence})" for one in wrong)
        accept = ",".join(one.field for one in losses if one in wrong or one.field in accepted)
        words = f"{rule} unless parameters.accept names it, and {named} would lose: {message}"
        raise Refusal(reasons.WOULD_BE_LOST, f'{words}; to accept, set accept: "{accept}"')
