"""Invalid values of flags, or ones without effect, are refused with 2 before any request."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import CliCommand, CliInvocation
from unbounded.cli.plugin.main import run_command
from unbounded.cli.plugin.parsing import commands

ROWS = {command.path: command for command in commands()}
ZERO_IS_NO_LIMIT = frozenset({"--timeout", "--since"})
ZERO_IS_MEANT = frozenset({"--grace"})  # switch it off at once
ON_SITES = {
    "--token-ttl": ["site", "init", "--name", "s"],
    "--media-ticket-lifetime": ["site", "deploy-pxe", "--site", "s"],
}
CREATE = ["machine", "operation", "create", "op", "--kind", "HostReboot"]
CONFIG = ["config", "create", "c", "--agent-image", "registry.example.com/i:v1"]
REGISTER = ["machine", "register", "--site", "s", "--host", "h", "--ssh-username", "u"]


def _durations() -> Iterator[tuple[CliCommand, str]]:
    for command in commands():
        for action in parsing.parser_of(command, program="kubectl unbounded")._actions:
            if action.metavar == "DURATION" and command.path != ("site", "serve-pxe"):
                yield command, action.option_strings[0]


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose API server is not there."""
    path = tmp_path / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:9'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    return {"KUBECONFIG": str(path)}


def _run(words: list[str], environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command; return its exit status and output."""
    try:
        command, args = parsing.parse(commands(), words, program="kubectl unbounded", others={})
    except SystemExit as refused:
        return int(refused.code or 0), capsys.readouterr().err
    out, err = io.StringIO(), io.StringIO()
    told = CliInvocation(args, environ, out, err, io.StringIO(), colour=False, terminal=False)
    return asyncio.run(run_command(command, told)), err.getvalue()


def test_no_duration_is_left_out_here() -> None:
    flags = {flag for _command, flag in _durations()}
    assert flags == {
        *("--timeout", "--grace", "--token-ttl", "--deadline", "--start-deadline", "--media-ticket-lifetime"),
        "--since",
    }


@pytest.mark.parametrize(("command", "flag"), list(_durations()), ids=lambda one: str(getattr(one, "path", one)))
def test_each_duration_knows_what_0_means(
    command: CliCommand, flag: str, nowhere: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    if flag in ZERO_IS_NO_LIMIT | ZERO_IS_MEANT:
        actions = parsing.parser_of(command, program="")._actions
        parse = next(action.type for action in actions if flag in action.option_strings)
        assert callable(parse)
        assert parse("0") == (None if flag in ZERO_IS_NO_LIMIT else 0)
        return
    words = ON_SITES.get(flag, [*CREATE, "--machine", "m"])
    status, said = _run([*words, flag, "0"], nowhere, capsys)
    assert (status, flag in said) == (2, True), said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["site", "init", "--name", "s", "--token-ttl", "0"], "a token is valid for 10m to 8760h"),
        (["site", "init", "--name", "s", "--token-ttl", "9" * 400 + "h"], "a token is valid for 10m to 8760h"),
        (["site", "init", "--name", "s", "--machina-manifests", "/nonexistent"], "no such folder or file"),
        (["install", "--diff", "--dry-run", "client"], "--diff: --dry-run client sends no request"),
        ([*CREATE, "--machine", "m", "--max-concurrent", "3"], "--max-concurrent: valid only with --selector"),
        ([*CREATE, "--machine", "m", "--max-failures", "3"], "--max-failures: valid only with --selector"),
        ([*CREATE, "--machine", "m", "--deadline", "99999999999999"], "--deadline: '99999999999999' is more than"),
        ([*CREATE, "--machine", "m", "--ttl", "9" * 400 + "h"], "is more than"),
        ([*CREATE, "-l", "a", "--max-concurrent", "99999999999"], "is more than"),
        ([*CREATE, "--machine", "m", "--timeout", "5s"], "--timeout: needs --wait"),
        (["machine", "power-on", "m", "--wait=false", "--timeout", "5s"], "--timeout: needs --wait"),
        ([*REGISTER, "--timeout", "5s"], "--timeout: needs --wait"),
        (["install", "--wait=false", "--timeout", "1m"], "--timeout: needs --wait"),
        ([*REGISTER, "--oci-image", "bad:image!!"], "--oci-image: image 'bad:image!!'"),
        (["config", "create", "c", "--agent-image", "bad image!!", "--dry-run", "client"], "--agent-image: image"),
        ([*CONFIG, "--priority", "99999999999"], "is not a whole number from -2147483648 to 2147483647"),
        ([*CONFIG, "--priority", "high"], "is not a whole number"),
        ([*CONFIG, "--settings", "/nonexistent"], "--settings: /nonexistent: No such file or directory"),
        (
            [*CONFIG, "--settings", "/etc/hostname"],
            "a mapping with some of kubelet, containerd, proxy, caBundle, sysctl",
        ),
        (["why", "m", "-o", "wide"], "-o wide: an answer can be text, json or yaml"),
        (["site", "init", "--name", "s", "-o", "json"], "-o json: the command applies several objects"),
        (
            ["machine", "manual-bootstrap", "m", "--site", "s", "-o", "json"],
            "-o json: the output is a script or user data",
        ),
        (["install", "--diff", "-o", "yaml"], "-o yaml: --diff prints differences"),
        (["machine", "operation", "list", "-l", "a b"], "--selector: unable to parse requirement: 'a b'"),
    ],
)
def test_it_is_refused(
    words: list[str], says: str, nowhere: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = _run(words, nowhere, capsys)
    assert (status, says in said) == (2, True), said


def test_a_priority_may_be_below_0() -> None:
    assert parsing.arguments_of(ROWS["config", "create"], [*CONFIG[2:], "--priority=-3"], program="").priority == -3


@pytest.mark.parametrize("wait", [[], ["--wait=true"]])
def test_a_limit_is_taken_with_what_it_limits(wait: list[str]) -> None:
    words = ["m", "--timeout", "5s", *wait]
    assert parsing.arguments_of(ROWS["machine", "power-on"], words, program="").timeout == 5


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_version_is_an_object_for_programs(output: str, nowhere: dict[str, str]) -> None:
    command, args = parsing.parse(commands(), ["version", "--client", "-o", output], program="p", others={})
    out, err = io.StringIO(), io.StringIO()
    told = CliInvocation(args, nowhere, out, err, io.StringIO(), colour=False, terminal=False)
    assert asyncio.run(run_command(command, told)) == 0
    assert list(yaml.safe_load(out.getvalue())) == ["unbounded"]
