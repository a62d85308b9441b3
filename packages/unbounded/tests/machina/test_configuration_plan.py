"""Decisions about the versions of a configuration, and bindings of Machines: values in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.machina.asking import active, machine_of
from unbounded.api.configuration import MachineConfiguration
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_BOUND
from unbounded.machina.configuration_binding import (
    BindingOptions,
    BindTo,
    Decision,
    KeepBinding,
    SetPending,
    Unbind,
    bind,
    candidate_of,
    in_order,
)
from unbounded.machina.configuration_plan import (
    Action,
    AdoptVersion,
    AnnounceChange,
    ConfigurationObservation,
    ConfigurationUsers,
    CreateVersion,
    DeleteVersion,
    EditVersion,
    ObservedVersion,
    ReserveNumber,
    VersionsPlan,
    VersionUsers,
    WithdrawChange,
    WriteUsers,
    configurations_of,
    names_text,
    plan,
    usage_of,
)

OLD, NEW = {"kubernetes": {"version": "v1.33.0"}}, {"kubernetes": {"version": "v1.34.0"}}


def version(number: int, template: dict[str, Any] | None = None, **facts: Any) -> ObservedVersion:
    facts = {"in_use": "", **facts}
    return ObservedVersion(f"c-v{number}", number, OLD if template is None else template, **facts)


def planned(
    *versions: ObservedVersion,
    template: dict[str, Any] | None = None,
    used: dict[int, VersionUsers] | None = None,
    limit: int = 10,
    latest: int | None = None,
    **more: Any,
) -> VersionsPlan:
    highest = max((one.number for one in versions), default=0) if latest is None else latest
    usage = ConfigurationUsers(used or {}, VersionUsers())
    return plan(
        ConfigurationObservation("c", OLD if template is None else template, limit, highest, versions, usage, **more)
    )


# Versions


def test_first_version_number_is_reserved_before_its_creation() -> None:
    assert planned().actions == (ReserveNumber(1),)
    assert planned(latest=1, reserved=1).actions == (CreateVersion(1, OLD),)


def test_a_template_that_stays_changes_nothing() -> None:
    assert planned(version(1), version(2)) == VersionsPlan((), 2, 2)


def test_what_was_not_deployed_is_edited_after_it_was_said() -> None:
    newest, announced = version(2), version(2, announced=True)
    assert planned(version(1, NEW, deployed=True), newest, template=NEW).actions == (AnnounceChange(newest),)
    assert planned(version(1, NEW, deployed=True), announced, template=NEW).actions == (EditVersion(announced, NEW),)


def test_what_is_not_to_change_any_more_says_so_no_longer() -> None:
    announced = version(1, announced=True)
    assert planned(announced).actions == (WithdrawChange(announced),)
    assert planned(announced, deleting=True).actions == (WithdrawChange(announced),)
    taken = version(1, announced=True, deployed=True)
    assert planned(taken, template=NEW).actions == (WithdrawChange(taken), ReserveNumber(2))


def test_what_was_deployed_stays_and_the_next_number_follows() -> None:
    deployed = version(2, deployed=True)
    assert planned(version(1), deployed, template=NEW).actions == (ReserveNumber(3),)
    assert planned(version(1), deployed, template=NEW, latest=3, reserved=3).actions == (CreateVersion(3, NEW),)


def test_template_equal_to_an_older_version_creates_a_new_version() -> None:
    """Machines take the newest: the old number would not reach them."""
    assert planned(version(1, OLD), version(2, NEW, deployed=True), template=OLD).actions == (ReserveNumber(3),)


@pytest.mark.parametrize(
    ("latest", "reserved", "action"),
    [(5, 0, ReserveNumber(6)), (5, 5, CreateVersion(5, OLD)), (5, 4, ReserveNumber(6)), (2, 2, ReserveNumber(3))],
    ids=["given out before a restart", "given out by us", "given out after ours", "ours is made"],
)
def test_a_number_is_never_given_out_twice(latest: int, reserved: int, action: Action) -> None:
    versions = () if latest == 5 else (version(2, NEW, deployed=True),)
    assert planned(*versions, latest=latest, reserved=reserved).actions == (action,)


def test_versions_of_a_former_configuration_only_raise_the_number() -> None:
    assert planned(version(4, own=False), latest=0).actions == (ReserveNumber(5),)


def test_a_version_that_belongs_to_nobody_is_adopted() -> None:
    lost = version(1, own=False, orphan=True)
    assert planned(lost, latest=0).actions == (AdoptVersion(lost),)


def test_use_is_written_down_before_anything_is_edited() -> None:
    newest = version(1)
    use = VersionUsers(made=("m1", "m2"))
    assert planned(newest, template=NEW, used={1: use}).actions == (WriteUsers(newest, True, use),)
    noted = version(1, deployed=True, deployed_machines=2, in_use=use.text)
    assert planned(noted, template=NEW, used={1: use}).actions == (ReserveNumber(2),)
    left = planned(noted, template=NEW).actions
    assert left == (WriteUsers(noted, True, VersionUsers()),)


def test_history_limit_applies_to_unused_versions() -> None:
    pinned, made = VersionUsers(named=("m1",)), VersionUsers(made=("m2",))
    versions = (
        version(1, deployed=True),
        version(2, deployed=True, in_use=pinned.text),
        version(3),
        version(4, deployed=True, deployed_machines=1, in_use=made.text),
        version(5, deployed=True),
        version(6),
    )
    used = {2: pinned, 4: made}
    gone = {limit: planned(*versions, used=used, limit=limit).actions for limit in (3, 2, 1, 0)}
    one, three, five = (AnnounceChange(versions[index]) for index in (0, 2, 4))
    assert gone == {3: (), 2: (three,), 1: (three, one), 0: (three, one, five)}
    announced = replace(versions[2], announced=True)
    assert planned(*versions[:2], announced, *versions[3:], used=used, limit=2).actions == (DeleteVersion(announced),)


def test_nothing_is_made_or_edited_for_a_configuration_that_is_going() -> None:
    assert planned(deleting=True).actions == ()
    assert planned(version(1), template=NEW, deleting=True).actions == ()


def test_version_in_deletion_is_not_edited_and_its_number_not_reused() -> None:
    assert planned(version(1, deleting=True), template=NEW).actions == (ReserveNumber(2),)


# Use


def made_from(name: str, number: int, machine: str, **spec: Any) -> Machine:
    return machine_of(machine, status={"configuration": {"name": name, "version": number}}, **spec)


def moving(name: str, number: int, next_number: int, *, to: str = "") -> dict[str, Any]:
    """The status of a Machine whose agent recreates the node, from another version."""
    slot = {**active("NodeRecreation", "u"), "configuration": {"name": to or name, "version": next_number}}
    return {"configuration": {"name": name, "version": number}, "activeOperation": slot}


def refers(machine: str, number: int | None = None, *, by_us: bool = False) -> Machine:
    ref = {"name": "c"} if number is None else {"name": "c", "version": number}
    marks = {"annotations": {ANNOTATION_BOUND: "c"}} if by_us else {}
    return machine_of(machine, metadata=marks, configurationRef=ref)


def test_who_uses_a_configuration_is_read_from_the_machines() -> None:
    machines = [
        made_from("c", 1, "b"),
        made_from("c", 1, "a"),
        made_from("other", 1, "x"),
        machine_of("moving", status=moving("c", 1, 3)),
        refers("pinned", 2),
        refers("follows"),
        refers("selected", by_us=True),
        refers("pinned-later", 2, by_us=True),
    ]
    usage = usage_of("c", machines)
    assert usage.versions == {
        1: VersionUsers(made=("a", "b", "moving")),
        2: VersionUsers(named=("pinned", "pinned-later")),
        3: VersionUsers(made=("moving",)),
    }
    assert usage.whole == VersionUsers(made=("a", "b", "moving"), named=("follows", "pinned", "pinned-later"))
    assert usage.versions[1].text == "the node of a, b, moving uses it"
    assert configurations_of(machine_of(status=moving("c", 1, 3, to="d"))) == ("c", "d")
    assert not usage_of("none", machines).whole


def test_many_names_are_cut() -> None:
    assert names_text(tuple("abcdefg")) == "a, b, c, d, e and 2 more"


# Binding


def configuration(name: str, selector: Any = None, priority: int = 0, *, going: bool = False) -> MachineConfiguration:
    meta = {"name": name, **({"deletionTimestamp": "2030-01-01T00:00:00Z"} if going else {})}
    spec: dict[str, Any] = {"template": {}, "priority": priority}
    if selector is not None:
        spec["machineSelector"] = selector
    return msgspec.convert({"metadata": meta, "spec": spec}, MachineConfiguration)


ROLE_A = {"matchLabels": {"role": "a"}}
ALL = (
    configuration("by-name-b", ROLE_A, 5),
    configuration("by-name-a", ROLE_A, 5),
    configuration("low", ROLE_A, 1),
    configuration("going", ROLE_A, 99, going=True),
    configuration("named-only", None, 99),
    configuration("broken", {"matchExpressions": [{"key": "role", "operator": "In"}]}, 99),
)


def bound(
    machine: Machine, configurations: Sequence[MachineConfiguration] = ALL, numbers: frozenset[int] = frozenset({1})
) -> Decision:
    candidates = [one for one in map(candidate_of, configurations) if one is not None]
    names = [one.metadata.name for one in configurations]
    newest = {name: max(numbers) for name in names} if numbers else {}
    return bind(machine, BindingOptions(in_order(candidates), dict.fromkeys(names, numbers), newest))


def machine_with(
    role: str = "a", ref: Any = None, mark: str | None = None, status: dict[str, Any] | None = None
) -> Machine:
    meta = {"labels": {"role": role}, "annotations": {ANNOTATION_BOUND: mark} if mark else {}}
    return machine_of(metadata=meta, status=status, **({"configurationRef": ref} if ref else {}))


def test_the_highest_priority_binds_and_then_the_first_name() -> None:
    assert bound(machine_with()) == BindTo("by-name-a")
    assert bound(machine_with(), [*ALL, configuration("z", {}, 6)]) == BindTo("z")


def test_an_empty_selector_selects_every_machine() -> None:
    assert bound(machine_with("b"), [configuration("all", {})]) == BindTo("all")


def test_what_somebody_has_written_stays() -> None:
    said = bound(machine_with(ref={"name": "low"}))
    assert said == SetPending(False, "MachineConfiguration low: its node uses its newest version, now 1")
    said = bound(machine_with(ref={"name": "by-name-a", "version": 1}, mark="by-name-a"))
    assert said == SetPending(False, "MachineConfiguration by-name-a: its node uses its version 1")
    assert isinstance(bound(machine_with(ref={"name": "low"}, mark="by-name-a")), SetPending)


def test_what_a_selector_led_to_follows_it() -> None:
    assert bound(machine_with(ref={"name": "low"}, mark="low")) == BindTo("by-name-a")
    assert isinstance(bound(machine_with(ref={"name": "by-name-a"}, mark="by-name-a")), SetPending)
    assert bound(machine_with("b", {"name": "low"}, "low")) == Unbind()


PENDING: list[tuple[str, Any, frozenset[int], str]] = [
    ("no such configuration", {"name": "x"}, frozenset({1}), "MachineConfiguration x, which does not exist"),
    (
        "no such version",
        {"name": "low", "version": 9},
        frozenset({1}),
        "MachineConfiguration low has no version 9, which spec.configurationRef names",
    ),
    ("no version yet", {"name": "low"}, frozenset(), "MachineConfiguration low has no version yet"),
]


@pytest.mark.parametrize(("ref", "numbers", "words"), [row[1:] for row in PENDING], ids=[row[0] for row in PENDING])
def test_a_reference_that_leads_nowhere_is_said(ref: Any, numbers: frozenset[int], words: str) -> None:
    said = bound(machine_with(ref=ref), numbers=numbers)
    assert isinstance(said, SetPending)
    assert said.pending
    assert words in said.message


def test_a_machine_that_nothing_selects_hears_nothing_of_configurations() -> None:
    assert bound(machine_with("b")) == KeepBinding()
    assert bound(machine_of(kubernetes={"version": "v1.34.0"}), []) == KeepBinding()


def test_node_without_its_former_configuration_is_reported_as_pending() -> None:
    said = bound(machine_with("b", status={"configuration": {"name": "low", "version": 1}}))
    assert isinstance(said, SetPending)
    assert said.pending
    assert (
        "its node was created from MachineConfiguration low, and no MachineConfiguration selects it now" in said.message
    )


def test_what_was_pending_is_resolved_when_no_configuration_is_wanted_any_more() -> None:
    pending = {"type": "ConfigurationPending", "status": "True", "reason": "Pending", "lastTransitionTime": "x"}
    said = bound(machine_with("b", status={"conditions": [pending]}))
    assert said == SetPending(False, "no MachineConfiguration selects it: its node uses the Machine's own spec")
