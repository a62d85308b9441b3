"""Addresses of an API server, as people write them."""

from __future__ import annotations

import pytest

from unbounded.kube.settings import endpoint_url


@pytest.mark.parametrize("text", ["10.0.0.1:6443", "https://10.0.0.1:6443", "https://10.0.0.1:6443/", " 10.0.0.1:6443"])
def test_an_address_may_be_given_with_and_without_https(text: str) -> None:
    assert endpoint_url(text) == "https://10.0.0.1:6443"


@pytest.mark.parametrize("host", ["api.example.com", "api_1.example.com.:443", "[2001:db8::1]", "[::1]:65535", "a"])
def test_endpoint_host_is_a_name_or_ip_address_with_optional_port(host: str) -> None:
    assert endpoint_url(host) == f"https://{host}"


WRONG = (
    *("", "http://10.0.0.1", "https://u@h", "https://h/path", "https://h?a", "https://h#a", "h h", "://", "https://"),
    *("-h", "h:", "h:0", "h:65536", "h:port", "2001:db8::1", "[::1", "h\n.example.com"),
)


@pytest.mark.parametrize("text", WRONG)
def test_invalid_api_server_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address of an API server, such as https://"):
        endpoint_url(text)
