"""A server for the tests of the commands themselves."""

from __future__ import annotations

from tests.cli.plugin.conftest import api, cli, kubeconfig

__all__ = ["api", "cli", "kubeconfig"]
