"""A database's schema as text, from the catalog: the same on every PostgreSQL from 15 on, in a stable order."""

from __future__ import annotations

from typing import Final

import asyncpg

_OURS: Final = (
    "n.nspname = 'public' AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.objid = {0}.oid AND x.deptype = 'e')"
)

_QUERIES: Final = (
    # Tables, views, sequences with their columns.
    f"""
    SELECT c.relname, CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
                           WHEN 'm' THEN 'materialized view' ELSE 'sequence' END
           || ' ' || c.relname || coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', '')
           || coalesce(E'\\n' || (
               SELECT string_agg('    ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                      || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
                      || CASE a.attidentity WHEN 'a' THEN ' ALWAYS AS IDENTITY' WHEN 'd' THEN ' BY DEFAULT AS IDENTITY'
                                            ELSE '' END
                      || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''), E'\\n' ORDER BY a.attnum)
                 FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '')
           || coalesce(E'\\n    AS ' || CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END, '')
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S') AND {_OURS.format("c")} ORDER BY 1
    """,
    # Constraints; NOT NULL ones are told with the columns (they became constraints only in PostgreSQL 18).
    f"""
    SELECT 0, 'constraint ' || r.relname || '.' || c.conname || ' ' || pg_get_constraintdef(c.oid)
      FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
     WHERE c.contype <> 'n' AND {_OURS.format("r")} ORDER BY r.relname, c.conname
    """,
    f"""
    SELECT 0, pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OURS.format("c")} ORDER BY c.relname
    """,
    # Functions by signature and properties; their bodies stand in the migrations, a digest shows a difference.
    f"""
    SELECT 0, 'function ' || p.proname || '(' || pg_get_function_arguments(p.oid) || ')'
           || coalesce(E'\\n    RETURNS ' || pg_get_function_result(p.oid), '')
           || E'\\n    LANGUAGE ' || l.lanname || ' volatile=' || p.provolatile::text
           || ' parallel=' || p.proparallel::text || ' strict=' || p.proisstrict || ' security_definer=' || p.prosecdef
           || coalesce(' SET ' || array_to_string(p.proconfig, ', '), '') || E'\\n    body ' || md5(p.prosrc)
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
     WHERE {_OURS.format("p")} ORDER BY p.proname, pg_get_function_identity_arguments(p.oid)
    """,
    f"""
    SELECT 0, pg_get_triggerdef(t.oid)
      FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE NOT t.tgisinternal AND {_OURS.format("c")} ORDER BY c.relname, t.tgname
    """,
    # Types of their own (not the row types of tables).
    f"""
    SELECT 0, 'type ' || t.typname || coalesce(' ENUM (' || (
               SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                 FROM pg_enum e WHERE e.enumtypid = t.oid) || ')', '')
      FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typtype IN ('e', 'd', 'c') AND coalesce(c.relkind, 'c') = 'c' AND {_OURS.format("t")} ORDER BY t.typname
    """,
    f"""
    SELECT 0, 'comment ' || pg_describe_object(d.classoid, d.objoid, d.objsubid) || ' ' || quote_literal(d.description)
      FROM pg_description d JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OURS.format("c")} ORDER BY 2
    """,
    "SELECT 0, 'extension ' || extname FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY extname",
)


async def schema_text(dsn: str, *, without_records: bool = False) -> str:
    """The schema of one database. `without_records` leaves the runner's own table out."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "public"})
    try:
        items = [row[1] for query in _QUERIES for row in await connection.fetch(query)]
    finally:
        await connection.close()
    if without_records:
        items = [item for item in items if "schema_migrations" not in item.partition("\n")[0]]
    return "\n".join(items) + "\n"
