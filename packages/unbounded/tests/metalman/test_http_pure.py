"""Parsed requests: path, client and range, without a connection."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from email.utils import formatdate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.metalman.support.fixed_boots import MODIFIED, PREFIX
from unbounded.api.hardware import DiskFacts, HardwareFacts
from unbounded.metalman.http.boot_service import HardwareReport
from unbounded.metalman.http.file_sender import FairQueue, MinimumRate, RateCheck
from unbounded.metalman.http.requests import (
    HttpRoute,
    HttpTarget,
    client_of,
    cloud_init_event,
    hardware_report,
    parse_target,
    progress_report,
)
from unbounded.metalman.http.responses import (
    FileRange,
    NotModified,
    PreconditionFailed,
    RangeNotSatisfiable,
    RequestConditions,
    WholeFile,
    decide,
)


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("/shimx64.efi", HttpTarget(HttpRoute.FILE, None, "shimx64.efi")),
        ("//grubx64.efi", HttpTarget(HttpRoute.FILE, None, "grubx64.efi")),
        ("/grub//./grub.cfg?x=1", HttpTarget(HttpRoute.FILE, None, "grub/grub.cfg")),
        ("/grub%2Fgrub.cfg", HttpTarget(HttpRoute.FILE, None, "grub/grub.cfg")),
        ("http://10.0.0.1:8880/vmlinuz", HttpTarget(HttpRoute.FILE, None, "vmlinuz")),
        ("/boot/grub.cfg", HttpTarget(HttpRoute.FILE, None, "boot/grub.cfg")),
        (f"/boot/{PREFIX}/disk.img.gz", HttpTarget(HttpRoute.FILE, PREFIX, "disk.img.gz")),
        (f"/boot/{PREFIX}//cloud-init/user-data", HttpTarget(HttpRoute.FILE, PREFIX, "cloud-init/user-data")),
        (f"//boot//{PREFIX}/attest", HttpTarget(HttpRoute.ATTEST, PREFIX, "attest")),
        (f"/boot/{PREFIX}/pxe/disable", HttpTarget(HttpRoute.DISABLE, PREFIX, "pxe/disable")),
        (f"/boot/{PREFIX}/cloudinit//log", HttpTarget(HttpRoute.CLOUD_INIT, PREFIX, "cloudinit/log")),
        (f"/boot/{PREFIX}/progress", HttpTarget(HttpRoute.PROGRESS, PREFIX, "progress")),
        ("/attest", HttpTarget(HttpRoute.FILE, None, "attest")),  # without a prefix it is a name like others
        ("/%252e%252e/x", HttpTarget(HttpRoute.FILE, None, "%2e%2e/x")),  # decoded once
    ],
)
def test_a_target_is_a_file_or_a_report(target: str, asked: HttpTarget) -> None:
    assert parse_target(target) == asked


@pytest.mark.parametrize(
    "target",
    [
        *("", "/", "//", "*", "x", "10.0.0.1:80", "/..", "/a/../b", "/%2e%2e/etc/passwd", "/a%00b", "/%ff", "/a%0ab"),
        *("/..\\x", "ftp://h/x", f"/boot/{PREFIX}", f"/boot/{PREFIX}/", f"/boot/{PREFIX}/../x", "/" + "a" * 5000),
        f"/boot/{PREFIX}/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_what_is_no_name_is_nothing(target: str) -> None:
    assert parse_target(target) is None


@pytest.mark.slow
@given(
    st.text(max_size=300) | st.lists(st.sampled_from(["/", "..", "%2e", "%", "boot", PREFIX, "\0", "a"])).map("".join)
)
def test_whatever_is_asked_for_stays_below_its_folder(target: str) -> None:
    asked = parse_target(target)
    if asked is not None:
        parts = asked.path.split("/")
        assert parts
        assert not {"", ".", ".."} & set(parts)
        assert asked.path.isprintable()


PROXIES = (ipaddress.ip_network("10.0.0.0/24"), ipaddress.ip_network("fd00::/64"))


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("10.9.0.5", [], "10.9.0.5"),
        ("::ffff:10.9.0.5", [], "10.9.0.5"),
        ("10.9.0.5", ["10.9.0.6"], "10.9.0.5"),  # without a trusted proxy
        ("10.0.0.1", ["10.9.0.6"], "10.9.0.6"),
        ("10.0.0.1", ["10.9.0.6:41000"], "10.9.0.6"),
        ("fd00::1", ["[::ffff:10.9.0.6]:41000"], "10.9.0.6"),
        ("10.0.0.1", ["1.2.3.4, 10.9.0.6"], "10.9.0.6"),  # the client's own claim is on the left
        ("10.0.0.1", ["1.2.3.4, 10.9.0.6", "10.0.0.2"], "10.9.0.6"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["10.9.0.6, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["10.9.0.6, "], "10.0.0.1"),
        ("", ["10.9.0.6"], ""),
    ],
)
def test_only_trusted_proxies_say_who_asks(peer: str, said: list[str], client: str) -> None:
    assert client_of(peer, said, PROXIES) == client


@pytest.mark.slow
@given(st.lists(st.text(max_size=40), max_size=4))
def test_without_a_trusted_proxy_headers_count_for_nothing(said: list[str]) -> None:
    assert client_of("10.9.0.5", said, ()) == "10.9.0.5"
    assert client_of("10.9.0.5", said, PROXIES) == "10.9.0.5"


def decided(asked: Mapping[str, str], size: int = 1000, *, get: bool = True) -> object:
    return decide(RequestConditions(**asked), get=get, size=size, etag="tag", modified=MODIFIED)


WHEN = formatdate(MODIFIED, usegmt=True)
BEFORE = formatdate(MODIFIED - 1, usegmt=True)
AFTER = formatdate(MODIFIED + 1, usegmt=True)


@pytest.mark.parametrize(
    ("asked", "decision"),
    [
        ({}, WholeFile()),
        ({"range": "bytes=0-"}, FileRange(0, 1000)),
        ({"range": "bytes=0-0"}, FileRange(0, 1)),
        ({"range": "bytes=990-5000"}, FileRange(990, 1000)),
        ({"range": "Bytes = 5-9"}, FileRange(5, 10)),
        ({"range": "bytes=-1"}, FileRange(999, 1000)),
        ({"range": "bytes=-5000"}, FileRange(0, 1000)),
        ({"range": "bytes=-0"}, RangeNotSatisfiable()),
        ({"range": "bytes=1000-"}, RangeNotSatisfiable()),
        ({"range": "bytes=0-1,5-6"}, WholeFile()),
        ({"range": "bytes=9-5"}, WholeFile()),
        ({"range": "bytes=-"}, WholeFile()),
        ({"range": "lines=1-2"}, WholeFile()),
        ({"range": "bytes=" + "9" * 5000 + "-"}, WholeFile()),
        ({"range": "bytes=１-２"}, WholeFile()),
        ({"range": "bytes=1-2", "if_range": '"tag"'}, FileRange(1, 3)),
        ({"range": "bytes=1-2", "if_range": 'W/"tag"'}, WholeFile()),
        ({"range": "bytes=1-2", "if_range": '"other"'}, WholeFile()),
        ({"range": "bytes=1-2", "if_range": WHEN}, FileRange(1, 3)),
        ({"range": "bytes=1-2", "if_range": AFTER}, WholeFile()),
        ({"range": "bytes=1-2", "if_range": "nonsense"}, WholeFile()),
        ({"if_none_match": '"tag"'}, NotModified()),
        ({"if_none_match": 'W/"tag"'}, NotModified()),
        ({"if_none_match": '"a", "tag"'}, NotModified()),
        ({"if_none_match": "*"}, NotModified()),
        ({"if_none_match": '"other"', "if_modified_since": WHEN}, WholeFile()),
        ({"if_modified_since": WHEN}, NotModified()),
        ({"if_modified_since": BEFORE}, WholeFile()),
        ({"if_modified_since": "yesterday"}, WholeFile()),
        ({"if_match": '"tag"'}, WholeFile()),
        ({"if_match": "*"}, WholeFile()),
        ({"if_match": 'W/"tag"'}, PreconditionFailed()),
        ({"if_match": '"other"', "if_none_match": '"tag"'}, PreconditionFailed()),
        ({"if_unmodified_since": BEFORE}, PreconditionFailed()),
        ({"if_unmodified_since": WHEN}, WholeFile()),
    ],
)
def test_conditions_and_ranges(asked: dict[str, str], decision: object) -> None:
    assert decided(asked) == decision


def test_only_a_get_has_ranges_and_an_empty_file_has_none() -> None:
    assert decided({"range": "bytes=1-2"}, get=False) == WholeFile()
    assert decided({"range": "bytes=0-"}, 0) == RangeNotSatisfiable()
    assert decided({}, 0) == WholeFile()


FIELD = st.none() | st.text(max_size=60) | st.sampled_from(["*", '"tag"', WHEN, "bytes=0-5", "bytes=-3", "Thu, 99"])


@pytest.mark.slow
@given(st.builds(RequestConditions, FIELD, FIELD, FIELD, FIELD, FIELD, FIELD), st.booleans(), st.integers(0, 9))
def test_no_condition_gives_more_than_there_is(asked: RequestConditions, get: bool, size: int) -> None:
    decision = decide(asked, get=get, size=size, etag="tag", modified=None)
    if isinstance(decision, FileRange):
        assert 0 <= decision.start < decision.stop <= size


class Sharing(RuleBasedStateMachine):
    """Clients enter, are served, wait for room, and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: FairQueue[int] = FairQueue(2)
        self.of: dict[int, str] = {}
        self.placed: set[int] = set()
        self.ready: set[int] = set()
        self.count = 0

    @rule(client=st.sampled_from("abc"))
    def enter(self, client: str) -> None:
        self.count += 1
        self.of[self.count] = client
        if self.turns.add(client, self.count):
            self.place(self.count)

    def place(self, item: int) -> None:
        self.placed.add(item)
        self.ready.add(item)
        self.turns.mark_ready(self.of[item], item)

    @rule(data=st.data(), again=st.booleans())
    def serve(self, data: st.DataObject, again: bool) -> None:
        item = self.turns.next()
        assert (item is None) == (not self.ready)
        if item is not None:
            self.ready.remove(item)
            if again:
                self.ready.add(item)
                self.turns.mark_ready(self.of[item], item)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.of:
            item = data.draw(st.sampled_from(sorted(self.of)))
            following = self.turns.remove(self.of.pop(item), item)
            self.placed.discard(item)
            self.ready.discard(item)
            if following is not None:
                self.place(following)

    @invariant()
    def nobody_waits_while_there_is_a_place(self) -> None:
        for client in "abc":
            its = [item for item, of in self.of.items() if of == client]
            assert len([item for item in its if item in self.placed]) == min(len(its), 2)

    @invariant()
    def the_ring_holds_who_is_ready(self) -> None:
        assert len(self.turns) == len({self.of[item] for item in self.ready})


