"""The command line of the agent: what is listed, what is refused and with which exit status, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.authority import BASE64
from tests.support.paths import PYTHONPATH
from unbounded.agent.build import STAMP
from unbounded.agent.main import COMMANDS

SLOW_MODULES = ("aiohttp", "asyncio", "cryptography", "msgspec", "yaml", "logging")


def agent(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", PYTHONPATH)} | environ
    command = [sys.executable, "-m", "unbounded.agent.main", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_commands_of_the_documents_are_there_and_only_they_are_listed() -> None:
    listed = {name for name, command in COMMANDS.items() if command.help}
    assert listed == {"start", "daemon", "preflight", "reset", "status", "version"}
    said = agent("--help").stdout
    assert set(re.findall(r"^    (\S+)  ", said, re.MULTILINE)) == listed
    assert "self-check" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [(), ("no-such-command",), ("start", "--no-such-flag"), ("--log-format", "xml", "version"),
     ("preflight", "--output", "yaml"), ("preflight", "--ignore-preflight-errors", "no-such-check")],
    ids=["nothing", "command", "flag", "log-format", "output", "check"],
)  # fmt: skip
def test_invalid_arguments_exit_with_status_2(arguments: tuple[str, ...]) -> None:
    ran = agent(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "error: " in ran.stderr


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.root])
def test_what_changes_the_host_is_for_root(name: str) -> None:
    """In a process that can read the sources as root, and then changes its user."""
    code = (
        "import contextlib, io, os, sys\nfrom unbounded.agent.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    main(['version'])\n"
        f"os.seteuid(65534)\nsys.exit(main(['{name}']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"error: `{name}` changes this host: run it as root, for example with sudo\n"


def test_version_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    (tmp_path / STAMP).write_text('{"version": "1.2.3", "build": "abc"}')
    code = (
        "import sys\nsys._MEIPASS = sys.argv[1]\nfrom unbounded.agent.main import main\nmain(['version'])\n"
        f"print([name for name in {SLOW_MODULES} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "unbounded-agent 1.2.3\n[]\n", ran.stderr


@pytest.mark.slow
def test_an_error_is_one_line_with_status_1(tmp_path: Path) -> None:
    ran = agent("preflight", "--config", str(tmp_path / "none"), "--output", "text")
    assert ran.returncode == 1
    assert f"[ERROR agent-config] configuration: {tmp_path / 'none'}: No such file or directory" in ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_warnings_fail_a_preflight_where_that_is_asked_for(tmp_path: Path) -> None:
    """With all errors ignored, so that a key that means nothing is what counts; nothing listens on port 1."""
    nowhere = {"BaseURL": "http://127.0.0.1:1"}
    config = {
        "MachineName": "m1",
        "Cluster": {"CaCertBase64": BASE64, "Version": "1.34.0"},
        "Kubelet": {"ApiServer": "https://127.0.0.1:1", "Auth": {"BootstrapToken": "abcdef.0123456789abcdef"}},
        "OCIImage": "127.0.0.1:1/root:v1",
        "Downloads": dict.fromkeys(("Kubernetes", "Containerd", "Runc", "CNI", "Crictl"), nowhere),
        "Upgrade": {"AllowHttp": True},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ("preflight", "--config", str(tmp_path / "config.json"), "--ignore-preflight-errors", "all")
    relaxed, strict = agent(*flags), agent(*flags, "--fail-on-warnings")
    words = "[WARNING agent-config] configuration: unknown key Upgrade.AllowHttp (AllowHTTP?)"
    assert [words in ran.stdout for ran in (relaxed, strict)] == [True, True], relaxed.stderr
    assert (relaxed.returncode, strict.returncode) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_and_its_status_says_so(sent: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys\nfrom unbounded.agent.console import run_to_end\n"
        "async def main():\n"
        "    try:\n        print('runs', flush=True)\n        await asyncio.sleep(60)\n"
        "    finally:\n        print('cleaned up', flush=True)\n"
        "sys.exit(run_to_end(main))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        began = time.monotonic()
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
    assert (out, process.returncode) == ("cleaned up\n", 130)
    assert f"interrupted by {sent.name}" in err
    assert time.monotonic() - began < 20
