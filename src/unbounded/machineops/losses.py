"""What a replacement loses of an instance, as data, and whether it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unbounded.machineops import reasons
from unbounded.operations.ports import Refusal


@dataclass(frozen=True)
class Loss:
    """Something of the old instance that the new one will not have.

    Args:
        field: where the cloud's API has it, such as vnic.privateIp: users accept it by that, so it says nothing of this
            one instance alone. At most 256 characters, with no blanks and commas.
        consequence: what comes of that, for a person; one line.
        lessens_security: the new instance is less secure by it: it is refused unless it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


def check_losses(losses: Sequence[Loss], parameters: Mapping[str, str], named: str) -> None:
    """Whether a replacement may lose this: what lessens security is accepted by name (parameter `accept`), and so is
    everything with `keep: strict`. The controller asks that after each look that tells losses, and a provider where it
    looks again by itself.

    Args:
        named: the instance, for the message.
    Raises:
        Refusal: no, and what would have to be accepted.
    """
    accepted = {one.strip() for one in parameters.get("accept", "").split(",")}
    left = [one for one in losses if one.field not in accepted]
    strict = parameters.get("keep") == "strict"
    if wrong := [one for one in left if strict or one.lessens_security]:
        rule = "with keep: strict nothing may be lost" if strict else "security may not be lessened"
        told = "; ".join(f"{one.field} ({one.consequence})" for one in wrong)
        accept = ",".join(one.field for one in losses if one in wrong or one.field in accepted)
        words = f"{rule} that parameters.accept does not name, and {named} would lose: {told}"
        raise Refusal(reasons.WOULD_BE_LOST, f'{words}; accept: "{accept}" accepts this')
