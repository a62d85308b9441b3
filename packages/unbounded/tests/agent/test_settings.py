"""Sources of the agent's configuration, and the errors of an unusable one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.authority import BASE64
from tests.support.authority import BASE64 as CA
from unbounded.agent.paths import HostPaths
from unbounded.agent.settings import (
    NEEDED,
    load_config,
    read_config,
    read_stored_config,
    require_stored_config,
    store_config,
)
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth

TOKEN = "abcdef.0123456789abcdef"
VARIABLES = {
    "MACHINA_MACHINE_NAME": "m1",
    "KUBE_VERSION": "v1.34.0",
    "API_SERVER": "api.example.com:6443",
    "CA_CERT_BASE64": CA,
    "CLUSTER_DNS": "10.96.0.10",
    "BOOTSTRAP_TOKEN": TOKEN,
}
FILE = {
    "MachineName": "m2",
    "Cluster": {"CaCertBase64": CA, "Version": "1.34.0"},
    "Kubelet": {"ApiServer": "https://api.example.com", "Auth": {"BootstrapToken": TOKEN}},
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(FILE | changes))
    return path


def refusal(environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(Rejected) as caught:
        read_config(file, environ)
    return str(caught.value)


def test_the_file_of_the_arguments_counts_before_the_one_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other", MachineName="m3")
    environ = VARIABLES | {"UNBOUNDED_AGENT_CONFIG_FILE": str(other)}
    assert read_config(written(tmp_path), environ).config.machine_name == "m2"
    assert read_config(None, environ).config.machine_name == "m3"


def test_single_variables_make_a_configuration() -> None:
    made = read_config(
        None, VARIABLES | {"NODE_LABELS": "a=b, zone=", "REGISTER_WITH_TAINTS": "new=yes:NoSchedule"}
    ).config
    assert (made.machine_name, made.cluster.version, made.cluster.cluster_dns) == ("m1", "1.34.0", "10.96.0.10")
    assert made.kubelet.api_server == "https://api.example.com:6443"
    assert made.kubelet.auth.bootstrap_token == TOKEN
    assert made.kubelet.labels == {"a": "b", "zone": ""}
    assert made.kubelet.register_with_taints == ("new=yes:NoSchedule",)


@pytest.mark.parametrize("name", NEEDED)
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    assert f"{name} is not set" in refusal({key: value for key, value in VARIABLES.items() if key != name})


def test_attestation_takes_the_place_of_the_token() -> None:
    without = {key: value for key, value in VARIABLES.items() if key != "BOOTSTRAP_TOKEN"}
    assert "BOOTSTRAP_TOKEN is not set" in refusal(without)
    made = read_config(None, without | {"AGENT_ATTEST_URL": "http://10.0.0.1/boot/x/"}).config
    assert made.attest.url == "http://10.0.0.1/boot/x"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"KUBE_VERSION": "latest"}, "KUBE_VERSION 'latest': must be a version such as"),
        ({"API_SERVER": "http://api"}, "API_SERVER: must be a URL that begins with https://"),
        ({"NODE_LABELS": "a=b,broken"}, "NODE_LABELS 'broken': must be a comma-separated list of key=value"),
        ({"NODE_LABELS": "a b=c"}, "NODE_LABELS 'a b'='c': not a valid label"),
        ({"REGISTER_WITH_TAINTS": "x"}, "REGISTER_WITH_TAINTS 'x': must be key=value:NoSchedule"),
        ({"BOOTSTRAP_TOKEN": "secret-that-is-none"}, "BOOTSTRAP_TOKEN: must be six lower-case letters"),
        ({"CA_CERT_BASE64": "!"}, "CA_CERT_BASE64: must be base64 of at least one PEM certificate"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_variable_that_is_wrong_is_named(changes: dict[str, str], words: str) -> None:
    message = refusal(VARIABLES | changes)
    assert words in message
    assert "secret" not in message


def test_a_host_that_has_joined_needs_no_credential_in_its_variables(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    environ = {key: value for key, value in VARIABLES.items() if key != "BOOTSTRAP_TOKEN"}
    with pytest.raises(Rejected, match="BOOTSTRAP_TOKEN is not set"):
        load_config(None, environ, paths)
    paths.identity.mkdir(parents=True)
    (paths.identity / "agent.pem").write_text("a certificate")
    assert load_config(None, environ, paths).config.machine_name == "m1"


def test_keys_of_a_file_that_mean_nothing_come_with_it(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, OciImage="x"), {}).unknown_keys == ("unknown key OciImage (OCIImage?)",)
    assert read_config(None, VARIABLES).unknown_keys == ()


def test_a_file_that_is_wrong_or_not_there_is_named(tmp_path: Path) -> None:
    assert refusal({}, tmp_path / "none") == f"{tmp_path / 'none'}: No such file or directory"
    assert "MachineName" in refusal({}, written(tmp_path, MachineName="Not A Name"))
    (tmp_path / "config.json").write_text("{")
    assert str(tmp_path / "config.json") in refusal({}, tmp_path / "config.json")


def test_without_anything_it_is_said_how_to_give_it() -> None:
    assert refusal({}) == "no configuration: give --config FILE, or set UNBOUNDED_AGENT_CONFIG_FILE"


CONFIG = AgentConfig(
    machine_name="m1",
    cluster=JoinedCluster(ca_cert_base64=BASE64, version="1.34.0"),
    kubelet=Kubelet(
        api_server="https://10.0.0.1:6443",
        auth=KubeletAuth(bootstrap_token="abcdef.0123456789abcdef"),
        labels={"a": "b"},
    ),
)


def test_it_comes_back_without_its_token_which_is_not_on_the_disk(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert read_stored_config(paths) is None
    store_config(paths, CONFIG)
    kept = read_stored_config(paths)
    assert kept is not None
    assert (kept.machine_name, kept.kubelet.labels, kept.kubelet.auth.bootstrap_token) == ("m1", {"a": "b"}, "")
    assert b"0123456789abcdef" not in paths.config.read_bytes()
    assert paths.config.stat().st_mode & 0o777 == 0o600
    assert paths.etc.stat().st_mode & 0o777 == 0o700


def test_damaged_stored_configuration_is_rejected_by_its_keys(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    with pytest.raises(Rejected, match="run `unbounded-agent start` first"):
        require_stored_config(paths)
    paths.etc.mkdir(parents=True)
    paths.config.write_bytes(b'{"MachineName": "m1"}')
    with pytest.raises(Rejected, match=r"config\.json: Cluster\.Version"):
        require_stored_config(paths)
