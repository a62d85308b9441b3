"""Completions of the last word on the line."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.plugin.conftest import Cli
from tests.cli.running import PATH
from tests.cli.test_terminal import terminal
from unbounded.api.machine import MACHINES
from unbounded.cli.operation_commands.about import BASH, SCRIPTS
from unbounded.cli.plugin import completion
from unbounded.cli.plugin.completion import FILES, NO_FILES, NameLookup, named_by, offers
from unbounded.cli.plugin.parsing import commands
from unbounded.kube.client import HttpApi


class Known(NameLookup):
    """Names without a server."""

    def __init__(self, **names: list[str]) -> None:
        super().__init__({})
        self._names = names

    def of(self, plural: str) -> list[str]:
        return self._names[plural]  # a KeyError represents an unreachable server

    def contexts(self) -> list[str]:
        return ["lab", "live"]


KNOWN = Known(machines=["web-01", "web-02", "db-01"], machineoperations=["web-01-host-reboot-1"])


def _offered(*words: str) -> list[str]:
    return [word for word, _about in offers(commands(), words, names=KNOWN).words]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["ma"], ["machine"]),
        (["machine", ""], ["host-reboot", "operation", "pause"]),
        (["machine", "operation", "c"], ["create", "cancel"]),
        (["machine", "host-reboot", ""], ["web-01", "web-02", "db-01"]),
        (["machine", "host-reboot", "web"], ["web-01", "web-02"]),
        (["machine", "host-reboot", "web-01", "--no"], ["--now", "--no-color"]),
        (["machine", "operation", "wait", ""], ["web-01-host-reboot-1"]),
        (["machine", "operation", "create", "x", "--kind", "Host"], ["HostReboot", "HostReplace"]),
        (["machine", "operation", "create", "x", "--kind=Host"], ["--kind=HostReboot"]),
        (["machine", "operation", "create", "x", "--machine", "d"], ["db-01"]),
        (["machine", "operation", "create", "x", "--kind", "AgentUpgrade", "--param", ""], ["downloadURL=", "sha256="]),
        (["machine", "operation", "list", "--phase", "In"], ["InProgress"]),
        (["machine", "operation", "list", "-o", ""], ["name", "json", "yaml", "wide"]),
        (["machine", "pause", "--wait", ""], []),
        (["--context", "l"], ["lab", "live"]),
        (["--as", "n"], []),
        (["machine", "power-on", "--context", "li"], ["live"]),
        (["machine", "power-on", "--wait=f"], ["--wait=false"]),
        (["machine", "power-on", "--wait", "w"], ["web-01"]),
        (["logs", "w"], ["web-01", "web-02"]),
        (["logs", "web-01", "--part", ""], ["install", "agent", "console"]),
        (["ssh", "d"], ["db-01"]),
        (["support", "d"], ["db-01"]),
        (["support", "--"], ["--all", "--host-logs"]),
    ],
    ids=" ".join,
)
def test_words_flags_and_values_are_offered(words: list[str], some: list[str]) -> None:
    found = _offered(*words)
    assert set(some) <= set(found), found
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize(
    "words",
    [
        ["machine", "host-reboot", "web-01", ""],
        ["nothing", ""],
        ["machine", "operation", "create", ""],
        ["machine", "x", ""],
    ],
    ids=" ".join,
)
def test_nothing_is_offered_where_nothing_fits(words: list[str]) -> None:
    assert _offered(*words) == []


def test_files_are_the_shells_own() -> None:
    assert offers(commands(), ["machine", "power-on", "--kubeconfig", ""], names=KNOWN).directive == FILES
    assert offers(commands(), ["--kubeconfig", ""], names=KNOWN).directive == FILES
    assert offers(commands(), ["support", "web-01", "-o", ""], names=KNOWN).directive == FILES


def test_a_flag_that_was_typed_is_not_offered_again() -> None:
    assert "--now" not in _offered("machine", "host-reboot", "--now", "--")
    assert "--now" in _offered("machine", "host-reboot", "--")


def test_a_server_that_is_away_offers_nothing_and_says_nothing() -> None:
    found = offers(commands(), ["machine", "host-reboot", ""], names=Known())
    assert (found.words, found.directive) == ((), NO_FILES)


async def test_names_come_from_the_cluster_that_the_line_leads_to(
    cli: Cli, api: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "LOOKUP_S", 60.0)
    await api.create(MACHINES, {"metadata": {"name": "completed-01"}, "spec": {}})
    words = ["--kubeconfig", str(cli.kubeconfig), "machine", "pause", "comp"]
    found = await asyncio.to_thread(offers, commands(), words, names=named_by(words, {}))
    assert found.words == (("completed-01", ""),)
    contexts = await asyncio.to_thread(offers, commands(), ["--context", ""], names=named_by(words, {}))
    assert contexts.words


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the program for completions, and the scripts in files."""
    complete = tmp_path / "kubectl_complete-unbounded"
    complete.write_text(f'#!/bin/sh\nexec {sys.executable} -m unbounded.cli.plugin.completion "$@"\n')
    complete.chmod(0o755)
    for shell, script in SCRIPTS.items():
        (tmp_path / shell).write_text(script)
    (tmp_path / "a-file").touch()
    return {**os.environ, "PATH": f"{tmp_path}:{PATH}", "HOME": str(tmp_path), "TERM": "dumb", "FOLDER": str(tmp_path)}


