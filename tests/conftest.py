"""Servers that several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a PostgreSQL server of this session's own."""
    with postgresql() as address:
        yield address
