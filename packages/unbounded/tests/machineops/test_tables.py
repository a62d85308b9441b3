"""The tables of host operations on clouds, and the declarations of a provider."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.machineops.cloud import ANEW, BESIDE, Cloud, SimProvider
from tests.operations.building import operation_of
from tests.operations.faults import FAIR, Incarnation
from unbounded.kube.logs import FIELDS
from unbounded.kube.options import SettingsError
from unbounded.machineops import installed_providers, power, replacement
from unbounded.machineops.main import main as machine_ops_controller
from unbounded.machineops.power import CloudPowerFact
from unbounded.machineops.provider import (
    API_VERSION,
    GROUP,
    Action,
    Cancel,
    Next,
    OperationKind,
    Provider,
    Rate,
    Rates,
    ReplaceStep,
    said,
)
from unbounded.machineops.reasons import MEANING
from unbounded.operations import reasons as common
from unbounded.workflow.procedure import COMPLETE, Procedure

PROVIDER = SimProvider(Cloud(), Incarnation("one", random.Random(0), FAIR))
NAMELESS = object()
NEWER = replace(PROVIDER, api_version="v2")
BARELY_NEWER = SimpleNamespace(api_version="v2")  # the members of v2 may have other names
UNDECLARED = SimpleNamespace(**{name: getattr(PROVIDER, name) for name in dir(Provider) if name[0] != "_"})
del UNDECLARED.api_version


def _procedures() -> dict[str, Procedure]:
    found = {
        f"{kind} {parameters}": make(operation_of(kind=kind, parameters=parameters))
        for kind, make in power.PROCEDURES.items()
        for parameters in ({}, {"deallocate": "true"})
    }
    return found | {"beside": replacement.replace(BESIDE), "anew": replacement.replace(ANEW)}


@pytest.mark.parametrize("name", _procedures())
def test_every_table_is_sound(name: str) -> None:
    assert _procedures()[name].faults() == []


@pytest.mark.parametrize("name", _procedures())
def test_every_reason_of_a_table_has_a_meaning(name: str) -> None:
    procedure = _procedures()[name]
    otherwise = [stage.on_timeout for stage in procedure.stages.values() if stage.on_timeout is not None]
    reasons = {step.fail for step in (*procedure.table.values(), *otherwise) if step.fail is not None}
    assert reasons <= MEANING.keys() | common.MEANING.keys()
    assert not MEANING.keys() & common.MEANING.keys()


def test_nothing_but_off_is_off_and_only_released_is_released() -> None:
    off, released = (power.power_off(release=release) for release in (False, True))
    ends = {
        name: {fact for (_stage, fact), step in procedure.table.items() if step.stage == COMPLETE}
        for name, procedure in (("off", off), ("released", released))
    }
    assert ends == {"off": {CloudPowerFact.STOPPED, CloudPowerFact.RELEASED}, "released": {CloudPowerFact.RELEASED}}
    asked = {step.action for step in released.table.values()} - {None}
    assert asked == {Action.DEALLOCATE}


@pytest.mark.parametrize("steps", [BESIDE, ANEW])
def test_replacement_table_moves_only_forward_with_the_action_of_its_stage(steps: tuple[ReplaceStep, ...]) -> None:
    removing = {replacement.CLEARING, replacement.REMOVING_STATE}
    order = [replacement.CHECKING, *(step.stage for step in steps), replacement.CLEARING, COMPLETE]
    order.append(replacement.REMOVING_STATE)  # to which an aftermath leads, and no row
    asks = {step.stage: step.action for step in steps} | dict.fromkeys(removing, replacement.CLEAR)
    for (stage, fact), step in replacement.replace(steps).table.items():
        assert order.index(step.stage) >= order.index(stage)
        assert (step.stage == replacement.REMOVING_STATE) == (stage == replacement.REMOVING_STATE)
        if step.action is not None:
            assert step.action == asks[step.stage]
            assert fact == step.stage or step.stage in removing


@pytest.mark.parametrize("steps", [BESIDE, ANEW])
def test_steps_that_were_done_already_leave_their_evidence_too(steps: tuple[ReplaceStep, ...]) -> None:
    table = replacement.replace(steps).table
    for place, here in enumerate(steps):
        for fact in [*(step.stage for step in steps[place + 1 :]), replacement.REPLACED]:
            stage, seen = here.stage, []
            while stage not in (fact, replacement.CLEARING):
                step = next(row for (name, found), row in table.items() if (name, found) == (stage, fact))
                seen.append(step.evidence)
                stage = step.stage
            order = [step.stage for step in steps] + [replacement.REPLACED]
            assert seen == [step.seen for step in steps[place : order.index(fact)]]


def test_user_data_is_required_at_preflight_and_before_its_step() -> None:
    def needed(step: str | None, *, checking: bool = False, under_way: bool = False) -> bool:
        found = Next(step, "", "", under_way=under_way)
        return replacement.needs_user_data(BESIDE, found, checking=checking)

    assert needed("Saving", checking=True)
    assert needed("Launching")
    assert not needed("StoppingOld")
    assert not needed("Launching", under_way=True)
    assert not needed("TerminatingOld", checking=True)
    assert not needed(None, checking=True)


def _described(**changed: Any) -> list[str]:
    return installed_providers.faults(replace(PROVIDER, **changed))


class _Stepped(SimProvider):
    steps: tuple[ReplaceStep, ...] = ()

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        return self.steps


def _stepped(*steps: ReplaceStep) -> list[str]:
    provider = _Stepped(PROVIDER.cloud, PROVIDER.life)
    provider.steps = steps
    return installed_providers.faults(provider)


def test_what_a_provider_says_of_itself_is_checked() -> None:
    first, second = (replace(step, cancel=Cancel.TOO_LATE) for step in BESIDE[:2])
    leave = replace(second, cancel=Cancel.AT_ONCE)
    assert _described() == []
    assert _described(kinds=frozenset({OperationKind.NODE_REBOOT, *PROVIDER.kinds})) == [
        "NodeReboot is not a host operation"
    ]
    assert _described(kinds=frozenset({OperationKind.HOST_REBOOT})) == ["steps without HostReplace"]
    assert _described(name="lab/Sim") == ["'lab/Sim' is not a valid value of spec.provider"]
    assert _described(call_limit_s=5.0) == [
        "call_limit_s must exceed 10, as a call may wait that long before it is sent"
    ]
    assert "allows no requests" in _described(rates=Rates(Rate(0, 1), Rate(1, 1)))[0]
    assert _described(parameters={OperationKind.HOST_REBOOT: frozenset({"colour", "force"})}) == [
        "HostReboot has no parameter colour"
    ]
    assert _stepped() == ["kinds contains HostReplace, but replacement has no steps"]
    assert _stepped(first, first) == ["two steps have the stage Saving"]
    assert _stepped(replace(first, stage="Checking")) == ["Checking is a stage of the controller's own"]
    undo = replace(second, undo=True)
    assert _stepped(replace(leave, undo=True), replace(undo, stage="Going"), first) == []
    assert _stepped(first, undo) == ["step StoppingOld can be undone, and one before it cannot be left"]
    assert _stepped(first, leave) == ["step StoppingOld can be left at once, and one before it cannot"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tests.machineops.nowhere:PROVIDER", "lacks a dependency"),
        ("tests.machineops.test_tables:NOTHING", "cannot be resolved"),
        ("tests.machineops.cloud:SimProvider", "names a class"),
        ("tests.machineops.test_tables:PROVIDER", "with the name 'Sim'"),
        ("tests.machineops.test_tables:NAMELESS", "names an object that is not a provider"),
        ("tests.support.unimportable:PROVIDER", "cannot be imported"),
    ],
)
def test_an_entry_point_that_leads_to_no_provider_says_why(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    entry = EntryPoint("Acme", value, GROUP)
    monkeypatch.setattr(installed_providers, "installed", lambda: {"Acme": [entry]})
    with pytest.raises(SettingsError, match=words):
        installed_providers.load("Acme")
    with pytest.raises(SettingsError, match="no provider 'Other' is installed; installed: Acme"):
        installed_providers.load("Other")


def test_a_provider_of_another_release_is_told_what_it_lacks() -> None:
    older = SimpleNamespace(**{name: getattr(PROVIDER, name) for name in ("name", "kinds", "modes", "connect")})
    (fault,) = installed_providers.faults(cast("Any", older))
    assert fault.startswith("it has no call_limit_s, instance, most_user_data, ")


@pytest.mark.parametrize("name", ["NEWER", "BARELY_NEWER"])
def test_a_provider_for_another_version_is_refused_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint("Sim", f"tests.machineops.test_tables:{name}", GROUP)
    monkeypatch.setattr(installed_providers, "installed", lambda: {"Sim": [entry]})
    refused = "it implements 'v2' of the provider API, but this release serves 'v1'"
    with pytest.raises(SettingsError, match=f"^provider Sim cannot be served: {refused}$"):
        installed_providers.load("Sim")
    assert machine_ops_controller(["providers"]) == 0
    assert refused in capsys.readouterr().out


def test_a_provider_that_declares_no_version_is_served_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = EntryPoint("Sim", "tests.machineops.test_tables:UNDECLARED", GROUP)
    monkeypatch.setattr(installed_providers, "installed", lambda: {"Sim": [entry]})
    served = installed_providers.load_served("")
    assert served.providers == {"Sim": UNDECLARED}
    served.log_unserved()
    (record,) = caplog.records
    assert (record.getMessage(), getattr(record, FIELDS)["provider"]) == ("provider declares no api_version", "Sim")
    assert "treated as 'v1'" in getattr(record, FIELDS)["why"]


def test_the_providers_that_come_with_the_project_are_written_for_its_version() -> None:
    for name in installed_providers.EXTRAS:
        assert installed_providers.load(name).api_version == API_VERSION == installed_providers.UNDECLARED


def test_a_name_that_two_packages_bring_is_served_for_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"Sim": [EntryPoint("Sim", f"tests.machineops.test_tables:{name}", GROUP) for name in ("PROVIDER", "X")]}
    monkeypatch.setattr(installed_providers, "installed", lambda: entries)
    with pytest.raises(
        SettingsError, match=r"provider Sim is registered by .*PROVIDER.* and .*: uninstall all but one"
    ):
        installed_providers.load("Sim")
    same = EntryPoint("Sim", "tests.machineops.test_tables:PROVIDER", GROUP)
    entries["Sim"] = [same, same]
    assert installed_providers.load("Sim") is PROVIDER


def test_broken_provider_does_not_prevent_serving_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    entries = {
        name: [EntryPoint(name, value, GROUP)]
        for name, value in (
            ("Broken", "tests.support.unimportable:PROVIDER"),
            ("Sim", "tests.machineops.test_tables:PROVIDER"),
        )
    }
    monkeypatch.setattr(installed_providers, "installed", lambda: entries)
    served = installed_providers.load_served("")
    assert served.providers == {"Sim": PROVIDER}
    assert served.unserved.keys() == {"Broken"}
    assert caplog.records == []
    served.log_unserved()
    (record,) = caplog.records
    said_of = getattr(record, FIELDS)
    assert (record.getMessage(), said_of["provider"]) == ("provider is not served", "Broken")
    assert "broken" in said_of["why"]
    assert machine_ops_controller(["providers"]) == 0
    shown = capsys.readouterr().out
    assert "Broken (tests.support.unimportable:PROVIDER): not served: " in shown
    assert "Sim (tests.machineops.test_tables:PROVIDER)\n" in shown


def test_what_a_cloud_says_is_cut_and_cleaned() -> None:
    assert said("a\x1b[31mb\n\tc  d") == "a [31mb c d"
    assert said("key s3cret and s3cret-long", hide=["s3cret", "s3cret-long", ""]) == "key *** and ***"
    assert len(said("x" * 10_000)) == 512
    assert said("x" * 10_000).endswith("…")
