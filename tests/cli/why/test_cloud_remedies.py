"""What undoes the reasons for which operations on clouds fail: commands that can be typed, about what is at fault."""

from __future__ import annotations

import pytest

from tests.cli.why.staging import can_be_typed
from tests.operations.building import machine_of, operation_of
from unbounded.cli.why.facts import Facts
from unbounded.cli.why.remedies import fixes_for
from unbounded.machineops import reasons

MACHINE = machine_of(provider="Acme", providerID="acme://i-1")
AGAIN = "kubectl unbounded machine operation create op-again-1 --kind HostReboot --machine m1"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        (reasons.AUTH_NOT_FOUND, "kubectl apply -f CREDENTIAL.yaml"),
        (reasons.AUTH_AMBIGUOUS, "kubectl get machineoperationcredentials"),
        (reasons.AUTH_SECRET_FORBIDDEN, "kubectl edit machineoperationcredential NAME"),
        (reasons.AUTH_SECRET_NOT_FOUND, "kubectl -n unbounded-kube create secret generic NAME --from-file=KEY=FILE"),
        (reasons.BOOTSTRAP_DATA_FAILED, "kubectl unbounded site init --name lab"),
        (
            reasons.INVALID_PROVIDER_ID,
            """kubectl patch machine m1 --type=merge -p '{"spec": {"providerID": "PROVIDER-ID"}}'""",
        ),
        (
            reasons.PROVIDER_ID_SHARED,
            """kubectl patch machine m1 --type=merge -p '{"spec": {"providerID": "PROVIDER-ID"}}'""",
        ),
        (reasons.PROVIDER_REFUSED, AGAIN),
    ],
)
def test_what_is_at_fault_is_put_right_and_asked_for_again(reason: str, command: str) -> None:
    fixes = fixes_for(reason, MACHINE, operation_of(), Facts())
    assert fixes[0].command == command
    assert fixes[-1].command == AGAIN
    if "Auth" in reason:
        assert fixes[0].does.endswith("for spec.siteName lab and spec.provider Acme")
    for fix in fixes:
        can_be_typed(fix.command)


def test_an_instance_that_is_off_is_started_in_place_of_a_reboot() -> None:
    (fix,) = fixes_for(reasons.INSTANCE_NOT_RUNNING, MACHINE, operation_of(), Facts())
    assert fix.command == "kubectl unbounded machine power-on m1"
    can_be_typed(fix.command)


@pytest.mark.parametrize(
    ("parameters", "given", "does"),
    [
        ({"keep": "strict", "imageID": "i"}, "--param imageID=i", "asks for it all the same"),
        ({"imageID": "i"}, "--param imageID=i", "when what the message names is out of its way"),
    ],
)
def test_what_would_be_lost_is_given_up_or_moved_away(parameters: dict[str, str], given: str, does: str) -> None:
    operation = operation_of("op", "HostReplace", parameters=parameters)
    (fix,) = fixes_for(reasons.WOULD_BE_LOST, MACHINE, operation, Facts())
    create = "kubectl unbounded machine operation create op-again-1 --kind HostReplace --machine m1"
    assert fix.command == f"{create} {given}"
    assert does in fix.does
    can_be_typed(fix.command)
