"""Why a warm build missed: the first part of a key that differs from the cold build's."""

from __future__ import annotations

from pathlib import Path

from pytest_piecewise.engines.cache_keys import Entry, changed_parts

FIRST: Entry = ("compiled_fx_graph_hash", "k1", ["[aa] gm: graph()", "[bb] inductor_config[x]: 1", "[cc] inputs: 2"])
SECOND: Entry = ("compiled_fx_graph_hash", "k2", ["[dd] gm: other()", "[bb] inductor_config[x]: 1", "[cc] inputs: 2"])
OUTER: Entry = ("autograd_cache_key", "k3", ["[ee] aot_config: z"])


def warm(tmp_path: Path, *entries: Entry) -> tuple[str, ...]:
    """What is said of a warm build that asked for these keys after a cold one that asked for three."""
    assert changed_parts([OUTER, FIRST, SECOND], tmp_path, warm=False) == ()
    return changed_parts(list(entries), tmp_path, warm=True)


def test_same_keys_say_nothing(tmp_path: Path) -> None:
    assert warm(tmp_path, OUTER, FIRST, SECOND) == ()
    assert warm(tmp_path, OUTER) == ()  # whose hit leaves the inner ones alone


def test_part_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    changed = ("compiled_fx_graph_hash", "k9", ["[dd] gm: other()", "[ff] inductor_config[x]: 7", "[gg] inputs: 3"])
    assert warm(tmp_path, OUTER, FIRST, changed) == ("cache miss compiled_fx_graph_hash: inductor_config[x]: 7 was 1",)


def test_key_beyond_those_of_the_cold_build_is_said_so(tmp_path: Path) -> None:
    third = ("autograd_cache_key", "k9", ["[hh] aot_config: y"])
    assert warm(tmp_path, OUTER, third) == ("cache miss autograd_cache_key: a key that the cold build did not ask for",)


def test_long_part_is_cut(tmp_path: Path) -> None:
    changed = ("autograd_cache_key", "k9", ["[hh] graph: " + "x" * 1000])
    (line,) = warm(tmp_path, changed)
    assert len(line) < 400
