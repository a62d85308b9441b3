"""`register -f FILE` against a server as `unbounded up` prepares it: all faults at once, or all hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.deploy.test_machine_commands import AGENT, HOST_KEY, key, register, site
from tests.cli.plugin.conftest import Cli
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.records import parse_csv, parse_yaml
from unbounded.kube.client import HttpApi

__all__ = ["key", "site"]
AGENT_URL = AGENT[1]
CSV = """site,host,ssh-username,ssh-private-key,node-label,host-key,agent-url,reset-on-delete,name
SITE,192.0.2.61,admin,KEY,pool=web;a=b,,URL,,
SITE,192.0.2.62:2222,admin,,,"192.0.2.62 HOSTKEY",URL,true,007

"""
YAML = """\
- {site: SITE, host: 192.0.2.61, ssh-username: admin, agent-url: URL, node-label: {pool: web, a: b}}
- site: SITE
  host: 192.0.2.62:2222
  ssh-username: admin
  name: 007
  host-key: [192.0.2.62 HOSTKEY]
  agent-url: URL
  reset-on-delete: yes
  kubernetes-version:
- {site: SITE, host: 192.0.2.63, ssh-username: admin, agent-url: URL}
"""
FAULTY = """\
site,host,ssh-username,ssh-private-key,node-labels,agent-sha256,reset-on-delete,agent-url,register-with-taint
BAD SITE,h o st,,,,xyz,maybe,URL,nothing
SITE,192.0.2.71,admin,KEY,,,,URL,
SITE,192.0.2.71,admin,MISSING,,,,URL,
nosuch,192.0.2.72,admin,,,,,URL,,
SITE,192.0.2.70,admin,KEY,,,,URL,
"""


def written(folder: Path, name: str, text: str, site: str, key: Path) -> str:
    path = folder / name
    text = text.replace("SITE", site).replace("KEY", str(key)).replace("URL", AGENT_URL)
    path.write_text(text.replace(f"HOST{key}", HOST_KEY).replace(f"BAD {site}", "BAD SITE"))
    return str(path)


async def stored(api: HttpApi, site: str) -> tuple[list[str], list[str]]:
    """Return the names of the Machines and SSH Secrets of a site."""
    machines = await api.list(MACHINES, labels=f"unbounded-cloud.io/site={site}")
    secrets = await api.list(SECRETS, namespace=NAMESPACE, labels=f"unbounded-cloud.io/site={site}")
    ours = sorted(one.name for one in secrets.items if one.name.startswith("ssh-"))
    return sorted(one.name for one in machines.items), ours


@pytest.mark.slow
async def test_hosts_of_a_file_are_registered_as_one_by_one(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, "hosts.csv", CSV, site, key)
    names = [f"{site}-007", f"{site}-192.0.2.61"]
    for dry_run in ("client", "server"):
        ran = await up_cli("register", "-f", file, "--dry-run", dry_run)
        assert (ran.status, len(ran.out.splitlines())) == (0, 3), ran.err
        assert await stored(up_api, site) == ([], [])
    ran = await up_cli("register", "-f", file)
    assert ran.status == 0, ran.err
    assert ran.out.splitlines() == [
        f"secret/ssh-{site} created",
        f"machine.unbounded-cloud.io/{site}-192.0.2.61 created",
        f"machine.unbounded-cloud.io/{site}-007 created",
    ]
    assert await stored(up_api, site) == (names, [f"ssh-{site}"])
    labels = ("--node-label", "pool=web", "--node-label", "a=b")
    same = await up_cli(*register(site, *labels, "--agent-url", AGENT_URL, host="192.0.2.61"))
    assert (same.status, same.out) == (0, f"machine.unbounded-cloud.io/{site}-192.0.2.61 unchanged\n"), same.err
    second = await up_api.get(MACHINES, f"{site}-007")
    assert second.spec.ssh is not None
    assert (second.spec.ssh.host, second.spec.ssh.host_keys) == ("192.0.2.62:2222", (HOST_KEY,))
    assert second.spec.reset_on_delete
    again = await up_cli("register", "-f", written(tmp_path, "hosts.yaml", YAML, site, key), "-o", "json")
    assert again.status == 0, again.err
    assert [one["metadata"]["name"] for one in json.loads(again.out)["items"]] == [*names[::-1], f"{site}-192.0.2.63"]
    versions = {name: (await up_api.get(MACHINES, name)).metadata.generation for name in names}
    assert versions == dict.fromkeys(names, 1), "existing Machines stay as they are"


@pytest.mark.slow
async def test_all_faults_are_reported_at_once_and_nothing_is_written(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path, tmp_path: Path
) -> None:
    other = register(site, "--ssh-private-key", str(key), host="192.0.2.70")
    assert (await up_cli(*other, "--name", "first")).status == 0
    before = await stored(up_api, site)
    text = FAULTY.replace("MISSING", str(tmp_path / "missing"))
    ran = await up_cli("register", "-f", written(tmp_path, "hosts.csv", text, site, key))
    assert (ran.status, ran.out) == (1, "")
    warned, _, report = ran.err.partition("error: ")
    assert len(warned.splitlines()) == len(set(warned.splitlines())), "each warning is printed once"
    head, *faults = report.splitlines()
    assert head == f"{tmp_path}/hosts.csv has {len(faults)} faults; nothing was written:"
    for wanted in (
        "line 2, agent-sha256: 'xyz' is not",
        "line 2, host: 'h o st' is not a host",
        "line 1, node-labels: no such field; did you mean node-label?",
        "line 2, register-with-taint: 'nothing'",
        "line 2, reset-on-delete: 'maybe' is neither true nor false",
        "line 2, site: 'BAD SITE' is not the name of a site",
        "line 2, ssh-username: it is missing",
        f"line 4, ssh-private-key: {tmp_path}/missing: No such file",
        "line 5, site: site nosuch has no valid bootstrap token",
        f"line 6, host: Machine {site}-first has this host already",
    ):
        assert [fault for fault in faults if wanted in fault], (wanted, ran.err)
    assert await stored(up_api, site) == before


HOST_FAULTS = """
- site: SITE
  host: 10.0.0.999
  name: faulty
  ssh-username: ""
  ssh-private-key: PUBLIC
  ssh-secret-name: Not A Name
  host-key: [ssh-ed25519 short, HOSTKEY, "10.0.0.9 HOSTKEY", none]
  bastion-host: b@stion
  bastion-ssh-username: ""
  bastion-ssh-private-key: ABSENT
  bastion-ssh-secret-name: [a, b]
  bastion-host-key: none
  node-label: {pool: "a,b=c d,b=e,b=f", "x y": 1}
  register-with-taint: [k, "k=v:NoSchedule", "k:Never"]
  kubernetes-version: latest
  oci-image: Not/An/Image
  agent-version: a b
  agent-base-url: ftp://example.com
  agent-url: https://user:password@example.com/a
  agent-sha256: abc
  containerd-version: newest
  containerd-url: nowhere
  runc-base-url: nowhere
  reset-on-delete: perhaps
  color: red
  color: green
