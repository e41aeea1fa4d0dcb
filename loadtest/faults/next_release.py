"""A stand-in for the next release, for as long as there is none: this tree with one more migration and new functions.

The migration adds a column, an index and second versions of the hot functions beside the first ones; the code of this
"release" calls those. So the tree it is made from is the previous release, on the next one's schema.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from loadtest.faults.world import ROOT

PACKAGES: Final = ("gateway", "mailbox_client", "mailboxd", "migrations", "protocol", "runtime", "store", "worker")
FUNCTIONS: Final = ("submit_batch", "submit_plain", "ack_batch")
_CALL: Final = re.compile(rf"\b({'|'.join(FUNCTIONS)})_v1\(")

_MIGRATION: Final = """-- version: {version}
-- predecessor: {predecessor}
-- summary: what a next release may bring
-- compatibility: The previous release calls the first versions, which stay.

-- migrate: apply
ALTER TABLE envelopes ADD COLUMN of_the_next_release smallint;
CREATE INDEX mailboxes_of_the_next_release ON mailboxes (stored_entries) WHERE stored_entries < 0;
DO $next$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT pg_get_functiondef(oid) AS source FROM pg_proc WHERE proname = ANY('{{{names}}}') LOOP
        EXECUTE regexp_replace(old.source, '\\m({alternatives})_v1\\M', '\\1_v2', 'g');
    END LOOP;
END
$next$;

-- migrate: rollback
DO $back$
DECLARE
    new record;
BEGIN
    FOR new IN SELECT oid::regprocedure AS name FROM pg_proc WHERE proname ~ '^({alternatives})_v2$' LOOP
        EXECUTE format('DROP FUNCTION %s', new.name);
    END LOOP;
END
$back$;
DROP INDEX mailboxes_of_the_next_release;
ALTER TABLE envelopes DROP COLUMN of_the_next_release;
"""


def make_next_release(directory: Path) -> Path:
    """Write it there; the directory is its root, as a checkout would be."""
    directory.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    newest = max(path.name.partition("_")[0] for path in (directory / "migrations").glob("[0-9]*.sql"))
    version = f"{int(newest) + 1:04d}"
    names = ",".join(f"{name}_v1" for name in FUNCTIONS)
    text = _MIGRATION.format(version=version, predecessor=newest, names=names, alternatives="|".join(FUNCTIONS))
    (directory / "migrations" / f"{version}_next_release.sql").write_text(text)
    for path in (directory / "store" / "sql").glob("*.sql"):
        path.write_text(_CALL.sub(r"\1_v2(", path.read_text()))
    return directory
