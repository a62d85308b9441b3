"""Identities of a recording and of the server under test, and what may differ between their answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tests.apiserver.recorded import is_of_fork

STARTED = datetime(2026, 11, 23, 21, 34, 27, tzinfo=UTC)  # what `t` of an exchange counts from
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
GENERATED = re.compile(r"csr-[a-z0-9]{5}|kube-api-access-[a-z0-9]{5}")
CSR, TOKEN = "<certificate signing request>", "<token>"
PLACEHOLDERS = frozenset({CSR, TOKEN, "<certificate>"})
CREDENTIAL = "authentication.kubernetes.io/credential-id"
ADDRESSES = frozenset({"clusterIP", "clusterIPs"})


@dataclass
class Identities:
    """The identities of the recorded server, and those of the server under test in their place."""

    uids: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)  # by recorded name: a certificate signing request, base64
    token: str = ""  # that the last TokenRequest of the administrator gave
    later: timedelta = timedelta()  # from a recorded time to the one that is sent

    def text(self, value: str) -> str:
        """Replace uids and generated names."""
        replaced = UID.sub(lambda found: self.uids.get(found[0], found[0]), value)
        return GENERATED.sub(lambda found: self.names.get(found[0], found[0]), replaced)

    def version(self, recorded: str) -> str:
        """Return the version that corresponds to a recorded one, or to the last one before it."""
        known = [number for number in self.versions if number <= int(recorded)]
        return str(self.versions[max(known)]) if known else recorded

    def body(self, value: Any, *, csr: str = "") -> Any:
        """Return a request body as it has to be sent now."""
        if isinstance(value, dict):
            name = (value.get("metadata") or {}).get("name", "") if isinstance(value.get("metadata"), dict) else ""
            inner = self.requests.get(name, csr)
            return {key: self._member(key, member, inner) for key, member in value.items()}
        if isinstance(value, list):
            return [self.body(item, csr=csr) for item in value]
        if isinstance(value, str):
            return self.time(value) if TIME.fullmatch(value) else self.text(value)
        return value

    def time(self, recorded: str) -> str:
        """Return a time as far from now as the recorded one was from the end of the recording."""
        moment = datetime.fromisoformat(recorded) + self.later
        fraction = f".{moment:%f}".ljust(len(recorded) - len("2026-11-23T21:34:27Z"), "0") if "." in recorded else ""
        return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"

    def _member(self, key: str, value: Any, csr: str) -> Any:
        if key == "resourceVersion" and isinstance(value, str) and value.isdigit():
            return self.version(value)
        if value == CSR:
            return csr
        return self.token if value == TOKEN else self.body(value, csr=csr)

    def path(self, recorded: str) -> str:
        parts = urlsplit(recorded)
        query = [
            (key, self.version(value) if key == "resourceVersion" and value != "0" else self.text(value))
            for key, value in parse_qsl(parts.query, keep_blank_values=True)
        ]
        path = quote(self.text(parts.path), safe="/:")
        return f"{path}?{urlencode(query, quote_via=quote)}" if query else path

    def learn(self, recorded: Any, actual: Any) -> None:
        """Take up the identities of an object and of all within it."""
        if isinstance(recorded, list) and isinstance(actual, list):
            for one, other in zip(recorded, actual, strict=False):
                self.learn(one, other)
        if not (isinstance(recorded, dict) and isinstance(actual, dict)):
            return
        if str(recorded.get("resourceVersion", "")).isdigit() and str(actual.get("resourceVersion", "")).isdigit():
            self.versions[int(recorded["resourceVersion"])] = int(actual["resourceVersion"])
        for key, known in (("uid", self.uids), ("name", self.names)):
            one, other = recorded.get(key), actual.get(key)
            if isinstance(one, str) and isinstance(other, str) and (UID if key == "uid" else GENERATED).fullmatch(one):
                known.setdefault(one, other)
        for key, value in recorded.items():
            self.learn(value, actual.get(key))


@dataclass
class Comparison:
    """Differences between a recorded value and ours, apart from those that are allowed."""

    identities: Identities

    def differences(self, expected: Any, actual: Any, path: str = "") -> list[str]:
        if isinstance(expected, dict) and isinstance(actual, dict):
            return self._objects(expected, actual, path)
        if isinstance(expected, list) and isinstance(actual, list):
            expected = [one for one in expected if not is_of_fork(one)]
            if len(expected) != len(actual):
                return [f"{path}: {len(actual)} items, not {len(expected)}: {json.dumps(actual)[:400]}"]
            pairs = enumerate(zip(expected, actual, strict=True))
            return [d for i, (one, other) in pairs for d in self.differences(one, other, f"{path}[{i}]")]
        if isinstance(expected, str) and isinstance(actual, str):
            return [] if self._same(expected, actual, path) else [f"{path}: {actual!r}, not {expected!r}"]
        same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
        return [] if same else [f"{path}: {actual!r}, not {expected!r}"]

    def _objects(self, expected: dict[str, Any], actual: dict[str, Any], path: str) -> list[str]:
        ignored = {"managedFields", CREDENTIAL, *(ADDRESSES - actual.keys())}  # there are none without a data path
        one = {self.identities.text(key): value for key, value in expected.items() if key not in ignored}
        other = {key: value for key, value in actual.items() if key not in ignored}
        found = [f"{path}.{key}: missing {json.dumps(one[key])[:200]}" for key in one if key not in other]
        found += [f"{path}.{key}: unexpected {json.dumps(other[key])[:200]}" for key in other if key not in one]
        for key, value in one.items():
            if key in other:
                found += self.differences(value, other[key], f"{path}.{key}")
        return found

    def _same(self, expected: str, actual: str, path: str) -> bool:
        key = re.split(r"[.\[]", path)[-1]
        if expected in PLACEHOLDERS:
            return bool(actual)
        if key == "resourceVersion":
            return expected.isdigit() == actual.isdigit()
        if key in ADDRESSES or any(f".{name}[" in path for name in ADDRESSES):
            return expected == actual or _address(expected) == _address(actual) is True
        if TIME.fullmatch(expected):
            return bool(TIME.fullmatch(actual)) and len(expected) == len(actual)
        if UID.fullmatch(expected) and expected not in self.identities.uids:
            return bool(UID.fullmatch(actual))
        if GENERATED.fullmatch(expected) and expected not in self.identities.names:
            return bool(GENERATED.fullmatch(actual))
        return _wording(self.identities.text(expected)) == _wording(actual)


def _address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _wording(text: str) -> str:
    return TIME.sub("<time>", text)