def output_of(environ: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environ, cwd=environ["HOME"], check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_bash_completes_unbounded_itself(environ: dict[str, str]) -> None:
    script = BASH + 'COMP_WORDS=(unbounded machine operation ca); COMP_CWORD=3; _unbounded; echo "${COMPREPLY[@]}"'
    assert output_of(environ, "bash", "-c", script) == "cancel\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish", path=PATH) is None, reason="fish is not installed: scripts/shell-tools")
def test_fish_completes_unbounded_itself(environ: dict[str, str]) -> None:
    script = 'source fish; complete -C "unbounded machine operation ca"; complete -C "unbounded register -f a-"'
    cancel, file = output_of(environ, "fish", "--no-config", "-c", script).splitlines()
    assert cancel.split("\t")[0] == "cancel"
    assert file.split("\t")[0] == "a-file"
    groups = output_of(environ, "fish", "--no-config", "-c", 'source fish; complete -C "unbounded "').splitlines()
    assert {"machine", "why", "tree"} <= {line.split("\t")[0] for line in groups}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh", path=PATH) is None, reason="zsh is not installed: scripts/shell-tools")
async def test_zsh_completes_unbounded_itself(environ: dict[str, str]) -> None:
    """A person types at a terminal, each line at a prompt."""
    (Path(environ["HOME"]) / ".zshrc").write_text(
        "autoload -U compinit; compinit -u -D; source $FOLDER/zsh; cd; PROMPT='READY> '\n"
        'unbounded() { print -r -- "RAN:${(j:,:)@}:"; }\n'
    )
    typed = (
        ("unbounded machine operation ca\t\n", "RAN:machine,operation,cancel:"),
        ("unbounded register -f a-\t\n", "RAN:register,-f,a-file:"),
        ("unbounded machine operation create x --kind=HostReb\t\n", "--kind=HostReboot:"),
    )
    zsh = shutil.which("zsh", path=PATH)
    assert zsh is not None
    async with terminal(zsh, "-i", environ=environ) as shell:
        await shell.shows("READY> ")
        for keys, answer in typed:
            shell.type(keys)
            await shell.shows(rf"{answer}\s[\s\S]*READY> ")


UNRESOLVED = """
import socket, sys, time
socket.getaddrinfo = lambda *_arguments, **_options: time.sleep(3600)
from unbounded.cli.plugin.completion import main
sys.exit(main(["--kubeconfig", sys.argv[1], "why", ""]))
"""


def _kubeconfig(folder: Path) -> Path:
    path = folder / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'https://gone.example:6443'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    return path


@pytest.mark.slow
def test_a_resolver_that_blocks_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal interrupts the one of libc: the thread that answers must not call it."""
    asked, over = list[threading.Thread](), threading.Event()

    def blocks(*_arguments: object, **_options: object) -> list[object]:
        asked.append(threading.current_thread())
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", blocks)
    try:
        found = offers(commands(), ["why", ""], names=named_by(["--kubeconfig", str(_kubeconfig(tmp_path)), ""], {}))
    finally:
        over.set()
    assert (found.words, found.directive) == ((), NO_FILES)
    assert threading.main_thread() not in asked


@pytest.mark.slow
def test_the_process_ends_although_a_lookup_blocks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNRESOLVED, str(_kubeconfig(tmp_path))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f":{NO_FILES}\n", "")
