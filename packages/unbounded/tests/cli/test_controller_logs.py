"""Logs of the controllers in the archive of `kubectl unbounded support`: which, how much, and without secrets."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.controller_pods import NODE, add_node, add_pod, controller_pods
from tests.cli.plugin.conftest import Cli
from tests.cli.running import KUBECTL, PATH
from tests.cli.test_support import C, every_canary, leaks, telling, unpacked
from tests.support.embedded_server import embedded_server, install_crds
from unbounded.api.names import NAMESPACE
from unbounded.cli.controller_logs import LINES, MOST_BYTES, redacted_log
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.secret_text import HIDDEN

slow = pytest.mark.slow


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A server of each test, as Pods of controllers stay."""
    with embedded_server(tmp_path / "server") as path:
        asyncio.run(install_crds(path))
        yield path


async def archive_of(kubeconfig: Path, path: Path) -> tuple[dict[str, str], str]:
    """Return the files of the archive of all Machines, and what the command has printed on stderr."""
    ran = await Cli(kubeconfig)("support", "--all", "-o", str(path))
    assert ran.status == 0, ran.err
    return unpacked(path), ran.err


@slow
async def test_an_api_server_without_pods_of_controllers_is_noted(kubeconfig: Path, tmp_path: Path) -> None:
    """As `unbounded up` has no Pods of them."""
    files, err = await archive_of(kubeconfig, tmp_path / "a.tgz")
    said = f"logs of the controllers: {NAMESPACE} has no Pod of them. `unbounded up` prints its log on its terminal"
    assert f"note: left out: {said}" in err
    assert f"\n- {said}" in files["README.txt"]
    assert not [name for name in files if name.startswith("controllers/")]


@slow
async def test_the_archive_has_the_end_of_each_log_as_kubectl_prints_it(kubeconfig: Path, tmp_path: Path) -> None:
    logs = {
        "machina-1/machina": "".join(f"line {number}\n" for number in range(LINES + 500)),
        "machina-1/machina.previous": "it ends: a bug\n",
        "machina-1/explain": '{"message":"serves","level":"info"}\n',
        "ops-1/ops": f"{'x' * 1023}\n" * LINES,
    }
    limits = ("--tail", str(LINES), "--limit-bytes", str(MOST_BYTES), "--namespace", NAMESPACE)
    async with controller_pods(kubeconfig, logs) as kubelet:
        files, err = await archive_of(kubeconfig, tmp_path / "a.tar.zst")
        ours = {(request.path, frozenset(request.query.items())) for request in kubelet.requests}
        kubelet.requests.clear()
        for name in logs:
            pod, _, container = name.removesuffix(".previous").partition("/")
            previous = ("--previous",) if name.endswith(".previous") else ()
            command = [KUBECTL or "kubectl", "--kubeconfig", str(kubeconfig), "logs", pod, "-c", container, *previous]
            process = await asyncio.create_subprocess_exec(
                *command, *limits, stdout=PIPE, env={"PATH": PATH, "HOME": str(tmp_path)}
            )
            printed, _ = await process.communicate()
            assert files[f"controllers/{name}.log"].strip() == printed.decode().strip(), name
        assert {(request.path, frozenset(request.query.items())) for request in kubelet.requests} == ours
    assert files["controllers/machina-1/machina.log"].startswith("line 500\n")
    assert len(files["controllers/ops-1/ops.log"]) == MOST_BYTES
    assert "note: left out: the newest lines in the log of ops-1/ops: it has too many bytes" in err
    pods = json.loads(files["objects/pods.json"])["items"]
    assert [one["metadata"]["name"] for one in pods] == ["machina-1", "ops-1"]
    assert "Left out this time:\n- the newest lines in the log of ops-1/ops" in files["README.txt"]


@slow
async def test_a_node_that_does_not_answer_costs_its_own_logs_alone(kubeconfig: Path, tmp_path: Path) -> None:
    async with (
        HttpApi(from_kubeconfig(kubeconfig)) as api,
        controller_pods(kubeconfig, {"machina-1/machina": "here\n", "machina-1/explain": "here\n"}),
    ):
        await add_node(api, "dead", 1)
        await add_pod(api, "lost-1", "dead", ["first", "second"])
        await add_pod(api, "ops-1", NODE, ["ops"])
        files, err = await archive_of(kubeconfig, tmp_path / "a.tgz")
    assert files["controllers/machina-1/machina.log"] == "here\n"
    assert "note: left out: the log of lost-1/first: " in err
    assert "lost-1/second" not in err
    assert "note: left out: the log of ops-1/ops: " in err  # the kubelet does not serve it
    assert "is waiting to start" in err


def test_a_record_stays_one_without_secrets() -> None:
    record = {
        "time": "t",
        "message": telling("log"),
        "bmcPassword": C["bmcPassword"],
        "nested": [{"token": C["nested"]}],
    }
    lines = [json.dumps(record), "Traceback", telling("traceback"), json.dumps(record, ensure_ascii=True), "{broken"]
    shown = redacted_log("\n".join(lines).encode())
    assert leaks({"log": shown}) == []
    first, *_, last, broken = shown.splitlines()
    assert json.loads(first) == json.loads(last)
    assert json.loads(first)["message"].startswith(f"log: GET https://{HIDDEN}@bmc.example.com/redfish?{HIDDEN} failed")
    assert broken == "{broken"
    assert "traceback: GET https://" in shown


@given(
    st.lists(st.sampled_from(sorted(every_canary().values())), min_size=1, max_size=3),
    st.text(max_size=20),
    st.booleans(),
)
def test_known_secrets_are_removed_from_records_and_lines(secrets: list[str], around: str, as_json: bool) -> None:
    text = around + " ".join(secrets)
    line = json.dumps({around: text, "list": secrets}) if as_json else text.replace("\n", " ")
    shown = redacted_log(f"{line}\n{line}\n".encode(), secrets)
    assert [one for one in secrets if one in shown] == []


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"a":' * 100_000, "\x1b[31mred\x1b[0m", '{"a": "\x1b[31m"}', "\xff{}"]
)
def test_a_line_of_any_form_is_text_without_escape_sequences(line: str) -> None:
    assert "\x1b" not in redacted_log(line.encode("latin-1"))
