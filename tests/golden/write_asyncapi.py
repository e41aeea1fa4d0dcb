"""`python -m tests.golden.write_asyncapi`: write docs/asyncapi.json again from the code as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from gateway.asyncapi import document

ASYNCAPI_FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "asyncapi.json"


def current_asyncapi() -> str:
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    ASYNCAPI_FILE.write_text(current_asyncapi(), encoding="utf-8")


if __name__ == "__main__":
    main()
