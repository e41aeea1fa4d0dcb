"""Migration files: one format, one chain, every break told with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrations.files import MigrationFileError, parse, read_all

GOOD = """\
-- version: 0001
-- predecessor: none
-- summary: a first table
-- compatibility: The first schema;
--   there is no previous release.

-- migrate: apply
CREATE TABLE t (a text DEFAULT ';');
CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    -- migrate: rollback (only a comment, and not at the line's start)
    RETURN '$q$ -- statement';
END
$$;

-- migrate: rollback
DROP FUNCTION f();
DROP TABLE t;
"""


def test_a_file_is_read_without_being_understood() -> None:
    migration = parse("0001_first.sql", GOOD.encode())
    assert (migration.version, migration.predecessor, migration.name) == ("0001", None, "0001_first")
    assert migration.compatibility == "The first schema; there is no previous release."
    assert migration.apply_sql.startswith("CREATE TABLE t (a text DEFAULT ';');\nCREATE FUNCTION")
    assert migration.apply_sql.rstrip().endswith("$$;")
    assert migration.rollback_sql == "DROP FUNCTION f();\nDROP TABLE t;"
    assert migration.in_transaction
    assert migration.statements(migration.apply_sql) == [migration.apply_sql]


def test_any_change_of_the_file_changes_its_hash() -> None:
    before = parse("0001_first.sql", GOOD.encode()).content_hash
    for changed in (GOOD.replace("text DEFAULT", "text  DEFAULT"), GOOD + "\n", GOOD.replace("a first", "the first")):
        assert parse("0001_first.sql", changed.encode()).content_hash != before


def test_outside_of_a_transaction_each_marked_statement_stands_alone() -> None:
    text = GOOD.replace("-- summary", "-- transaction: none\n-- summary").replace(
        "CREATE TABLE", "-- statement\nDROP INDEX IF EXISTS i;\n-- statement\nCREATE TABLE", 1
    )
    migration = parse("0001_first.sql", text.encode())
    first, second = migration.statements(migration.apply_sql)
    assert not migration.in_transaction
    assert first == "DROP INDEX IF EXISTS i;"
    assert second.startswith("CREATE TABLE t")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("-- version: 0001\n", ""), "lacks version"),
        (("-- compatibility: The first schema;\n--   there is no previous release.\n", ""), "lacks compatibility"),
        (("-- summary: a first table", "-- summary: a\n-- summary: b"), "twice"),
        (("-- summary", "-- author: x\n-- summary"), "unknown"),
        (("-- version: 0001", "-- version: 0002"), "how its name begins"),
        (("-- predecessor: none", "-- predecessor: none\nSELECT 1;"), "does not belong into the head"),
        (("-- summary", "-- transaction: off\n-- summary"), "may only be none"),
        (("-- migrate: apply\n", ""), "exactly one line"),
        (("-- migrate: rollback\nDROP", "-- migrate: rollback\n-- migrate: rollback\nDROP"), "exactly one line"),
        (("DROP FUNCTION f();\nDROP TABLE t;\n", ""), "rollback is empty"),
    ],
)
def test_a_broken_format_is_refused(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(MigrationFileError, match=rf"0001_first\.sql: .*{complaint}"):
        parse("0001_first.sql", GOOD.replace(*change).encode())


def write(directory: Path, number: int, predecessor: str) -> None:
    text = GOOD.replace("version: 0001", f"version: {number:04d}").replace(
        "predecessor: none", f"predecessor: {predecessor}"
    )
    (directory / f"{number:04d}_x.sql").write_text(text)


def test_files_form_one_chain(tmp_path: Path) -> None:
    write(tmp_path, 1, "none")
    write(tmp_path, 2, "0001")
    assert [migration.version for migration in read_all(tmp_path)] == ["0001", "0002"]


@pytest.mark.parametrize(
    ("numbers", "predecessors"), [((1, 3), ("none", "0001")), ((1, 2), ("none", "none")), ((2,), ("none",))]
)
def test_gaps_and_forks_are_refused(tmp_path: Path, numbers: tuple[int, ...], predecessors: tuple[str, ...]) -> None:
    for number, predecessor in zip(numbers, predecessors, strict=True):
        write(tmp_path, number, predecessor)
    with pytest.raises(MigrationFileError):
        read_all(tmp_path)


def test_two_files_of_one_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, "none")
    (tmp_path / "0001_y.sql").write_text((tmp_path / "0001_x.sql").read_text())
    with pytest.raises(MigrationFileError, match="expected version 0002"):
        read_all(tmp_path)


def test_the_projects_own_migrations_are_one_chain_and_each_says_its_compatibility() -> None:
    migrations = read_all()
    assert migrations
    assert all(len(migration.compatibility) > 20 for migration in migrations)
