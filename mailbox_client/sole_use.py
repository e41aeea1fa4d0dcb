"""One client at a time on one store object: two engines would each believe that they know what the store holds."""

from __future__ import annotations

import asyncio
from typing import Final

from mailbox_client.errors import ClientError
from mailbox_client.local_store import LocalStore

# By identity, since a store need not be hashable. The store is kept with it, so that its id is not given to another.
_in_use: Final[dict[int, tuple[LocalStore, object, asyncio.AbstractEventLoop]]] = {}


def take(store: LocalStore, user: object) -> None:
    """Claim a store for its one user in this process. Raises ClientError while another one has it.

    The claim of a user whose event loop was closed around it is void: nothing of it runs any more.
    """
    claim = _in_use.get(id(store))
    if claim is not None and not claim[2].is_closed():
        raise ClientError("another client is using this store object: close it first, or share the one client")
    _in_use[id(store)] = store, user, asyncio.get_running_loop()


def leave(store: LocalStore, user: object) -> None:
    """Give the claim back. Harmless for who has none, and to call again."""
    claim = _in_use.get(id(store))
    if claim is not None and claim[1] is user:
        del _in_use[id(store)]
