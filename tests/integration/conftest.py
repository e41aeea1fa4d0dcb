"""Fixtures for tests of one gateway on real services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import GatewayLab, LocalGateway


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    """Where gateways are started, with every limit off."""
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


@pytest.fixture
async def gateway(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    """One gateway inside the test's process."""
    async with lab.gateway() as running:
        yield running
