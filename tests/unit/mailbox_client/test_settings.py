"""Settings that no server lets a client work by are refused when they are made."""

from __future__ import annotations

import pytest

from mailbox_client.settings import ClientSettings

MIB = 1024 * 1024


def test_a_window_is_at_most_what_the_server_caps_it_at() -> None:
    """A wider one would count on room that the server never gives, and wait for entries that are not pushed."""
    widest = ClientSettings(window_entries=1_024, window_bytes=8 * MIB)
    assert (widest.window_entries, widest.window_bytes) == (1_024, 8 * MIB)
    with pytest.raises(ValueError, match=r"^window_entries is at most 1024$"):
        ClientSettings(window_entries=1_025)
    with pytest.raises(ValueError, match=r"^window_bytes is at most 8388608$"):
        ClientSettings(window_bytes=8 * MIB + 1)


@pytest.mark.parametrize("name", ["window_entries", "window_bytes"])
def test_a_window_holds_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is at least 1$"):
        ClientSettings(**{name: 0})  # type: ignore[arg-type]