TestSharing = Sharing.TestCase
TestSharing.settings = settings(stateful_step_count=20, deadline=None)


def test_fair_queue_gives_equal_turns_to_clients() -> None:
    turns: FairQueue[tuple[str, int]] = FairQueue(50)
    for client, many in (("greedy", 50), ("modest", 1), ("other", 1)):
        for number in range(many):
            assert turns.add(client, (client, number))
            turns.mark_ready(client, (client, number))
    served = []
    for _ in range(300):
        item = turns.next()
        assert item is not None
        served.append(item[0])
        turns.mark_ready(item[0], item)
    assert [served.count(client) for client in ("greedy", "modest", "other")] == [100, 100, 100]


def test_rate_is_too_slow_without_the_minimum_bytes_in_the_window() -> None:
    pace = RateCheck(MinimumRate(bytes=100, within_s=10.0), since=0.0)
    assert not pace.too_slow(99, 10.0)
    assert not pace.too_slow(100, 10.5)
    assert not pace.too_slow(199, 20.5)
    assert pace.too_slow(199, 20.6)


@pytest.mark.slow
@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(msgspec.json.encode))
def test_reports_are_read_or_refused(body: bytes) -> None:
    cloud_init_event(body)
    with contextlib.suppress(ValueError):
        assert hardware_report(body).image_bytes >= 0
    with contextlib.suppress(ValueError):
        assert progress_report(body).percent in (None, *range(101))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"hardware":{"cpus":"4"}}', r"\$\.hardware\.cpus"),
        (b'{"hardware":{"disks":[{}]}}', r"`name`.*\$\.hardware\.disks\[0\]"),
        (b'{"hardware":{"disks":[{"name":"sda"},{"name":"a b"}]}}', r"^hardware\.disks\[1\]\.name: must match"),
        (b'{"hardware":{"memoryBytes":-1}}', r"^hardware\.memoryBytes: must be a number"),
        (b'{"hardware":{},"imageBytes":-1}', r"^imageBytes: must not be negative"),
        (b'{"hardware":{},"final":1}', r"\$\.final"),
        (b"{}", "`hardware`"),
        (b'{"x":' + b"[" * 100000, "nested too deeply"),
    ],
)
def test_a_wrong_hardware_report_is_refused_with_its_field(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hardware_report(body)


def test_a_hardware_report_may_have_fields_of_a_later_release() -> None:
    body = b'{"final":true,"imageBytes":5,"new":1,"hardware":{"cpus":4,"disks":[{"name":"sda","byID":["x"],"new":{}}]}}'
    report = hardware_report(body)
    disks = (DiskFacts(name="sda", by_id=("x",)),)
    assert report == HardwareReport(final=True, image_bytes=5, hardware=HardwareFacts(cpus=4, disks=disks))


def test_reports_keep_what_they_say() -> None:
    event = cloud_init_event(b'{"name":"modules-final","event_type":"finish","result":"SUCCESS","timestamp":1.5,"x":1}')
    assert event is not None
    assert (event.name, event.event_type, event.result, event.timestamp) == ("modules-final", "finish", "SUCCESS", 1.5)
    report = progress_report(b'{"stage":"write","percent":40,"message":"half"}')
    assert (report.stage, report.percent, report.message, report.failed) == ("write", 40, "half", False)
    report = progress_report(b'{"stage":"Writing","disk":"/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"}')
    assert report.disk == "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"
    for disk in ("/dev/sda", "/dev/disk/by-id/a b", "/dev/disk/by-id/../sda", "/dev/disk/by-id/a\n", "x" * 300):
        with pytest.raises(ValueError, match="disk: must be a path below /dev/disk/by-id"):
            progress_report(msgspec.json.encode({"stage": "Writing", "disk": disk}))
    for wrong in (b'{"stage":"write","percent":101}', b"{}", b"[]", b"", b"[" * 100000):
        with pytest.raises(ValueError):  # noqa: PT011 - msgspec's words differ
            progress_report(wrong)
    assert cloud_init_event(b"[" * 100000) is None
