"""kubeconfig files, service accounts and exec plugins, as people have them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from unbounded.kube.api import ServerUnreachable
from unbounded.kube.clock import rfc3339
from unbounded.kube.config import ClientConfig, ConfigError, find_config, from_kubeconfig, in_cluster
from unbounded.kube.credentials import REREAD_S, AuthInfo, ExecPlugin, TokenFile
from unbounded.kube.tls import ClientCertificate


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def kubeconfig(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://one:6443/", **(cluster or {})}},
            {"name": "d", "cluster": {"server": "https://two:6443", "insecure-skip-tls-verify": True}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, body: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(body))
    return path


async def login(config: ClientConfig) -> AuthInfo:
    return await config.credentials.login()


# ---- kubeconfig


async def test_the_current_context_is_read(tmp_path: Path) -> None:
    cluster = {"certificate-authority-data": b64("CA"), "tls-server-name": "api.internal"}
    config = from_kubeconfig(write(tmp_path / "config", kubeconfig({"token": "t"}, cluster)))
    assert (config.server, config.namespace, config.ca) == ("https://one:6443", "team", b"CA")
    assert (config.verify, config.tls_server_name) == (True, "api.internal")
    assert await login(config) == AuthInfo("t")


async def test_another_context_can_be_asked_for(tmp_path: Path) -> None:
    config = from_kubeconfig(write(tmp_path / "config", kubeconfig()), context="there")
    assert (config.server, config.namespace, config.verify) == ("https://two:6443", "default", False)
    assert await login(config) == AuthInfo()


async def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    for name, content in (("ca.pem", "CA"), ("cert.pem", "CERT"), ("key.pem", "KEY")):
        (tmp_path / name).write_text(content)
    user = {"client-certificate": "cert.pem", "client-key": str(tmp_path / "key.pem")}
    config = from_kubeconfig(write(tmp_path / "config", kubeconfig(user, {"certificate-authority": "ca.pem"})))
    assert config.ca == b"CA"
    assert (await login(config)).certificate == ClientCertificate(b"CERT", b"KEY")


async def test_inline_data_goes_before_files(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": b64("CERT"),
        "client-certificate": "missing.pem",
        "client-key-data": b64("KEY"),
    }
    config = from_kubeconfig(write(tmp_path / "config", kubeconfig(user)))
    assert (await login(config)).certificate == ClientCertificate(b"CERT", b"KEY")


async def test_of_several_files_the_first_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "1", {"current-context": "there"})
    second = write(tmp_path / "2", kubeconfig({"token": "second"}))
    third = write(tmp_path / "3", kubeconfig({"token": "third"}))
    config = from_kubeconfig(first, second, third)
    assert config.server == "https://two:6443"
    assert await login(config) == AuthInfo("second")


def change(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(body: dict[str, Any]) -> None:
        at: Any = body
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (change(["current-context"], ""), "no current-context"),
        (change(["current-context"], "nowhere"), "contexts has no entry 'nowhere'"),
        (change(["clusters"], []), "clusters has no entry 'c'"),
        (change(["users"], None), "users has no entry 'u'"),
        (change(["clusters", 0, "cluster"], {}), "no server URL"),
        *(
            (change(["clusters", 0, "cluster", "server"], url), f"server of cluster 'c' is '{url}': expected https://")
            for url in (
                "https://one:65536",
                "https://one:0",
                "https://one:api",
                "https://",
                "https://[::1",
                "ftp://one",
            )
        ),
        (change(["users", 0, "user"], {"client-certificate": "gone.pem"}), "gone.pem: No such file"),
        (change(["users", 0, "user"], {"client-key-data": "%%%"}), "client-key-data is not base64"),
        (change(["users", 0, "user"], {"client-key-data": b64("KEY")}), "both its chain and its key"),
        (change(["users", 0, "user"], {"exec": {"args": []}}), "exec names no command"),
        (change(["users", 0, "user"], {"auth-provider": {"name": "gcp"}}), "use an exec plugin"),
        (change(["users", 0, "user"], {"as-groups": ["ops"]}), "user-extra for u without impersonating a user"),
        (change(["users", 0, "user"], {"as-user-extra": {"a": ["b"]}}), "user-extra for u without impersonating"),
        (change(["users", 0, "user"], {"as": "joe", "as-groups": "ops"}), "as-groups: must be a list of strings"),
        (change(["users", 0, "user"], {"as": "joe", "as-user-extra": ["a"]}), "as-user-extra: must map keys"),
        (change(["users", 0, "user"], {"as": 7}), "as: 7 is not a string"),
        (
            change(["users", 0, "user"], {"as": "joe\r\nX: y"}),
            "user u: impersonation headers must not contain line breaks",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str) -> None:
    body = kubeconfig()
    spoil(body)
    with pytest.raises(ConfigError, match=re.escape(says)):
        from_kubeconfig(write(tmp_path / "config", body))


def test_a_file_that_is_no_kubeconfig_is_refused_without_quoting_it(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("token: 'hunter2\n")
    with pytest.raises(ConfigError, match="not YAML") as caught:
        from_kubeconfig(path)
    assert "hunter2" not in str(caught.value)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a kubeconfig"):
        from_kubeconfig(path)
    with pytest.raises(ConfigError, match="No such file"):
        from_kubeconfig(tmp_path / "none")


# ---- where it is found


async def test_a_flag_goes_before_the_environment_and_that_before_the_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    paths = {
        name: str(write(tmp_path / name, kubeconfig({"token": name}))) for name in ("flag", "variable", ".kube/config")
    }
    home = {"HOME": str(tmp_path)}
    variable = {**home, "KUBECONFIG": f"{tmp_path}/missing:{paths['variable']}"}
    assert await login(find_config(variable, kubeconfig=paths["flag"])) == AuthInfo("flag")
    assert await login(find_config(variable)) == AuthInfo("variable")
    assert await login(find_config(home)) == AuthInfo(".kube/config")
    with pytest.raises(ConfigError, match="no kubeconfig"):
        find_config({"HOME": str(tmp_path / "nobody")})


async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    for name, content in (("token", "t1\n"), ("ca.crt", "CA"), ("namespace", "unbounded-kube")):
        (tmp_path / name).write_text(content)
    config = in_cluster("10.0.0.1", "443", account=tmp_path)
    assert (config.server, config.ca, config.namespace) == ("https://10.0.0.1:443", b"CA", "unbounded-kube")
    assert await login(config) == AuthInfo("t1")
    assert in_cluster("fd00::1", "6443", account=tmp_path).server == "https://[fd00::1]:6443"
    with pytest.raises(ConfigError, match=r"KUBERNETES_SERVICE_PORT is 'https://10.0.0.1:tcp': expected"):
        in_cluster("10.0.0.1", "tcp", account=tmp_path)
    with pytest.raises(ConfigError, match="no service account token"):
        in_cluster("10.0.0.1", "443", account=tmp_path / "none")


# ---- logins that change


async def test_token_file_is_reread_after_an_interval_or_rejection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t1")
    credentials = TokenFile(path)
    first = await credentials.login()
    path.write_text("t2")
    assert await credentials.login() == first
    assert credentials.refused(first)
    assert await credentials.login() == AuthInfo("t2")
    path.write_text("t3")
    credentials._read_at -= REREAD_S + 1  # as if the time had passed
    assert await credentials.login() == AuthInfo("t3")
    path.unlink()
    assert credentials.refused(AuthInfo("t3"))
    with pytest.raises(ServerUnreachable, match="token file"):
        await credentials.login()


PLUGIN = """
import json, os, pathlib, sys
count = pathlib.Path(sys.argv[1]); number = int(count.read_text() or "0") + 1; count.write_text(str(number))
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = {"token": f"{os.environ['PREFIX']}{number}", **json.loads(sys.argv[2])}
json.dump({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}, sys.stdout)
"""


def plugin(tmp_path: Path, status: dict[str, Any] | None = None, **more: Any) -> ClientConfig:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "count").write_text("")
    spec = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py"), str(tmp_path / "count"), json.dumps(status or {})],
        "env": [{"name": "PREFIX", "value": "t"}],
        **more,
    }
    return from_kubeconfig(write(tmp_path / "config", kubeconfig({"exec": spec})))


@pytest.mark.slow
async def test_a_plugin_is_asked_once_and_again_when_refused(tmp_path: Path) -> None:
    config = plugin(tmp_path)
    logins = await asyncio.gather(*(login(config) for _ in range(5)))
    assert set(logins) == {AuthInfo("t1")}
    assert config.credentials.refused(logins[0])
    assert await login(config) == AuthInfo("t2")
    assert not config.credentials.refused(AuthInfo("t1")) or await login(config) == AuthInfo("t2")  # not what is in use


@pytest.mark.slow
@pytest.mark.parametrize(("left", "second"), [(timedelta(seconds=10), "t2"), (timedelta(hours=1), "t1")])
async def test_what_a_plugin_gave_is_used_until_shortly_before_it_expires(
    tmp_path: Path, left: timedelta, second: str
) -> None:
    config = plugin(tmp_path, {"expirationTimestamp": rfc3339(datetime.now(UTC) + left)})
    assert await login(config) == AuthInfo("t1")
    assert await login(config) == AuthInfo(second)


async def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    config = plugin(tmp_path, {"token": None, "clientCertificateData": "CERT", "clientKeyData": "KEY"})
    assert (await login(config)).certificate == ClientCertificate(b"CERT", b"KEY")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": "no-such-plugin-anywhere", "installHint": "Install it."}, "not found. Install it"),
        ({"args": ["-c", "print('hello')"]}, "not an ExecCredential"),
        ({"args": ["-c", "raise SystemExit(3)"]}, "exit code 3"),
        ({"args": ["-c", "print('{}')"]}, "expected client.authentication.k8s.io/v1 with a status"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_its_reason(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ServerUnreachable, match=says):
        await login(plugin(tmp_path, **change))


def test_a_plugin_with_a_slash_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    relative = ExecPlugin.from_config({"command": "./bin/p"}, folder=tmp_path, server="https://x")
    assert Path(relative.command[0]) == tmp_path / "bin/p"
    named = ExecPlugin.from_config({"command": "p"}, folder=tmp_path, server="https://x")
    assert named.command == ("p",)


def test_logins_do_not_show_themselves() -> None:
    assert "hunter2" not in repr(AuthInfo("hunter2", ClientCertificate(b"hunter2", b"hunter2")))
