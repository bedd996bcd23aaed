"""The schema of the database, as the steps that lead to it. A step that has been released is never changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    inspect,
    select,
    text,
)

from pytest_piecewise.errors import HistoryError

Migration = Callable[[Connection], None]

LOCK = 5_021_977
"""PostgreSQL's advisory lock under which one process at a time migrates."""

VERSION = Table("piecewise_schema", MetaData(), Column("version", Integer, nullable=False))

TABLES = MetaData()
RUNS = Table(
    "piecewise_runs",
    TABLES,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("started", Text, nullable=False),
    Column("commit", Text, nullable=False),
    Column("committed", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("dirty", Boolean, nullable=False),
    Column("url", Text, nullable=False),
)
SERIES = Table(
    "piecewise_series",
    TABLES,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("case", Text, nullable=False),
    Column("variant", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("environment", Text, nullable=False),
)
POINTS = Table(
    "piecewise_points",
    TABLES,
    Column("series", BigInteger, ForeignKey(SERIES.c.number), primary_key=True, autoincrement=False),
    Column("run", BigInteger, ForeignKey(RUNS.c.number), primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
    sqlite_with_rowid=False,
)


def _create(connection: Connection) -> None:
    TABLES.create_all(connection)


def _only_append(connection: Connection) -> None:
    """What was measured is neither changed nor removed, by whatever program."""
    refusal = "the history is append-only"
    if connection.dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            for table in TABLES.tables:
                trigger = f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}"
                connection.execute(text(f"{trigger} BEGIN SELECT RAISE(ABORT, '{refusal}'); END"))
        return
    connection.execute(
        text(
            "CREATE OR REPLACE FUNCTION piecewise_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{refusal}'; END $$"
        )
    )
    for table in TABLES.tables:
        trigger = f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}"
        connection.execute(text(f"{trigger} FOR EACH STATEMENT EXECUTE FUNCTION piecewise_refuse()"))


MIGRATIONS: tuple[Migration, ...] = (_create, _only_append)
"""Step n leads from version n to version n + 1."""


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Brings a database to the newest version, within the transaction that is under way and that excludes others."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    version = version_of(connection)
    if version > len(migrations):
        raise HistoryError(
            f"expected a history of schema {len(migrations)} or older, found schema {version}; update pytest-piecewise"
        )
    if version == len(migrations):
        return
    for migration in migrations[version:]:
        migration(connection)
    VERSION.create(connection, checkfirst=True)
    connection.execute(VERSION.delete())
    connection.execute(VERSION.insert().values(version=len(migrations)))


def version_of(connection: Connection) -> int:
    """How many of the steps a database has taken; 0 for one that knows nothing of us."""
    if not inspect(connection).has_table(VERSION.name):
        return 0
    return int(connection.execute(select(VERSION.c.version)).scalar_one())