- {site: SITE, host: 192.0.2.80, name: faulty, ssh-username: u, agent-url: URL, agent-sha256: 1}
- {site: SITE, host: 192.0.2.80, ssh-username: u, agent-url: URL, node-label: nothing, name: [x, y]}
- {site: nosuch, host: "192.0.2.81:99999", agent-url: URL}
- {site: SITE, host: 192.0.2.90, name: second, ssh-username: other, agent-url: URL, agent-sha256: 1}
- {site: SITE, host: 192.0.2.82, name: first, ssh-username: "", agent-url: URL, node-label: a=b, oci-image: "?"}
- {site: SITE, host: 192.0.2.83, ssh-username: u, ssh-secret-name: unknown, agent-sha256: 1}
- {site: SITE, host: 192.0.2.84, bastion-ssh-username: u, bastion-ssh-private-key: PUBLIC, agent-url: URL}
- {site: SITE, host: 192.0.2.85, ssh-username: u, bastion-host: b, agent-url: URL, ssh-private-key: KEY,
   bastion-ssh-private-key: PUBLIC, bastion-ssh-secret-name: ssh-SITE, node-label: a=b=c}
- {site: "", host: "", ssh-username: u, agent-url: URL, ssh-private-key: PUBLIC}
- {site: SITE, host: 10.1, ssh-username: u, agent-url: URL}
- {site: SITE, host: LONG, name: long, ssh-username: u, agent-url: URL, agent-sha256: 1}
- {site: [[SITE]], host: 192.0.2.86, ssh-username: u, agent-url: URL}
- text
"""
EVERY_FAULT = """
3, host: '10.0.0.999' is no IPv4 address
lines 5, 30, 32, 34, ssh-username: it is missing
lines 6, 37, ssh-private-key: TMP/id.pub is a public key
7, ssh-secret-name: 'Not A Name' is not a name
8, host-key: 'none' is not a host key
8, host-key: 'ssh-ed25519 short' is not a host key
9, bastion-host: 'b@stion' is not a host
11, bastion-ssh-private-key: TMP/no: No such file
12, bastion-ssh-secret-name: it has 2 values
13, bastion-host-key: 'none' is not a host key
14, node-label: 'b' is given twice
14, node-label: 'c d' is not a label value
14, node-label: 'x y' is not a label key
15, register-with-taint: 'k' is not a taint
15, register-with-taint: 'k:Never' is not a taint
16, kubernetes-version: 'latest' is not a version
17, oci-image: image 'Not/An/Image'
18, agent-version: 'a b' contains spaces
19, agent-base-url: 'ftp://example.com' is not a URL
20, agent-url: 'https://user:password@example.com/a' is not a URL
21, agent-sha256: 'abc' is not a SHA-256
22, containerd-version: 'newest' is not a version
23, containerd-url: 'nowhere' is not a URL
24, runc-base-url: 'nowhere' is not a URL
25, reset-on-delete: 'perhaps' is neither true nor false
26, color: no such field
27, color: the field is named twice
lines 28, 31, 33, 39, agent-sha256: '1' is not a SHA-256
28, name: Machine SITE-faulty is that of line 2, too
29, host: it is the host of line 28, too
29, name: it has 2 values
29, node-label: 'nothing' is not a label
30, host: '192.0.2.81:99999': the port '99999'
30, site: site nosuch has no valid bootstrap token
30, ssh-private-key: Secret unbounded-kube/ssh-nosuch with an SSH key does not exist
31, host: Machine SITE-first has this host already
32: Machine SITE-first exists, and differs: spec.kubernetes.nodeLabels, spec.ssh.host
32, oci-image: image '?'
33: no release of the agent is configured
33, ssh-private-key: Secret unbounded-kube/unknown with an SSH key does not exist
34, bastion-ssh-private-key: needs --bastion-host
34, bastion-ssh-username: needs --bastion-host
35: --ssh-private-key and --bastion-ssh-private-key name two keys for one Secret
36, bastion-ssh-private-key: TMP/id.pub is a public key
36, node-label: 'b=c' is not a label value
37, host: it is missing
37, site: it is missing
38, host: '10.1' is no IPv4 address
39: Machine.unbounded-cloud.io "SITE-long" is invalid: [spec.ssh.host: Too long
40, site: nested too deeply
41: a host has to be a mapping
"""


@pytest.mark.slow
async def test_every_kind_of_fault_is_named_also_where_a_line_has_several(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path, tmp_path: Path
) -> None:
    other = register(site, "--ssh-private-key", str(key), host="192.0.2.90")
    assert (await up_cli(*other, "--name", "first")).status == 0
    before = await stored(up_api, site)
    public = tmp_path / "id.pub"
    public.write_text(HOST_KEY)
    text = (
        HOST_FAULTS.replace("HOSTKEY", HOST_KEY)
        .replace("PUBLIC", str(public))
        .replace("ABSENT", str(tmp_path / "no"))
        .replace("LONG", "a" * 300)
    )
    file = written(tmp_path, "hosts.yaml", text, site, key)
    ran = await up_cli("register", "-f", file)
    assert (ran.status, ran.out) == (1, ""), ran.err
    report = ran.err.partition("error: ")[2].splitlines()[1:]
    expected = EVERY_FAULT.replace("SITE", site).replace("TMP", str(tmp_path)).strip().splitlines()
    assert len(report) == len(expected), ran.err
    for line, start in zip(report, expected, strict=True):
        assert line.startswith(f"  {start}" if start.startswith("lines") else f"  line {start}"), line
    assert await stored(up_api, site) == before


@pytest.mark.slow
async def test_a_cause_that_several_records_have_is_reported_once(
    up_cli: Cli, up_api: HttpApi, site: str, tmp_path: Path
) -> None:
    hosts = [f"nosuch,192.0.2.{number},u,{AGENT_URL}" for number in (1, 2, 3, 4)]
    hosts[2] = hosts[2].replace("nosuch", site)
    file = tmp_path / "hosts.csv"
    file.write_text("\n".join(("site,host,ssh-username,agent-url", *hosts)))
    ran = await up_cli("register", "-f", str(file))
    report = ran.err.partition("error: ")[2].splitlines()
    assert report[0] == f"{file} has 3 faults; nothing was written:"
    assert [line.partition(": ")[0] for line in report[1:]] == [
        "  lines 2-3, 5, site",
        "  lines 2-3, 5, ssh-private-key",
        "  line 4, ssh-private-key",
    ]


@pytest.mark.slow
async def test_hosts_that_contradict_each_other_are_refused(
    up_cli: Cli, up_api: HttpApi, site: str, key: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    shutil.copy(key, second)
    lines = [f"- {{site: {site}, ssh-username: u, agent-url: {AGENT_URL}, host: {one}}}" for one in ("a", "a:22", "b")]
    lines[1] = lines[1].replace("}", f", name: other, ssh-private-key: {key}}}")
    lines[2] = lines[2].replace("}", f", name: a, ssh-private-key: {second}}}")
    file = tmp_path / "hosts.yml"
    file.write_text("\n".join(lines))
    ran = await up_cli("register", "-f", str(file), "--dry-run", "client")
    assert ran.err.partition("error: ")[2].splitlines()[1:] == [
        "  line 2, host: it is the host of line 1, too",
        f"  line 3, name: Machine {site}-a is that of line 1, too",
        f"  line 3, ssh-private-key: Secret ssh-{site} gets another key on line 2",
    ]
    file.write_text(f"- {{site: {site}, ssh-username: u, agent-url: {AGENT_URL}, host: a}}")
    ran = await up_cli("register", "-f", str(file))
    assert f"line 1, ssh-private-key: Secret unbounded-kube/ssh-{site} with an SSH key does not exist" in ran.err
    assert await stored(up_api, site) == ([], [])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hosts.txt", "", "hosts.txt is neither .csv nor .yaml"),
        ("hosts.csv", "", "line 1: the file is empty"),
        ("hosts.csv", "site,site,\n", "line 1, site: the field is named twice"),
        ("hosts.csv", 'site\n"a', "line 2: not CSV"),
        ("hosts.csv", "site\na,b\n", "line 2: 2 cells in a file of 1 columns"),
        ("hosts.csv", "site\n", "has no hosts"),
        ("hosts.csv", "site;host\na;b\n", "line 1: a semicolon separates the names of the fields: write commas"),
        ("hosts.csv", "site\thost\na\tb\n", "line 1: a tab separates the names of the fields"),
        ("hosts.yaml", "a: b", "line 1: the file has to be a list of hosts"),
        ("hosts.yaml", "- a: [\n- b", "not YAML"),
        (
            "hosts.yaml",
            "- a: b\n---\n- a: b",
            "line 2: not YAML: expected a single document in the stream but found an",
        ),
        ("hosts.yaml", "- site: s\n- text", "line 2: a host has to be a mapping"),
        ("hosts.yaml", "- site: a\n  site: b", "line 2, site: the field is named twice"),
        ("hosts.yaml", "- site: [[a]]", "line 1, site: nested too deeply"),
        ("hosts.yaml", "- site: [a, b]", "line 1, site: it has 2 values, and takes one"),
        ("hosts.yaml", "- force: true", "line 1, force: no such field"),
    ],
)
async def test_files_of_another_form_are_refused(up_cli: Cli, tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    ran = await up_cli("register", "-f", str(tmp_path / name))
    assert ran.status in (1, 2)
    assert says in ran.err, ran.err


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_reported_with_a_line(text: str) -> None:
    for records, faults in (parse_csv(text, {"a": True}), parse_yaml(text, {"a": True})):
        lines = [*(one.line for one in records), *(one.line for one in faults)]
        assert all(1 <= line <= len(text.splitlines()) + 2 for line in lines), (records, faults)
