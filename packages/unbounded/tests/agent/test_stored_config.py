"""The configuration that start keeps for the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.authority import BASE64
from unbounded.agent.layout import Layout
from unbounded.agent.stored_config import read_stored_config, require_stored_config, store_config
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig, Cluster, Kubelet, KubeletAuth

CONFIG = AgentConfig(
    machine_name="m1",
    cluster=Cluster(ca_cert_base64=BASE64, version="1.34.0"),
    kubelet=Kubelet(
        api_server="https://10.0.0.1:6443",
        auth=KubeletAuth(bootstrap_token="abcdef.0123456789abcdef"),
        labels={"a": "b"},
    ),
)


def test_it_comes_back_without_its_token_which_is_not_on_the_disk(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert read_stored_config(layout) is None
    store_config(layout, CONFIG)
    kept = read_stored_config(layout)
    assert kept is not None
    assert (kept.machine_name, kept.kubelet.labels, kept.kubelet.auth.bootstrap_token) == ("m1", {"a": "b"}, "")
    assert b"0123456789abcdef" not in layout.config.read_bytes()
    assert layout.config.stat().st_mode & 0o777 == 0o600
    assert layout.etc.stat().st_mode & 0o777 == 0o700


def test_a_damaged_one_is_told_by_its_keys(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(Rejected, match="run `unbounded-agent start` first"):
        require_stored_config(layout)
    layout.etc.mkdir(parents=True)
    layout.config.write_bytes(b'{"MachineName": "m1"}')
    with pytest.raises(Rejected, match=r"config\.json: Cluster\.Version"):
        require_stored_config(layout)
