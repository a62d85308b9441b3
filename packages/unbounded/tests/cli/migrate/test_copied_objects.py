"""Each kind of the embedded server is copied, or omitted for a reason; names are translated everywhere."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest

from unbounded.cli.migrate.copied_objects import COPIED, LEFT, machine_status, translated, translated_data
from unbounded.cli.migrate.sides import too_old
from unbounded_apiserver.served_resources import Catalog

OLD: Final = "11111111-2222-4333-8444-555555555555"
NEW: Final = "99999999-2222-4333-8444-555555555555"
OTHER: Final = "aaaaaaaa-2222-4333-8444-555555555555"


def test_no_kind_of_the_server_is_forgotten() -> None:
    copied = {(kind.group, kind.plural) for kind in COPIED}
    left = {tuple(name.partition(".")[::2]) for name in LEFT}
    served = {(one.group, one.plural) for one in Catalog() if one.view is None and not one.plural.endswith("reviews")}
    assert served == {(group, plural) for group, plural in copied if group != "unbounded-cloud.io"} | {
        (group, plural) for plural, group in left
    }


def test_a_uid_is_translated_wherever_it_stands_and_others_stay() -> None:
    value = {f"a/{OLD}": [f"HostReplace/{OLD}", {"b": OTHER}, 7, None]}
    assert translated(value, {OLD: NEW}) == {f"a/{NEW}": [f"HostReplace/{NEW}", {"b": OTHER}, 7, None]}


def test_only_keys_of_secrets_that_name_objects_are_translated() -> None:
    data = {
        key: base64.b64encode(value).decode()
        for key, value in {
            "auth-extra-groups": f"a,{OLD}".encode(),
            "operationUID": OLD.encode(),
            "password": b"\xff\x00" + OLD.encode(),
        }.items()
    }
    found = {key: base64.b64decode(value) for key, value in translated_data(data, {OLD: NEW}).items()}
    assert found == {
        "auth-extra-groups": f"a,{NEW}".encode(),
        "operationUID": NEW.encode(),
        "password": b"\xff\x00" + OLD.encode(),
    }


def test_migration_keeps_credential_rejections_only_of_unchanged_secrets() -> None:
    refused = [
        {"hop": "host", "secretVersion": "unbounded-kube/key@7", "generation": 4},
        {"hop": "bastion", "secretVersion": "unbounded-kube/key@6", "generation": 3},
    ]
    status: dict[str, Any] = {"ssh": {"refused": refused}, "redfish": {"refusedSecretVersion": "5"}}
    assert machine_status(status, {"7": "70"}, {4: 1}) == {
        "ssh": {"refused": [{"hop": "host", "secretVersion": "unbounded-kube/key@70", "generation": 1}]},
        "redfish": {},
    }
    status = {"provisioning": {"generation": 3}, "redfish": {"refusedSecretVersion": "7"}}
    assert machine_status(status, {"7": "70"}, {4: 1}) == {
        "provisioning": {"generation": 0},
        "redfish": {"refusedSecretVersion": "70"},
    }


def test_migrated_update_of_a_node_has_no_generation_of_its_version() -> None:
    status = {"nodeUpdate": {"version": "c-v2", "uid": "u", "generation": 4, "phase": "Failed"}}
    assert machine_status(status, {}, {4: 1})["nodeUpdate"] == status["nodeUpdate"] | {"generation": 0}


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v1.36.2", ""),
        ("v1.32.0+k3s1", ""),
        ("v1.31.4", "the oldest supported version is 1.32"),
        ("nothing", "not a version of Kubernetes"),
    ],
)
def test_versions_of_kubernetes(version: str, words: str) -> None:
    assert words in too_old(version)
    assert bool(words) is bool(too_old(version))
