"""Text of a serial console without secrets: canaries, as hosts print them and as terminals tear them apart."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import example, given
from hypothesis import strategies as st

from unbounded.api.profile import KernelModuleFile, KernelParameters, MachineProfileSpec
from unbounded.kube.secret_text import HIDDEN, secrets_of_profile, secrets_of_user_data
from unbounded.metalman.console_text import plain_text, redacted
from unbounded.metalman.media.tickets import MediaTicket, TicketKey
from unbounded.metalman.netboot.boot_requests import PrefixKey

CANARY = "Kx7-canary+/q"
TOKEN = "abc123.0123456789abcdef"
TICKET = TicketKey(bytes(32)).path(MediaTicket("m1", "uid", "boot", "192.0.2.1", 1_800_000_000))
PREFIX = PrefixKey(bytes(32)).prefix("uid", "boot")
PEM = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl"
TEARS = st.sampled_from(
    ["", "", "", "\x1b[0m", "\x1b[1;31m", "\x1b[05;10H", "\x1b]0;title\x07", "\x1b[K", "\x00", "\x07"]
)


def torn(text: str, tears: Iterable[str]) -> str:
    return "".join(char + tear for char, tear in zip(text, tears, strict=False))


def dense(text: str) -> str:
    return re.sub(r"\s", "", text)


@given(st.lists(TEARS, min_size=200, max_size=200), st.binary(max_size=200))
@example(["\x1b[05;10H"] * 200, b"")
def test_a_known_secret_is_hidden_wherever_escapes_tear_it(tears: list[str], noise: bytes) -> None:
    forms = [CANARY, quote(CANARY, safe=""), json.dumps(CANARY), base64.b64encode(f"joe:{CANARY}!".encode()).decode()]
    for form in forms:
        text = redacted(noise + torn(f"before {form} after", tears).encode() + noise, [CANARY])
        assert CANARY not in dense(text)
        assert dense(form.strip('"')) not in dense(text)
        assert HIDDEN in text


@given(st.integers(1, 30), st.sampled_from(["\r\n", "\n", "\r", " \r\n "]))
def test_a_known_secret_is_hidden_where_lines_wrap(columns: int, end: str) -> None:
    text = f"root: {CANARY} is set"
    wrapped = end.join(text[at : at + columns] for at in range(0, len(text), columns))
    assert CANARY not in dense(redacted(wrapped.encode(), [CANARY]))


@pytest.mark.parametrize("tear", ["", "\x1b[0m", "\x1b[3;4H"])
@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (f"kubeadm join --token {TOKEN} 10.0.0.1", TOKEN),
        (f"GET https://10.0.0.1:8443{TICKET} HTTP/1.1", TICKET.split(".")[1].split("/")[0]),
        (f"wget http://10.0.0.1:8880/{PREFIX}/user-data", PREFIX),
        (f"X-Auth-Token: {CANARY}", CANARY),
        (f"Authorization: Bearer {CANARY}", CANARY),
        ("curl https://joe:canary-7@example.com/", "canary-7"),
        (f"password: {CANARY} and more words", "and more words"),
        (f"admin_password={CANARY}", CANARY),
        (f'"client_secret": "{CANARY} two"', f"{CANARY} two"),
        (f"export API_TOKEN='{CANARY}'", CANARY),
        (f"The new password for root is {CANARY}", CANARY),
        ("root:$6$rounds=5000$salt$hash/hash.hash:19000", "hash/hash.hash"),
        (JWT, JWT),
    ],
)
def test_a_secret_is_hidden_by_its_form(line: str, secret: str, tear: str) -> None:
    middle = line.index(secret) + len(secret) // 2
    text = redacted(f"before\r\n{line[:middle]}{tear}{line[middle:]}\r\nafter\r\n".encode(), [])
    assert secret not in dense(text)
    assert dense(secret) not in dense(text)
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_random_passwords_of_cloud_init_are_hidden() -> None:
    shown = "Set the following 'random' passwords\r\nroot:aB3dE5\r\njoe:xY9zW1\r\nCloud-init finished\r\n"
    assert redacted(shown.encode(), []) == f"Set the following 'random' passwords\n{HIDDEN}Cloud-init finished\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_private_key_is_hidden_also_where_a_part_of_it_is_missing(end: str) -> None:
    lines = PEM.strip().splitlines()
    for shown in (lines, lines[:-1], lines[:2], lines[1:], lines[2:]):
        text = redacted(end.join(["before:", *shown, ""]).encode(), [])
        assert not [line for line in lines[1:-1] if line in text]
        assert text.startswith("before:")


def test_a_secret_at_the_border_of_what_is_kept_is_hidden() -> None:
    data = b"x" * 50 + CANARY.encode() + b" end"
    for dropped in range(len(data)):
        text = redacted(data, [CANARY], dropped=dropped)
        assert not [size for size in range(3, len(CANARY)) if CANARY[-size:] in text], text
        assert text.endswith(" end"[-(len(data) - dropped) :])


def test_other_output_stays_as_lines_without_escapes() -> None:
    shown = b"\x1b[2J\x1b[1;1HGRUB\x1b[2;1Hloading\x1b[0m...\r\n 10%\r 20%\r\nabc\b\b\bxyz\x07\n\xff\n"
    assert redacted(shown, [CANARY, "", "abc"]) == "\nGRUB\nloading...\n 10%\n 20%\nxyz\n\ufffd\n"
    assert "\x1b" not in plain_text(b"\x1b]0;never ended\n\x1b[\x1b")
    log = "[    1.234567] nvme0n1: p1 p2\nFailed to mount /dev/sda1: No such device\nkernel.panic = 10\n"
    assert redacted(log.encode(), [CANARY]) == log


def test_secrets_of_user_data_are_those_assigned_paired_or_random() -> None:
    inner = base64.b64encode(b"DB_PASSWORD=inner-secret\n").decode()
    text = f"""#cloud-config
users: [{{name: joe, lock_passwd: true, passwd: "$6$salt$digest"}}]
chpasswd:
  list: |
    root:Hunter2x
write_files:
- {{path: /etc/app/env, encoding: b64, content: {inner}}}
- path: /etc/plain
  content: API_KEY=zzzz-key
runcmd:
- curl -H "x-thing: 12ab34cd56ef78" https://example.com/path
- systemctl enable --now app
"""
    found = secrets_of_user_data(text)
    assert {"$6$salt$digest", "Hunter2x", "inner-secret", "zzzz-key", "12ab34cd56ef78"} <= found
    assert not {"true", "systemctl", "app", "curl", "enable"} & found


def test_secrets_of_a_profile_are_those_of_its_scripts_modules_and_sysctls() -> None:
    spec = MachineProfileSpec(
        devices=(),
        file_systems=(),
        pre_deploy_script="login --password 'canary-pre' --verbose\nexport TOKEN=canary-env",
        post_deploy_script="curl -u joe:canary-post https://example.com | sh",
        kernel_parameters=KernelParameters(
            sysctl={"net.secret": "canary-sysctl"},
            modules=(KernelModuleFile(filename="a.conf", content="options wifi psk_secret=canary-module"),),
        ),
    )
    found = secrets_of_profile(spec)
    assert {"canary-pre", "canary-env", "canary-post", "canary-sysctl", "canary-module"} <= found
    assert not {"--verbose", "login", "curl", "sh"} & found
    assert secrets_of_profile(MachineProfileSpec(devices=(), file_systems=())) == frozenset()
