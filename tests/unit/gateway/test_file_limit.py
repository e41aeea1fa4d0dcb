"""Connections stop short of the open files that the process may have, and leave room for those who hear 503."""

from __future__ import annotations

import pytest

from gateway.connection_limits import ConnectionLimits
from gateway.file_limit import OWN_FILES, connections_within
from store.policy_rules import Policy


@pytest.mark.parametrize("files", [400, 1_024, 1_301, 4_096, 20_000, 65_536, 1_048_576])
def test_connections_refusals_and_own_files_fit_together(files: int) -> None:
    room = connections_within(files, 1_000_000)
    limits = ConnectionLimits(Policy, lambda: 0.0, connections_max=room, loopback_exempt=True)
    limits.connections = files - OWN_FILES + 1
    assert limits.overrun, "what is beyond the files must not even be read"
    limits.connections = room
    assert not limits.full
    assert room >= (files - OWN_FILES) * 0.5, "most of the files are for connections"


def test_the_setting_holds_where_files_are_enough() -> None:
    assert connections_within(20_000, 5_000) == 5_000
    assert connections_within(None, 50_000) == 50_000


def test_even_a_tiny_limit_leaves_one_connection() -> None:
    assert connections_within(64, 50_000) == 1
