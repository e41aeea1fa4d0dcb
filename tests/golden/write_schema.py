"""`make golden`: write the golden schema again from the migrations as they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from migrations import runner
from tests.support.blocking import BlockingRunner
from tests.support.catalog import schema_text
from tests.support.services import Services

GOLDEN: Final = Path(__file__).with_name("schema.txt")
HEAD: Final = "-- The schema after all migrations, as tests/support/catalog.py tells it; written by `make golden`.\n"


async def current_schema(empty_database: str) -> str:
    await runner.apply(empty_database)
    return HEAD + await schema_text(empty_database)


def main() -> None:
    blocking = BlockingRunner()
    services = Services(blocking, os.environ)
    try:
        GOLDEN.write_text(blocking.run(current_schema(services.create())))
    finally:
        services.close()
        blocking.close()


if __name__ == "__main__":
    main()
