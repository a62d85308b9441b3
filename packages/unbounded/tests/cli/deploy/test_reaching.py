"""Hosts that reach the API server at the address that they get."""

from __future__ import annotations

import pytest

from unbounded.cli.deploy.host_addresses import is_local, is_on_server_host, is_own_address

LOOPBACK = "https://127.0.0.1:6443"
ELSEWHERE = "https://192.0.2.1:6443"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:6443", "[::1]:6443", "localhost", "https://[::]:6443"])
def test_an_endpoint_that_leads_every_machine_to_itself(endpoint: str) -> None:
    assert is_local(endpoint)


@pytest.mark.parametrize("endpoint", ["10.0.0.1:6443", "[2001:db8::1]:6443", "localhost.example.com", "", "api"])
def test_an_endpoint_that_may_be_reached_from_elsewhere(endpoint: str) -> None:
    assert not is_local(endpoint)


@pytest.mark.parametrize(
    ("host", "server", "beside"),
    [
        ("127.0.0.1", ELSEWHERE, True),
        ("::1", ELSEWHERE, True),
        ("localhost", LOOPBACK, True),
        ("192.0.2.10", LOOPBACK, False),  # no machine has it
        ("2001:db8::10", LOOPBACK, False),
        ("web-01.example.com", LOOPBACK, False),
    ],
)
def test_a_host_on_the_machine_of_the_api_server(host: str, server: str, *, beside: bool) -> None:
    assert is_on_server_host(host, server) is beside


def test_an_address_of_this_machine_counts_only_where_the_server_is_here() -> None:
    assert is_on_server_host("192.0.2.10", LOOPBACK, is_own=lambda host: host == "192.0.2.10")
    assert not is_on_server_host("192.0.2.10", ELSEWHERE, is_own=lambda host: host == "192.0.2.10")


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("192.0.2.10", False), ("web-01.example.com", False)])
def test_an_address_of_this_machine(host: str, *, own: bool) -> None:
    assert is_own_address(host) is own
