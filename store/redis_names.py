"""How the names of one instance in Redis begin, so that several instances can share one: `mb:{<tag>}:…`.

The braces make a cluster keep all of them in one slot. No id can be read from the tag.
"""

from __future__ import annotations

from blake3 import blake3

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import InstanceId
from store.postgres import Postgres
from store.sql_files import load_sql


def instance_tag(instance_id: InstanceId) -> str:
    """16 hex digits, the same in every process of the instance and through every change of its keys."""
    return blake3(b"mailboxd.instance-tag\x00" + instance_id).hexdigest(8)


async def read_instance_tag(postgres: Postgres) -> str:
    """The tag of the instance in this database. Raises MailboxError UNAVAILABLE."""
    row = await postgres.fetchrow(load_sql("instance")["read_instance"])
    if row is None:
        raise MailboxError(ErrorCode.UNAVAILABLE, "There is no instance in this database yet: run mailboxd init.")
    return instance_tag(InstanceId(row["instance_id"]))
