"""The steps that change a host, on one made up in a folder: done, done again, and taken back to the letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.made_up_host import FSTAB, MadeUpHost, made_up_host, with_apt, with_swap
from unbounded.agent.interfaces import UnitFacts
from unbounded.agent.steps import kernel, packages, packet_filter, survey, swap
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.start_steps import HOST_STEPS
from unbounded.agent.steps.step import add_all, faults, remove_all
from unbounded.api.failures import Rejected, Transient

ALONE = {step.name: replace(step, after=()) for step in HOST_STEPS}


@pytest.fixture
def made(tmp_path: Path) -> MadeUpHost:
    return made_up_host(tmp_path)


def test_the_steps_of_a_host_can_be_walked() -> None:
    assert faults(HOST_STEPS) == []


@pytest.mark.slow
async def test_start_and_reset_leave_a_host_as_it_was(made: MadeUpHost) -> None:
    with_swap(made)
    made.write("/etc/docker/daemon.json", '{"debug": true,\n "iptables":true}', 0o640)
    made.write("/etc/sysctl.d/99-kubernetes.conf", "# ours\nvm.panic_on_oom = 1\n", 0o600)
    made.units.units["docker.service"] = UnitFacts("docker.service", load="loaded", active="active", enabled="enabled")
    before, areas = made.tree(), swap.in_use(made.paths)
    changed = await add_all(HOST_STEPS, made.host, lambda _words: None)
    assert set(changed) == {step.name for step in HOST_STEPS} - {"packages", "configured-sysctl"}
    assert made.tree() != before
    assert await add_all(HOST_STEPS, made.host, lambda _words: None) == ()

    assert await remove_all(HOST_STEPS, made.host) == []
    found = survey.BEFORE.read(made.paths)
    assert found is not None
    survey.BEFORE.forget(made.paths)
    for folder in reversed(found.folders):
        if Path(folder).is_dir():
            Path(folder).rmdir()
    assert swap.in_use(made.paths) == areas
    after = made.tree()
    del after["proc/swaps"], before["proc/swaps"]  # the simulated kernel reports partition or file at random
    assert after == before
    assert made.units.units["docker.service"].active == "active"


async def test_what_a_second_start_finds_does_not_replace_what_the_first_found(made: MadeUpHost) -> None:
    await add_all((ALONE["sysctl"],), made.host, lambda _words: None)
    made.write("/proc/sys/kernel/panic", "60\n")  # a user's own value
    await add_all((ALONE["sysctl"],), made.host, lambda _words: None)
    assert kernel.read(made.paths, "kernel.panic") == "10"
    await remove_all((ALONE["sysctl"],), made.host)
    assert kernel.read(made.paths, "kernel.panic") == "0"


# sysctl


async def test_missing_kernel_parameters_are_skipped_and_reported(made: MadeUpHost) -> None:
    told: list[str] = []
    await add_all((ALONE["sysctl"],), made.host, told.append)
    assert "bridge-nf-call-iptables" in told[0]
    assert "overcommit" not in told[0]
    assert kernel.read(made.paths, "vm.overcommit_memory") == "1"
    assert kernel.read(made.paths, "net.bridge.bridge-nf-call-iptables") is None
    assert await ALONE["sysctl"].present(made.host)


async def test_reset_unloads_the_modules_of_start_alone(made: MadeUpHost) -> None:
    made.paths.at("/sys/module/overlay").mkdir(parents=True)
    await kernel.MODULES_STEP.add(made.host, print)
    made.paths.at("/sys/module/br_netfilter").mkdir()
    await kernel.MODULES_STEP.remove(made.host)
    kmod = [one for one in made.commands.ran if one[0] in ("modprobe", "rmmod")]
    assert kmod == [("modprobe", "br_netfilter"), ("rmmod", "br_netfilter")], (
        "modprobe -r also takes the host's bridges"
    )


@pytest.mark.parametrize("key", kernel.KUBELET)
async def test_unsettable_kernel_parameter_of_kubelet_fails_the_step(made: MadeUpHost, key: str) -> None:
    kernel.parameter(made.paths, key).unlink()
    with pytest.raises(Rejected, match=f"sysctl: this kernel has no {key}, but kubelet needs {kernel.KUBELET[key]}"):
        await add_all((ALONE["sysctl"],), made.host, lambda _words: None)
    assert not await ALONE["sysctl"].present(made.host)
    await remove_all((ALONE["sysctl"],), made.host)
    assert kernel.read(made.paths, "net.ipv4.ip_forward") == "0"


def test_forwarding_is_restored_before_what_the_kernel_changes_with_it() -> None:
    keys = [
        "net.ipv4.conf.all.accept_redirects",
        "net.ipv4.conf.eth0.forwarding",
        "kernel.panic",
        "net.ipv4.ip_forward",
    ]
    order = kernel.restored_in_order(dict.fromkeys(keys, "0"))
    assert order[0] == "net.ipv4.ip_forward"
    assert set(order[2:]) == set(keys[:2])


# swap


async def test_only_lines_of_type_swap_are_put_aside(made: MadeUpHost) -> None:
    with_swap(made)
    await add_all((swap.SWAP,), made.host, lambda _words: None)
    lines = made.paths.at("/etc/fstab").read_bytes().splitlines()
    assert [line.startswith(swap.MARKER) for line in lines] == [False, True, True, False, False, False]
    assert made.commands.lines("swapoff") == ["swapoff -- /dev/sda2", "swapoff -- /swap file"]


async def test_edits_of_fstab_since_then_survive_the_way_back(made: MadeUpHost) -> None:
    with_swap(made)
    await add_all((swap.SWAP,), made.host, lambda _words: None)
    fstab = made.paths.at("/etc/fstab")
    fstab.write_bytes(fstab.read_bytes() + b"\ntmpfs /tmp tmpfs size=1g 0 0\n")
    await remove_all((swap.SWAP,), made.host)
    assert fstab.read_text() == FSTAB + "\ntmpfs /tmp tmpfs size=1g 0 0\n"
    assert made.commands.lines("swapon") == ["swapon -- /dev/sda2", "swapon --priority 5 -- /swap file"]


async def test_swap_that_does_not_go_off_is_named_and_asked_for_again(made: MadeUpHost) -> None:
    with_swap(made)
    obeying = made.commands.answers["swapoff"]
    made.commands.answers["swapoff"] = lambda _argv: (1, "Cannot allocate memory")
    with pytest.raises(Transient, match="swap: swapoff: status 1: Cannot allocate memory"):
        await add_all((swap.SWAP,), made.host, lambda _words: None)
    made.commands.answers["swapoff"] = obeying
    assert await add_all((swap.SWAP,), made.host, lambda _words: None) == ("swap",)


# docker


async def test_docker_is_stopped_socket_first_and_masked(made: MadeUpHost) -> None:
    for unit in packet_filter.DOCKER_UNITS:
        made.units.units[unit] = UnitFacts(unit, load="loaded", active="active", enabled="enabled")
    await add_all((packet_filter.DOCKER,), made.host, lambda _words: None)
    assert [did for did in made.units.did if did.startswith(("stop", "mask"))] == [
        "stop docker.socket",
        "mask docker.socket",
        "stop docker.service",
        "mask docker.service",
    ]
    assert json.loads(made.paths.at(packet_filter.DOCKER_CONFIG).read_text()) == {"iptables": False}


async def test_custom_unit_is_disabled_and_not_masked(made: MadeUpHost) -> None:
    made.write("/etc/systemd/system/docker.service", "[Service]\nExecStart=/opt/docker\n")
    made.units.units["docker.service"] = UnitFacts("docker.service", active="active", enabled="enabled")
    await add_all((packet_filter.DOCKER,), made.host, lambda _words: None)
    assert await packet_filter.DOCKER.present(made.host)
    await remove_all((packet_filter.DOCKER,), made.host)
    facts = await made.units.observe("docker.service")
    assert (facts.active, facts.enabled, facts.load) == ("active", "enabled", "loaded")


async def test_docker_that_was_masked_and_down_stays_so(made: MadeUpHost) -> None:
    await made.units.mask(*packet_filter.DOCKER_UNITS)
    await add_all((packet_filter.DOCKER,), made.host, lambda _words: None)
    await remove_all((packet_filter.DOCKER,), made.host)
    assert [(await made.units.observe(unit)).load for unit in packet_filter.DOCKER_UNITS] == ["masked", "masked"]
    assert not made.paths.at("/etc/docker").exists()


async def test_an_edited_docker_configuration_loses_only_our_key(made: MadeUpHost) -> None:
    made.write(packet_filter.DOCKER_CONFIG, '{"debug": true}')
    await add_all((packet_filter.DOCKER,), made.host, lambda _words: None)
    made.write(packet_filter.DOCKER_CONFIG, '{"debug": true, "iptables": false, "mtu": 1400}')
    await remove_all((packet_filter.DOCKER,), made.host)
    assert json.loads(made.paths.at(packet_filter.DOCKER_CONFIG).read_text()) == {"debug": True, "mtu": 1400}


@pytest.mark.parametrize("text", ["[1]", "{", '"x"'], ids=["list", "cut off", "text"])
async def test_a_docker_configuration_that_is_no_object_is_refused_and_left(made: MadeUpHost, text: str) -> None:
    made.write(packet_filter.DOCKER_CONFIG, text)
    with pytest.raises(Rejected, match=r"daemon\.json is not a JSON object"):
        await add_all((packet_filter.DOCKER,), made.host, lambda _words: None)
    assert made.paths.at(packet_filter.DOCKER_CONFIG).read_text() == text


# packages


async def test_only_missing_packages_are_installed_after_one_update_and_listed(made: MadeUpHost) -> None:
    made.remove_program("nft")
    with_apt(made)
    await add_all((ALONE["packages"],), made.host, lambda _words: None)
    calls = made.commands.lines("apt-get")
    assert [call.rsplit(" ", 1)[-1] for call in calls] == ["update", "nftables"]
    assert "--no-install-recommends" in calls[1]
    assert packages.installed_by_us(made.paths) == ("libnftables", "nftables")
    assert await add_all((ALONE["packages"],), made.host, lambda _words: None) == ()


async def test_dead_package_mirror_is_reported_with_the_package(made: MadeUpHost) -> None:
    made.remove_program("machinectl")
    with_apt(made, broken="Could not resolve 'deb.debian.org'")
    with pytest.raises(Transient, match=r"systemd-container could not be installed.*deb\.debian\.org"):
        await add_all((ALONE["packages"],), made.host, lambda _words: None)


@pytest.mark.parametrize("program", ["tdnf", "dnf"])
async def test_hosts_with_rpm_install_by_their_own_means(made: MadeUpHost, program: str) -> None:
    for name in ("apt-get", "nft"):
        made.remove_program(name)
    made.program(program)
    installed = ["bash"]

    def install(argv: tuple[str, ...]) -> tuple[int, str]:
        installed.append(argv[-1])
        made.program("nft")
        return 0, ""

    made.commands.answers |= {program: install, "rpm": lambda _argv: (0, "\n".join(installed))}
    await add_all((ALONE["packages"],), made.host, lambda _words: None)
    assert [line.split()[-2:] for line in made.commands.lines(program)] == [["install", "nftables"]]
    assert packages.installed_by_us(made.paths) == ("nftables",)
    assert await ALONE["upgrade drop-ins"].present(made.host)  # they are apt's


async def test_an_installation_that_was_cut_off_is_finished_first(made: MadeUpHost) -> None:
    made.remove_program("nft")
    with_apt(made)
    installs = made.commands.answers["apt-get"]
    answers = iter([(100, "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'")])
    made.commands.answers["apt-get"] = lambda argv: next(answers, None) or installs(argv)
    await add_all((ALONE["packages"],), made.host, lambda _words: None)
    assert made.commands.lines("dpkg") == ["dpkg --configure -a"]
    assert made.host.has("nft")


async def test_a_host_without_a_known_package_manager_says_what_it_lacks(made: MadeUpHost) -> None:
    made.remove_program("machinectl")
    made.remove_program("apt-get")
    with pytest.raises(Rejected, match="install machinectl by hand: this host has none of apt-get, tdnf, dnf"):
        await add_all((ALONE["packages"],), made.host, lambda _words: None)


# what was kept


async def test_what_a_later_agent_kept_is_not_touched(made: MadeUpHost) -> None:
    path = made.write("/etc/unbounded/agent/before/sysctl.json", '{"format": 2, "found": {"other": 1}}')
    with pytest.raises(Rejected, match="has format 2"):
        await add_all((ALONE["sysctl"],), made.host, lambda _words: None)
    assert path.exists()


def test_what_was_kept_first_stays(tmp_path: Path) -> None:
    kept: OriginalState[swap.FoundSwap] = swap.BEFORE
    paths = made_up_host(tmp_path).paths
    first = swap.FoundSwap((swap.SwapArea("/dev/sda2", -2),))
    assert kept.record(paths, first) == first
    assert kept.record(paths, swap.FoundSwap(())) == first
    assert kept.path(paths).stat().st_mode & 0o777 == 0o600
