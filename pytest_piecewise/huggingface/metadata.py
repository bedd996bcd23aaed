"""What the attention op learns of the call under way, as in a serving engine: which rows are real, and whose they are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from pytest_piecewise.records import Call


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences that are packed into the real rows of a call, by their lengths. Rows beyond them are padding."""

    lengths: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows are real."""
        return sum(self.lengths)


_BATCH: ContextVar[Batch] = ContextVar("pytest_piecewise_batch")


def current_batch() -> Batch:
    """The metadata of the call under way."""
    try:
        return _BATCH.get()
    except LookupError:
        raise RuntimeError("expected batch metadata, found none; call the model within its Model.context") from None


@contextmanager
def _batch(*lengths: int) -> Iterator[None]:
    token = _BATCH.set(Batch(lengths))
    try:
        yield
    finally:
        _BATCH.reset(token)


@contextmanager
def packed_sequences(call: Call) -> Iterator[None]:
    """`Model.context` for two sequences, cut elsewhere in every call of one size; either may be empty."""
    cut = random.Random(call.seed).randint(0, call.size)
    with _batch(cut, call.size - cut):
        yield


@contextmanager
def one_sequence(call: Call) -> Iterator[None]:
    """`Model.context` for a single sequence, or for a batch whose items the model keeps apart itself."""
    with _batch(call.size):
        yield
