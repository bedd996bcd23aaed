"""The database: appends what a run has measured, and reads series back. SQLite in a file, or PostgreSQL for a team."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history.migrations import MIGRATIONS, POINTS, RUNS, SERIES, Migration, migrate
from pytest_piecewise.history.series import Point, Sample, Series, Trace, in_order, number_of, text
from pytest_piecewise.records import Run

LOCK_SECONDS = 60.0
"""How long a writer waits for the others."""
CONNECT_SECONDS = 15
BATCH = 500
"""Series asked for in one query; PostgreSQL and SQLite limit the parameters of one."""


class History:
    """An open database. Any number of processes may append at once; nothing in it is ever changed or removed."""

    def __init__(self, place: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self.url = _url(place)
        with self._reasons():
            self._engine = _engine(self.url)
            with self._writing() as connection:
                migrate(connection, migrations)

    @property
    def shown(self) -> str:
        """The address as it may be printed."""
        return shown(self.url)

    def append(self, run: Run, samples: Iterable[Sample]) -> int:
        """Stores the measurements of a run, all or none. Returns how many were not there yet: a run known by its id may
        be given again."""
        rows = {sample.series.number: sample for sample in samples}
        # In one order everywhere, so that two writers who meet new series do not wait for each other in a circle.
        ordered = [rows[number] for number in sorted(rows)]
        number = number_of(run.id)
        with self._writing() as connection:
            self._insert(connection, RUNS, [_run_row(run, number)])
            self._insert(connection, SERIES, [_series_row(sample.series) for sample in ordered])
            points = [{"series": item.series.number, "run": number, "value": item.value} for item in ordered]
            return self._insert(connection, POINTS, points)

    def _insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
        """How many of the rows were not there yet."""
        if not rows:
            return 0
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        key = next(iter(table.primary_key))
        return len(connection.execute(insert(table).on_conflict_do_nothing().returning(key), list(rows)).all())

    def traces(self, wanted: Callable[[Series], bool] = lambda series: True, last: int = 0) -> Iterator[Trace]:
        """The series that are wanted, each with its points, or with its `last` ones."""
        with self._reading() as connection:
            known = {row.number: _series(row) for row in connection.execute(select(SERIES))}
            chosen = sorted((number for number, series in known.items() if wanted(series)), key=lambda n: known[n].name)
            runs = {row.number: _run(row) for row in connection.execute(select(RUNS))} if chosen else {}
            for start in range(0, len(chosen), BATCH):
                points: dict[int, list[Point]] = defaultdict(list)
                batch = chosen[start : start + BATCH]
                for row in connection.execute(select(POINTS).where(POINTS.c.series.in_(batch))):
                    points[row.series].append(Point(runs[row.run], row.value))
                for number in batch:
                    yield Trace(known[number], in_order(points[number])[-last:])

    def runs(self) -> list[Run]:
        """Every run that has been appended, in no order."""
        with self._reading() as connection:
            return [_run(row) for row in connection.execute(select(RUNS))]

    def close(self) -> None:
        """Gives connections back."""
        self._engine.dispose()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that is seen whole or not at all, and that no other writer overlaps in SQLite."""
        with self._reasons(), self._engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._reasons(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise HistoryError(f"history {shown(self.url)} cannot be used: {said}") from error


def _url(place: str) -> URL:
    """`postgresql://...`, `sqlite:///...` or the path of an SQLite file as an address."""
    if "://" not in place:
        return URL.create("sqlite", database=place)
    try:
        url = make_url(place)
    except SQLAlchemyError as error:
        raise HistoryError(f"expected a path, sqlite:///PATH or postgresql://HOST/NAME, found {place!r}") from error
    kind = {"postgres": "postgresql"}.get(url.get_backend_name(), url.get_backend_name())
    if kind not in ("sqlite", "postgresql"):
        raise HistoryError(f"expected a history in sqlite or postgresql, found {kind}")
    return url.set(drivername="sqlite" if kind == "sqlite" else "postgresql+psycopg")


def shown(url: URL) -> str:
    """An address as it may be printed: without its password, and a file as its path."""
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    return url.render_as_string(hide_password=True)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        try:
            return create_engine(url, connect_args={"connect_timeout": CONNECT_SECONDS})
        except ImportError as error:
            raise HistoryError("PostgreSQL needs psycopg: pip install 'psycopg[binary]'") from error
    if url.database:
        _make_folder(Path(url.database).parent)
    engine = create_engine(url, connect_args={"timeout": LOCK_SECONDS})

    @event.listens_for(engine, "connect")
    def transactions_are_begun_by_us(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


def _make_folder(folder: Path) -> None:
    """A folder of ours is made so that git does not see it, as pytest does with its cache."""
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if folder.name == ".piecewise":
        (folder / ".gitignore").write_text("*\n")


def _run_row(run: Run, number: int) -> dict[str, Any]:
    found = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    return {name: text(value) if isinstance(value, str) else value for name, value in found.items()} | {
        "number": number
    }


def _run(row: Any) -> Run:
    return Run(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Run)})


def _series_row(series: Series) -> dict[str, Any]:
    return {
        "number": series.number,
        "case": series.case,
        "variant": series.variant,
        "metric": series.metric,
        "kind": series.kind,
        "environment": json.dumps(dict(series.environment)),
    }


def _series(row: Any) -> Series:
    environment = tuple(sorted(json.loads(row.environment).items()))
    return Series(case=row.case, variant=row.variant, metric=row.metric, kind=row.kind, environment=environment)
