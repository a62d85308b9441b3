"""Bootstrap tokens that let a host join, the errors of others, and new ones for a site."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import client_with
from tests.cli.deployed import deployed
from unbounded.api import core
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.names import GROUP_BOOTSTRAP, LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.join.bootstrap_tokens import (
    LEAST_LEFT,
    default_token,
    machine_group,
    new_token,
    newest_usable,
    secret_manifest,
    site_token_manifest,
    token_in,
)
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.tls import client_context

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "auth-extra-groups": GROUP_BOOTSTRAP,
}


def secret(
    *,
    name: str = "bootstrap-token-abcdef",
    type_: str | None = "bootstrap.kubernetes.io/token",
    labels: dict[str, str] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    deleted: str | None = None,
    **data: str | None,
) -> core.Secret:
    given_data = {key.replace("_", "-"): value for key, value in data.items()}
    values = {key: value for key, value in (GOOD | given_data).items() if value is not None}
    meta: dict[str, Any] = {"name": name, "labels": labels or {}, "creationTimestamp": created}
    meta |= {"deletionTimestamp": deleted} if deleted else {}
    encoded = {key: b64encode(value.encode()).decode() for key, value in values.items()}
    return msgspec.convert({"metadata": meta, "type": type_, "data": encoded}, core.Secret)


def test_a_good_token_is_read_with_when_it_ends() -> None:
    token = token_in(secret(expiration="2026-01-01T02:00:00+01:00"), now=NOW)
    assert (token.id, token.text.reveal()) == ("abcdef", "abcdef.0123456789abcdef")
    assert token.expires == NOW + timedelta(hours=1)
    assert token_in(secret(), now=NOW).expires is None
    assert "0123456789abcdef" not in repr(token)


@pytest.mark.parametrize(
    ("given_secret", "said"),
    [
        (secret(type_="Opaque"), "is of type Opaque, but a bootstrap token is of type bootstrap.kubernetes.io/token"),
        (secret(type_=None), "is of type Opaque"),
        (secret(deleted="2026-01-01T00:00:00Z"), "is being deleted"),
        (secret(token_id=None), "has no key token-id"),
        (secret(token_secret=None), "has no key token-secret"),
        (secret(token_id="ABCDEF"), "key token-id: must be 6 characters"),
        (secret(token_secret="short"), "key token-secret: must be 16 characters"),
        (secret(name="bootstrap-token-other1"), "must be named bootstrap-token-abcdef, as its token-id is abcdef"),
        (secret(expiration="2026-01-01T00:00:00Z"), "key expiration: the token expired at 2026-01-01T00:00:00Z"),
        (secret(expiration="2026-01-01T00:00:30Z"), "before a host could join with it"),
        (secret(expiration="tomorrow"), "key expiration: 'tomorrow' is not a time such as 2026-01-01T00:00:00Z"),
        (secret(expiration="2026-01-01"), "is not a time such as"),
        (secret(expiration="2026-13-01T00:00:00Z"), "is not a time such as"),
        (secret(usage_bootstrap_authentication=None), "key usage-bootstrap-authentication: must be true"),
        (secret(usage_bootstrap_authentication="false"), "key usage-bootstrap-authentication: must be true"),
        (secret(auth_extra_groups=None), f"key auth-extra-groups: must contain {GROUP_BOOTSTRAP}"),
        (
            secret(auth_extra_groups="system:bootstrappers:kubeadm:default-node-token"),
            f"must contain {GROUP_BOOTSTRAP}",
        ),
        (
            secret(auth_extra_groups=f"{GROUP_BOOTSTRAP},system:masters"),
            "must be comma-separated groups that begin with",
        ),
    ],
    ids=lambda value: value.replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_token_error_names_the_fault_but_not_the_token(given_secret: core.Secret, said: str) -> None:
    with pytest.raises(Rejected) as refused:
        token_in(given_secret, now=NOW)
    assert said in str(refused.value)
    assert f"Secret kube-system/{given_secret.metadata.name}" in str(refused.value)
    assert "0123456789abcdef" not in str(refused.value)


def test_a_token_of_another_machine_is_refused() -> None:
    bound = secret(auth_extra_groups=f"{GROUP_BOOTSTRAP},{machine_group('u-1')}")
    assert token_in(bound, now=NOW, machine_uid="u-1").id == "abcdef"
    assert token_in(secret(), now=NOW, machine_uid="u-1").id == "abcdef"
    with pytest.raises(Rejected, match="was created for another Machine"):
        token_in(bound, now=NOW, machine_uid="u-2")


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*sorted(GOOD), "expiration"]), st.text(max_size=40)))
def test_no_data_makes_it_fail_otherwise(data: dict[str, str]) -> None:
    values: dict[str, Any] = {key.replace("-", "_"): value for key, value in data.items()}
    with suppress(Rejected):
        assert token_in(secret(**values), now=NOW).id


def made(name: str, created: str, *, site: str = "", default: bool = False, **data: str) -> core.Secret:
    labels = ({LABEL_SITE: site} if site else {}) | ({LABEL_DEFAULT_BOOTSTRAP_TOKEN: "true"} if default else {})
    return secret(name=f"bootstrap-token-{name}", token_id=name, labels=labels, created=created, **data)


OLD, NEW, NEWEST = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"
ENDED: dict[str, Any] = {"expiration": "2025-01-01T00:00:00Z"}


def test_the_newest_usable_token_of_a_site_is_taken() -> None:
    there = [
        made("aaaaaa", OLD, site="lab"),
        made("bbbbbb", NEW, site="lab"),
        made("cccccc", NEWEST, site="lab", **ENDED),
        made("dddddd", NEWEST, site="other"),
        made("eeeeee", NEWEST),
        made("ffffff", NEWEST, site="lab", auth_extra_groups=f"{GROUP_BOOTSTRAP},{machine_group('u-1')}"),
    ]
    token = newest_usable(there, "lab", now=NOW)
    assert token is not None
    assert token.id == "bbbbbb"
    assert newest_usable(there, "none", now=NOW) is None


def default_id(there: list[core.Secret], site: str) -> str | None:
    token = default_token(there, site, now=NOW)
    return None if token is None else token.id


def test_default_token_of_the_site_takes_precedence_over_the_siteless_one() -> None:
    ours, nobodys = made("aaaaaa", OLD, site="lab", default=True), made("bbbbbb", NEW, default=True)
    others, no_default = made("cccccc", NEWEST, site="other", default=True), made("dddddd", NEWEST, site="lab")
    assert default_id([ours, nobodys, others, no_default], "lab") == "aaaaaa"
    assert default_id([nobodys, others, no_default], "lab") == "bbbbbb"
    assert default_id([others, no_default], "lab") is None
    assert default_id([ours, others], "") in ("aaaaaa", "cccccc")
    assert default_id([ours, nobodys, others], "") == "bbbbbb"
    assert default_id([made("aaaaaa", NEW, site="lab", default=True, **ENDED), nobodys], "lab") == "bbbbbb"


def test_a_sites_token_is_a_good_one_and_labelled() -> None:
    body = site_token_manifest("lab", now=NOW, good_for=timedelta(hours=24), default=True)
    there = msgspec.convert(body, core.Secret)
    token = token_in(there, now=NOW)
    assert token.expires == NOW + timedelta(hours=24)
    assert there.metadata.namespace == "kube-system"
    assert there.metadata.labels == {LABEL_SITE: "lab", LABEL_DEFAULT_BOOTSTRAP_TOKEN: "true"}
    assert there.value("usage-bootstrap-signing") == b"true"
    without = site_token_manifest("lab", now=NOW, good_for=LEAST_LEFT, default=False)
    assert without["metadata"]["labels"] == {LABEL_SITE: "lab"}
    assert token_in(msgspec.convert(without, core.Secret), now=NOW).id != token.id


def test_what_is_made_for_a_machine_is_good_for_it() -> None:
    machine = msgspec.convert({"metadata": {"name": "m1", "uid": "u-1"}}, Machine)
    there = msgspec.convert(secret_manifest(new_token(NOW), machine), core.Secret)
    assert token_in(there, now=NOW, machine_uid="u-1").expires is not None


@pytest.mark.slow
async def test_an_api_server_takes_a_sites_token(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, admin):
        body = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
        made_secret = await admin.create("/api/v1/namespaces/kube-system/secrets", body)
        token = token_in(msgspec.convert(made_secret, core.Secret), now=datetime.now(UTC))
        ca = from_kubeconfig(server.kubeconfig_path).ca
        bearer = {"Authorization": f"Bearer {token.text.reveal()}"}
        async with client_with(server, client_context(ca=ca), **bearer) as host:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            answer = await host.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer.status == 201, answer.text
    assert GROUP_BOOTSTRAP in answer.json()["status"]["userInfo"]["groups"]
