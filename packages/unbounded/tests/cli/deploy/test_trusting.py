"""The host key that `machine trust-host-key` trusts, and the field that stores it."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
import pytest

from unbounded.api.machine import Machine
from unbounded.cli.deploy.trust_host_key import key_of, patch_of
from unbounded.cli.plugin.command import CliError
from unbounded.machina.ssh.keys import host_key

Raw = dict[str, Any]

BLOB: Final = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + b"k" * 32).decode()
LINE: Final = f"ssh-ed25519 {BLOB}"
KEY: Final = host_key(LINE)
assert KEY is not None
SHOWN: Final = KEY.fingerprint
OTHER: Final = f"SHA256:{'A' * 43}"


def machine(*, shown: str = "", hop: str = "host", keys: tuple[str, ...] = (), ssh: bool = True) -> Machine:
    """Return a Machine that has pinned OTHER for both servers."""
    ref = {"name": "k", "namespace": "unbounded-kube"}
    bastion = {"host": "jump", "username": "u", "hostKeys": list(keys) if hop == "bastion" else []}
    spec: Raw = {"host": "h", "username": "u", "privateKeyRef": ref, "bastion": bastion}
    spec |= {"hostKeys": list(keys)} if hop == "host" else {}
    status: Raw = {"ssh": {"fingerprint": OTHER, "bastionFingerprint": OTHER}}
    if shown:
        said = {"type": "SSHReachable" if hop == "bastion" else "Provisioning", "status": "False", "message": ""}
        said |= {"reason": "HostKeyChanged", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        status["conditions"] = [said]
        status["ssh"] |= {"untrusted": [{"hop": hop, "fingerprint": shown}]}
        status["ssh"] |= {"failedHop": hop} if hop == "bastion" else {}
    metadata = {"name": "m1", "resourceVersion": "7"}
    return msgspec.convert({"metadata": metadata, "spec": {"ssh": spec} if ssh else {}, "status": status}, Machine)


@pytest.mark.parametrize(("hop", "field"), [("host", "fingerprint"), ("bastion", "bastionFingerprint")])
def test_the_key_that_is_shown_is_pinned_in_that_version_alone(hop: str, field: str) -> None:
    """Not the next one: between the prompt and the next login another host might answer."""
    there = machine(shown=SHOWN, hop=hop)
    key = key_of(there)
    assert (key.hop, key.fingerprint, key.typed) == (hop, SHOWN, False)
    patch = patch_of(there, key)
    assert patch.status
    assert patch.body == {
        "metadata": {"resourceVersion": "7"},
        "status": {"ssh": {field: SHOWN, "untrusted": []}},
    }


@pytest.mark.parametrize(("hop", "path"), [("host", ()), ("bastion", ("bastion",))])
def test_where_the_spec_names_keys_it_is_changed(hop: str, path: tuple[str, ...]) -> None:
    there = machine(shown=SHOWN, hop=hop, keys=(f"ssh-ed25519 {'A' * 68}",))
    patch = patch_of(there, key_of(there, line=f"10.0.0.1 {LINE}"))
    found = patch.body["spec"]["ssh"]
    for name in path:
        found = found[name]
    assert (found, patch.status) == ({"hostKeys": [LINE]}, False)


@pytest.mark.parametrize(
    ("there", "typed", "words"),
    [
        (machine(), {}, "the host of Machine m1 has shown no key but the trusted one"),
        (machine(ssh=False), {}, "Machine m1 has no spec.ssh"),
        (machine(shown=SHOWN), {"fingerprint": OTHER}, f"--fingerprint: the host shows the key {SHOWN}, not {OTHER}"),
        (machine(shown=OTHER), {"line": LINE}, f"--host-key: the host shows the key {OTHER}, not {SHOWN}"),
        (machine(shown=SHOWN, keys=("x",)), {}, "--host-key: spec.ssh.hostKeys lists the trusted keys"),
        (machine(), {"line": "ssh-ed25519 AAAA"}, "--host-key: "),
        (machine(), {"line": LINE, "fingerprint": OTHER}, f"--fingerprint: --host-key is the key {SHOWN}, not {OTHER}"),
    ],
    ids=["none", "no-ssh", "other-print", "other-key", "spec", "bad", "both"],
)
def test_what_cannot_be_meant_is_refused_by_its_flag(there: Machine, typed: Raw, words: str) -> None:
    with pytest.raises(CliError) as refused:
        key_of(there, **typed)
    assert words in str(refused.value)


def test_host_key_of_another_algorithm_is_trusted_with_force() -> None:
    assert key_of(machine(shown=OTHER), line=LINE, force=True).fingerprint == SHOWN


def test_a_key_that_was_not_shown_yet_can_be_trusted_before() -> None:
    key = key_of(machine(), fingerprint=SHOWN, bastion=True)
    assert (key.hop, key.fingerprint, key.typed) == ("bastion", SHOWN, True)
