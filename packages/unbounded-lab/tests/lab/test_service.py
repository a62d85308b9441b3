"""The Redfish service without a socket: a request and the time in, a reply out."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_lab.bmc.device import SimulatedBmc
from unbounded_lab.bmc.faults import IDEAL, BmcFaults
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.bmc.profiles import faults_for, misbehaviours_for, names
from unbounded_lab.bmc.redfish import BmcRequest
from unbounded_lab.bmc.service import admit, answer
from unbounded_lab.faults import changed, non_default
from unbounded_lab.http import Delivery, LabReply

ROOT = "/redfish/v1"
SYSTEM = f"{ROOT}/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
SESSIONS = f"{ROOT}/SessionService/Sessions"
IDENTITY = BmcIdentity("bmc")


def basic(password: str = IDENTITY.password) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"admin:{password}".encode()).decode()}


class Talk:
    """A conversation with a BMC at times that the test sets."""

    def __init__(self, faults: BmcFaults = IDEAL) -> None:
        self.now = 1_000.0
        self.bmc = SimulatedBmc(IDENTITY, faults, now=self.now)
        self.headers = basic()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> LabReply:
        content = b"" if body is None else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = BmcRequest(method, path, {**self.headers, **named}, content)
        if admit(self.bmc, request, self.now).dropped:
            return LabReply(fate=Delivery.DROPPED)
        return answer(self.bmc, request, self.now)

    def get(self, path: str) -> dict[str, Any]:
        return read(self.ask("GET", path))

    def reset(self, reset_type: str) -> int:
        return self.ask("POST", RESET, {"ResetType": reset_type}).status

    def login(self, password: str = IDENTITY.password) -> LabReply:
        self.headers = {}
        return self.ask("POST", SESSIONS, {"UserName": "admin", "Password": password})


def read(reply: LabReply) -> dict[str, Any]:
    return msgspec.json.decode(reply.body, type=dict[str, Any])


def message_id(reply: LabReply) -> str:
    return str(read(reply)["error"]["@Message.ExtendedInfo"][0]["MessageId"])


def test_the_root_is_open_and_all_else_wants_credentials() -> None:
    talk = Talk()
    talk.headers = {}
    assert (
        talk.ask("GET", ROOT).status == talk.ask("GET", f"{ROOT}/").status == talk.ask("GET", "/redfish").status == 200
    )
    for path in (SYSTEM, f"{ROOT}/Systems", SESSIONS, f"{ROOT}/Nothing"):
        assert talk.ask("GET", path).status == 401


def test_every_link_leads_somewhere() -> None:
    talk, seen, types, open_links = Talk(), set[str](), set[str](), [f"{ROOT}/"]
    while open_links:
        path = open_links.pop()
        if path not in seen:
            seen.add(path)
            reply = talk.ask("GET", path)
            assert reply.status == 200, path
            assert reply.headers["etag"] == read(reply)["@odata.etag"]
            open_links += links(read(reply))
            types.add(read(reply)["@odata.type"].removeprefix("#").rpartition(".")[0])
    assert SYSTEM in seen
    assert len(seen) > 20
    talk.headers = {}
    metadata = ElementTree.fromstring(talk.ask("GET", f"{ROOT}/$metadata").body)
    assert types <= {element.get("Namespace") for element in metadata.iter() if element.tag.endswith("}Include")}


def links(value: Any) -> list[str]:
    if isinstance(value, list):
        return [link for each in value for link in links(each)]
    if isinstance(value, dict):
        own = [link for name in ("@odata.id", "@Redfish.ActionInfo") if isinstance(link := value.get(name), str)]
        return own + [link for each in value.values() for link in links(each)]
    return []


def test_an_unknown_path_is_404_and_a_wrong_method_405() -> None:
    talk = Talk()
    assert talk.ask("GET", f"{ROOT}/Systems/2").status == 404
    assert talk.ask("GET", f"/{ROOT}").status == 404
    reply = talk.ask("DELETE", SYSTEM)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, PATCH")


def test_a_reset_is_followed_by_power_state() -> None:
    talk = Talk()
    assert talk.reset("GracefulShutdown") == 204
    assert talk.get(SYSTEM)["PowerState"] == "PoweringOff"
    talk.now += 1.0
    assert talk.get(SYSTEM)["PowerState"] == "Off"
    assert talk.reset("On") == 204
    assert talk.get(SYSTEM)["PowerState"] == "PoweringOn"
    talk.now += 2.0
    assert talk.get(SYSTEM)["PowerState"] == "On"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "Base.1.18.ActionParameterMissing"),
        ({"ResetType": "Explode"}, "Base.1.18.ActionParameterValueNotInList"),
        ({"ResetType": ["On"]}, "Base.1.18.ActionParameterValueNotInList"),
        ({"ResetType": "On", "Now": True}, "Base.1.18.ActionParameterNotSupported"),
        ([1], "Base.1.18.MalformedJSON"),
    ],
)
def test_a_wrong_reset_is_refused_with_what_is_wrong(body: Any, expected: str) -> None:
    reply = Talk().ask("POST", RESET, body)
    assert (reply.status, message_id(reply)) == (400, expected)


def test_a_session_stands_for_its_password_until_it_is_deleted() -> None:
    talk = Talk()
    reply = talk.login()
    location, token = reply.headers["location"], reply.headers["x-auth-token"]
    assert (reply.status, read(reply)["@odata.id"]) == (201, location)
    assert "oken" not in reply.body.decode()
    assert talk.ask("GET", SYSTEM, x_auth_token=token).status == 200
    assert talk.ask("DELETE", location, x_auth_token=token).status == 204
    assert talk.ask("GET", SYSTEM, x_auth_token=token).status == 401


def test_an_idle_session_times_out() -> None:
    talk = Talk(replace(IDEAL, session_timeout_s=60.0))
    token = talk.login().headers["x-auth-token"]
    for _ in range(3):
        talk.now += 59.0
        assert talk.ask("GET", SYSTEM, x_auth_token=token).status == 200
    talk.now += 61.0
    assert talk.ask("GET", SYSTEM, x_auth_token=token).status == 401


def test_a_wrong_password_is_401_and_counted() -> None:
    talk = Talk()
    assert talk.login("wrong").status == 401
    assert talk.ask("GET", SYSTEM, **basic("wrong")).status == 401
    assert talk.ask("GET", SYSTEM, authorization="Basic ???").status == 401
    assert talk.bmc.access.refused_logins == 2


def test_a_changed_password_replaces_the_old_one() -> None:
    talk = Talk()
    account = f"{ROOT}/AccountService/Accounts/1"
    assert talk.ask("PATCH", account, {"Password": "another one"}).status == 200
    assert talk.ask("GET", SYSTEM).status == 401
    assert talk.ask("GET", SYSTEM, **basic("another one")).status == 200


ACCOUNT = f"{ROOT}/AccountService/Accounts/1"


def test_a_password_changes_as_the_faults_say() -> None:
    late = Talk(BmcFaults(rotation_after_s=5.0, rotation_ends_sessions=True))
    token = {"x_auth_token": late.login().headers["x-auth-token"]}
    assert late.ask("PATCH", ACCOUNT, {"Password": "another one"}, **token).status == 200
    assert late.ask("GET", SYSTEM, **token).status == 200
    late.now += 5.0
    assert late.ask("GET", SYSTEM, **token).status == 401
    assert late.login("another one").status == 201

    refusing = Talk(BmcFaults(rotation="refused"))
    refused = refusing.ask("PATCH", ACCOUNT, {"Password": "another one"})
    assert (refused.status, refusing.bmc.access.password) == (400, IDENTITY.password)
    assert Talk(BmcFaults(rotation="absent")).ask("PATCH", ACCOUNT, {"Password": "another one"}).status == 400

    ignoring = Talk(BmcFaults(rotation="ignored"))
    assert ignoring.ask("PATCH", ACCOUNT, {"Password": "another one"}).status == 200
    assert ignoring.bmc.access.password == IDENTITY.password


def test_a_password_changes_by_the_action_that_wants_the_former_one() -> None:
    talk = Talk(BmcFaults(rotation="action", password_lengths=(8, 20)))
    assert talk.ask("PATCH", ACCOUNT, {"Password": "another one"}).status == 400
    action = talk.get(ACCOUNT)["Actions"]["#ManagerAccount.ChangePassword"]["target"]
    assert talk.ask("POST", action, {"NewPassword": "another one", "SessionAccountPassword": "wrong"}).status == 403
    body = {"NewPassword": "another one", "SessionAccountPassword": IDENTITY.password}
    assert talk.ask("POST", action, body).status == 204
    assert talk.ask("GET", SYSTEM, **basic("another one")).status == 200
    assert talk.ask("GET", SYSTEM, **basic()).status == 401


def test_the_boot_override_is_kept_and_used_up() -> None:
    talk = Talk()
    boot = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}
    reply = talk.ask("PATCH", SYSTEM, {"Boot": boot})
    assert read(reply)["Boot"] | boot == read(reply)["Boot"]
    assert talk.get(SYSTEM)["Boot"] | boot == talk.get(SYSTEM)["Boot"]
    talk.reset("ForceRestart")
    assert talk.get(SYSTEM)["Boot"]["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.parametrize(
    "body",
    [
        {"Boot": {"BootSourceOverrideTarget": "Moon"}},
        {"Boot": {"BootNext": "x"}},
        {"Boot": "Pxe"},
        {"HostName": "x"},
        {},
    ],
)
def test_a_wrong_patch_changes_nothing(body: Any) -> None:
    talk = Talk()
    before = talk.get(SYSTEM)
    assert talk.ask("PATCH", SYSTEM, body).status == 400
    assert talk.get(SYSTEM) == before


def test_a_patch_with_an_old_etag_is_refused() -> None:
    talk = Talk()
    boot = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}
    etag = talk.get(SYSTEM)["@odata.etag"]
    assert talk.ask("PATCH", SYSTEM, boot, if_match=etag).status == 200
    assert talk.ask("PATCH", SYSTEM, boot, if_match=etag).status == 412
    assert talk.ask("PATCH", SYSTEM, boot, if_match="*").status == 200


def test_a_restart_of_the_bmc_ends_sessions_and_leaves_the_host_alone() -> None:
    talk = Talk()
    token = talk.login().headers["x-auth-token"]
    talk.headers = basic()
    path = f"{ROOT}/Managers/BMC/Actions/Manager.Reset"
    before = talk.get(f"{ROOT}/Managers/BMC")["LastResetTime"]
    talk.now += 5.0
    assert talk.ask("POST", path, {"ResetType": "GracefulRestart"}).status == 204
    assert talk.bmc.listening(talk.now) == (True, talk.now + 0.1)
    assert talk.bmc.listening(talk.now + 0.1) == (False, talk.now + 2.0)
    assert talk.bmc.listening(talk.now + 2.0) == (True, None)
    reply = talk.ask("GET", SYSTEM)
    assert (reply.status, reply.headers["retry-after"]) == (503, "3")
    talk.now += 3.0
    assert talk.get(SYSTEM)["PowerState"] == "On"
    assert talk.get(f"{ROOT}/Managers/BMC")["LastResetTime"] > before
    talk.headers = {}
    assert talk.ask("GET", SYSTEM, x_auth_token=token).status == 401


def test_a_bmc_without_a_reset_of_its_own_says_so() -> None:
    talk = Talk(BmcFaults(manager_reset="absent", last_reset_shown=False))
    talk.headers = basic()
    manager = talk.get(f"{ROOT}/Managers/BMC")
    assert not {"Actions", "LastResetTime"} & manager.keys()
    path = f"{ROOT}/Managers/BMC/Actions/Manager.Reset"
    assert talk.ask("POST", path, {"ResetType": "GracefulRestart"}).status == 400


UPDATE = f"{ROOT}/UpdateService/Actions/UpdateService.SimpleUpdate"
BIOS = f"{ROOT}/UpdateService/FirmwareInventory/BIOS"


def test_an_update_is_a_task_at_whose_end_the_version_changes() -> None:
    talk = Talk()
    talk.headers = basic()
    body = {"ImageURI": "https://x/BIOS-2.5.0.bin", "TransferProtocol": "HTTPS", "Targets": [BIOS]}
    reply = talk.ask("POST", UPDATE, body)
    assert reply.status == 202
    task = msgspec.json.decode(reply.body)["@odata.id"]
    talk.now += 30.0
    assert (talk.get(task)["TaskState"], talk.get(task)["PercentComplete"]) == ("Running", 50)
    assert talk.get(task)["Payload"]["TargetUri"] == UPDATE
    assert talk.get(BIOS)["Version"] == "2.4.1"
    talk.now += 30.0
    assert talk.get(task)["TaskState"] == "Completed"
    assert (talk.get(BIOS)["Version"], talk.get(SYSTEM)["BiosVersion"]) == ("2.5.0", "2.5.0")


def test_an_image_that_does_not_fit_its_target_ends_as_an_exception() -> None:
    talk = Talk()
    talk.headers = basic()
    task = msgspec.json.decode(talk.ask("POST", UPDATE, {"ImageURI": "https://x/NIC1-1.bin", "Targets": [BIOS]}).body)[
        "@odata.id"
    ]
    talk.now += 60.0
    assert talk.get(task)["TaskState"] == "Exception"
    assert "Verification of image" in talk.get(task)["Messages"][0]["Message"]
    assert talk.get(BIOS)["Version"] == "2.4.1"


def test_an_update_of_the_bmc_restarts_it() -> None:
    talk = Talk()
    talk.headers = basic()
    task = msgspec.json.decode(talk.ask("POST", UPDATE, {"ImageURI": "https://x/BMC-1.1.0.bin"}).body)["@odata.id"]
    talk.now += 60.0
    assert talk.ask("GET", task).status == 503
    talk.now += 3.0
    assert talk.ask("GET", task).status == 404
    assert talk.get(f"{ROOT}/Managers/BMC")["FirmwareVersion"] == "1.1.0"


def test_a_chassis_reset_cycles_all_hosts() -> None:
    talk = Talk(replace(IDEAL, systems=("A", "B"), deaf_resets=-1))
    path = f"{ROOT}/Chassis/1/Actions/Chassis.Reset"
    assert talk.ask("POST", path, {"ResetType": "PowerCycle"}).status == 204
    assert {system.host.power for system in talk.bmc.systems} == {HostPower.OFF}


def test_faults_turned_while_it_runs_begin_their_counts_anew() -> None:
    talk = Talk(replace(IDEAL, deaf_resets=1))
    talk.reset("ForceOff")
    talk.bmc.set_faults(replace(IDEAL, deaf_resets=1), talk.now)
    talk.reset("ForceOff")
    assert talk.get(SYSTEM)["PowerState"] == "On"
    talk.reset("ForceOff")
    assert talk.get(SYSTEM)["PowerState"] == "Off"


def test_faults_are_set_by_name_and_refused_by_name() -> None:
    faults = changed(IDEAL, {"slow_s": [1, 2], "systems": ["A"]})
    assert (faults.slow_s, faults.systems) == ((1.0, 2.0), ("A",))
    assert non_default(faults).keys() == {"slow_s", "systems"}
    with pytest.raises(ValueError, match="unknown fault: sloow"):
        changed(IDEAL, {"sloow": 1})
    with pytest.raises(ValueError, match="etags"):
        changed(IDEAL, {"etags": "sticky"})


def test_each_misbehaviour_sets_a_fault_and_says_where_it_was_seen() -> None:
    assert len(MISBEHAVIOURS) >= 20
    for name, turn in MISBEHAVIOURS.items():
        assert non_default(turn(IDEAL)), name
        first, _, rest = (turn.__doc__ or "").partition("\n")
        assert first.endswith("."), name
        assert rest.strip(), name


def test_a_profile_is_a_name_several_joined_or_several_in_turns() -> None:
    assert faults_for("ideal") == IDEAL
    assert non_default(faults_for("slow+no-etags")).keys() == {"slow_s", "etags"}
    turns = [misbehaviours_for("ideal,slow,stalls+no-etags", index=index) for index in range(4)]
    assert turns == [(), ("slow",), ("stalls", "no-etags"), ()]
    assert [misbehaviours_for("ideal*2,slow", index=index) for index in range(3)] == [(), (), ("slow",)]
    for nonsense in ("slow*0", "slow*x", "slow*", ""):
        with pytest.raises(ValueError, match="unknown profile"):
            faults_for(nonsense)
    with pytest.raises(ValueError, match="unknown profile: sloow; the profiles are ideal, field"):
        faults_for("slow+sloow")
    assert all(faults_for(name) for name in names())


def test_the_field_is_a_mix_that_its_seed_repeats() -> None:
    def field(seed: int) -> list[tuple[str, ...]]:
        return [misbehaviours_for("field", seed=seed, index=index) for index in range(200)]

    assert field(1) == field(1) != field(2)
    ideal = sum(not faults for faults in field(1))
    assert 90 < ideal < 150
    assert len({fault for faults in field(1) for fault in faults}) > 15


any_faults = st.lists(st.sampled_from(sorted(MISBEHAVIOURS)), max_size=6).map(
    lambda some: faults_for("+".join(some) or "ideal")
)
any_request = st.tuples(
    st.sampled_from(["GET", "POST", "PATCH", "DELETE", "HEAD", "PUT"]),
    st.sampled_from(
        [ROOT, SYSTEM, RESET, SESSIONS, f"{SESSIONS}/1", f"{ROOT}/TaskService/Tasks/1", f"{SYSTEM}/", "/x", ""]
    ),
    st.none()
    | st.sampled_from([{"ResetType": "On"}, {"ResetType": "ForceOff"}, {"Boot": {"BootSourceOverrideEnabled": "Once"}}])
    | st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
    st.floats(0.0, 15.0),
)


@pytest.mark.slow
@given(any_faults, st.lists(any_request, max_size=25))
def test_whatever_is_asked_under_whatever_faults_there_is_an_answer(
    faults: BmcFaults, requests: list[tuple[str, str, Any, float]]
) -> None:
    talk = Talk(faults)
    for method, path, body, pause in requests:
        talk.now += pause
        reply = talk.ask(method, path, body)
        assert 200 <= reply.status < 600
        assert reply.hold_s >= 0.0
        if reply.status >= 400 and reply.fate is Delivery.SENT:
            assert message_id(reply)
    assert talk.bmc.requests == len(requests) == len(talk.bmc.journal)
    assert len(talk.bmc.access.sessions(talk.now, faults)) <= max(0, faults.session_limit - faults.leaked_sessions)


def test_a_bmc_listens_or_does_not_and_says_when_that_changes() -> None:
    def door(now: float, **settings: Any) -> tuple[bool, float | None]:
        return SimulatedBmc(IDENTITY, changed(IDEAL, settings), now=100.0).listening(now)

    assert door(100.0) == (True, None)
    assert door(100.0, refused_s=-1) == (False, None)
    assert door(109.0, refused_s=10) == (False, 110.0)
    assert door(110.0, refused_s=10) == (True, None)
    assert [door(now, flaps_s=[2, 1]) for now in (100.0, 102.0, 103.5, 105.5)] == [
        (True, 102.0),
        (False, 103.0),
        (True, 105.0),
        (False, 106.0),
    ]


def test_a_bmc_without_mains_does_not_listen() -> None:
    talk = Talk()
    talk.bmc.unplug(talk.now)
    assert talk.bmc.listening(talk.now) == (False, None)
    talk.bmc.plug(talk.now)
    assert talk.bmc.listening(talk.now) == (True, None)
    assert talk.ask("GET", ROOT).status == 503


def test_only_the_last_tasks_are_remembered() -> None:
    talk = Talk(faults_for("task-that-succeeds-slowly"))
    for _ in range(100):
        assert talk.reset("ForceOff") == 202
    members = talk.get(f"{ROOT}/TaskService/Tasks")["Members"]
    assert (len(members), members[-1]["@odata.id"]) == (64, f"{ROOT}/TaskService/Tasks/100")
