"""Records cross processes as plain JSON and come back as they were."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from pytest_piecewise import located, records
from pytest_piecewise.located import Growth, Localization, Repro
from pytest_piecewise.records import (
    CHECKS,
    BuildRecord,
    Call,
    Case,
    CaseResult,
    Change,
    Comparison,
    Costs,
    Counts,
    Expectation,
    Finding,
    Mark,
    Metric,
    Part,
    Phase,
    Ratio,
    Report,
    Run,
    Sample,
    Selection,
    Settings,
    Status,
    Trend,
    Trial,
    from_plain,
    json_schema,
    to_plain,
)

EXPECTATION = Expectation(check="graph_breaks", reason="upstream loops over experts, issue 1234")
CASE = Case(
    model="mypkg.models:TINY",
    file="/src/mypkg/models.py",
    name="tiny",
    engine="native",
    dtype="bfloat16",
    device="cuda:1",
    expected=(EXPECTATION,),
)
CHANGE = Change(metric="full.kernels", gate="exact", status=Status.NEW, stored="3", found="4")
FINDING = Finding(
    check="pieces",
    status=Status.STALE,
    summary="3 pieces",
    variant="full",
    detail="a\nb",
    action="look at it",
    changes=(CHANGE,),
)
COMPARISON = Comparison(
    check="equivalence",
    axis="budget",
    variant="piecewise",
    against="float64",
    call=3,
    phase="reverse",
    size=8,
    output="logits",
    ok=False,
    elements=512,
    wrong=2,
    error=0.5,
    budget=0.25,
    ratio=2.0,
    row_ratio=1.5,
    gain=-1e-3,
    index=(7, 1),
    found="1.5",
    expected="1",
    eager="1.01",
    reason="beyond the budget",
    shape=(8, 64),
    heat=("..9", "0.."),
)
COUNTS = Counts(
    graphs=1,
    pieces=3,
    distinct_pieces=2,
    compiles=2,
    loaded=9,
    kernels=5,
    splitting_ops=2,
    captures=15,
    replays=60,
    compiled_calls=80,
    recompiles=("guard: x",),
    graph_breaks=("print",),
    missing_ops=("a::b",),
    captured_ops=("c::d in piece 0",),
    copied_inputs=("piece 1, input x (from a::b)",),
    moved_inputs=("piece 2, input y: recorded at 0x1, now at 0x2",),
    empty_pieces=("piece 1",),
    mutated_inputs=("argument 0",),
    captured_sizes=(1, 2, 4),
    cache_hits=1,
    cache_misses=2,
)
LOCALIZATION = Localization(
    variant="piecewise",
    check="padding",
    phase="padded",
    size=5,
    cause="code",
    summary="piece 1 of 3: the compiled code is wrong",
    segment="piece 1",
    position=2,
    piece=1,
    layers=("layers.0",),
    sources=("model.py:3: return x",),
    between=("a::b", "end"),
    evidence=("input x moved",),
    output="mul",
    index=(7, 1),
    found="1.5",
    expected="1",
    eager="1.01",
    error=0.5,
    budget=0.25,
    op="relu",
    op_source="model.py:3: return x",
    kernel="cpp_fused_relu",
    members=("relu", "add"),
    kernel_source="kernel.py",
    growth=(Growth(segment="piece 0", alone=0.5, so_far=0.75),),
    repro=Repro(directory="/r", size_bytes=9, reproduced=True, output="reproduced", inputs="random"),
    compiles=4,
    seconds=12.5,
    notes=("x",),
)
BUILD = BuildRecord(
    variant="piecewise",
    outcome="ok",
    findings=(FINDING,),
    comparisons=(COMPARISON,),
    metrics=(Metric(name="kernels", kind="count", value=5.0),),
    phases=(Phase(name="compile", seconds=1.5, cpu_seconds=2.5),),
    counts=COUNTS,
    parts=(Part(name="piece 1", compiled=True, ops=7, same_as="piece 0", compile_seconds=0.5, differs="from piece 0"),),
    calls=20,
    kernels=("cpp_fused_add", "cpp_fused_add"),
    graph_kind="recorded graphs",
    notes=("the reference is float64",),
    absent={"capture": "recorded graphs are no captures"},
    environment={"torch": "2.13.0"},
    last_output="warning: x\n",
    fault="stale_input",
    effects=3,
    localizations=(LOCALIZATION,),
)
TRIAL = Trial(
    fault="stale_input",
    kind="STALE",
    outcome="caught",
    checks=("addresses",),
    expected=("addresses", "bits_graphs"),
    effects=3,
    ratio=7.5,
    reason="1 input moved",
    seconds=2.5,
)
COSTS = Costs(
    level="ratios",
    metrics=(Metric(name="full.work", kind="work", value=1e6),),
    samples=(Sample(round=1, variant="full", cache="cold", metrics=(Metric(name="x", kind="seconds", value=0.5),)),),
    ratios=(
        Ratio(
            name="a/b.x", value=0.8, low=0.7, high=0.9, spread=0.1, pairs=5, over=0.8, under=1.1, parts={"a trace": 1.0}
        ),
    ),
    absent={"ratios": "the machine was not free"},
    notes=("cache miss",),
)
RESULT = CaseResult(
    case=CASE,
    seed=7,
    platform="cpu-avx2-torch2.13",
    revision="0123456789ab",
    graph_kind="recorded graphs",
    findings=(FINDING,),
    builds=(BUILD,),
    comparisons=(COMPARISON,),
    environment={"python": "3.11.9"},
    costs=COSTS,
    seconds=12.5,
    canary=(TRIAL,),
    localizations=(LOCALIZATION,),
)
RUN = Run(
    id="piecewise/412/0123456789ab",
    started="2026-12-01T06:30:00Z",
    commit="4fa01c2",
    committed="2026-11-30T06:30:00Z",
    branch="main",
    dirty=True,
    url="https://example.org/412",
)
SELECTION = Selection(
    changed_files=3, collected=20, touched=9, chosen=5, shard="1/2", split="0123456789ab", empty_allowed=True
)
TREND = Trend(
    case="tiny-native-float32",
    device="cpu",
    variant="full",
    metric="compile",
    kind="seconds",
    began="2026-11-01T06:30:00Z",
    ended="2026-12-01T06:30:00Z",
    values=(1.5, 1.75),
    marks=(Mark(index=1, text="+17 %", change=0.17, worse=True),),
)
REPORT = Report(
    exit_code=10,
    run=RUN,
    selection=SELECTION,
    tier="full",
    complete=True,
    left_out=("-k",),
    environment={"torch": "2.13.0"},
    results=(RESULT,),
    trends=(TREND,),
)
SETTINGS = Settings(
    tier="nightly",
    device="cuda:0",
    isolation="none",
    timeout_seconds=1.5,
    memory_limit_bytes=2**30,
    gpu_memory_bytes=2**29,
    threads=3,
    seed=11,
    baselines="/b",
    update="new,fix",
    update_reason="because",
    costs="ratios",
    update_to="out",
    report="out",
    strict=True,
    canary="POOL",
    fault="stale_input",
    localize="piece",
    repro="/r",
)
CALL = Call(
    index=4, phase="padded", size=5, padded_size=8, seed=5, padding="nan", weights=1, judged=False, strided=True
)
SAMPLES = (
    FINDING, CHANGE, BUILD.metrics[0], CASE, SETTINGS, CALL, COMPARISON, COUNTS, BUILD.parts[0], BUILD.phases[0], BUILD,
    TRIAL, RESULT, RUN, SELECTION, TREND, TREND.marks[0], REPORT, COSTS, COSTS.samples[0], COSTS.ratios[0],
    LOCALIZATION, LOCALIZATION.growth[0], LOCALIZATION.repro, EXPECTATION,
)  # fmt: skip
RECORD_TYPES = list({kind: None for kind in (*vars(records).values(), *vars(located).values())
                     if isinstance(kind, type) and dataclasses.is_dataclass(kind)})  # fmt: skip


def test_every_record_type_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == set(RECORD_TYPES)


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_samples_set_every_field_to_something_else_than_its_default(record: Any) -> None:
    # Otherwise a field that is lost on the way would come back as its default and nobody would see it.
    same = [
        field.name
        for field in dataclasses.fields(record)
        if field.default is not dataclasses.MISSING and getattr(record, field.name) == field.default
    ]
    assert set(same) <= {"engine", "tier", "schema"}


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_round_trip_through_json(record: Any) -> None:
    text = json.dumps(to_plain(record))
    assert from_plain(type(record), json.loads(text)) == record


@pytest.mark.parametrize("kind", RECORD_TYPES, ids=lambda kind: kind.__name__)
def test_records_are_frozen(kind: type) -> None:
    sample = next(sample for sample in SAMPLES if type(sample) is kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(sample, dataclasses.fields(sample)[0].name, "changed")


def test_nan_becomes_null_and_comes_back() -> None:
    plain = to_plain(dataclasses.replace(COMPARISON, error=math.nan))
    assert plain["error"] is None
    back = from_plain(Comparison, json.loads(json.dumps(plain)))
    assert math.isnan(back.error)
    assert back.budget == 0.25


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_text_is_json_whatever_the_numbers_are(value: float) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    # A shape mismatch has an infinite ratio; `Infinity` is Python's own idea of JSON, and jq or a browser stops there.
    text = json.dumps(to_plain(dataclasses.replace(COMPARISON, ratio=value)))
    json.loads(text, parse_constant=refuse)


def test_status_becomes_a_plain_str() -> None:
    # xdist's serialiser knows exact types only: a StrEnum member would break the channel.
    plain = to_plain(FINDING)
    assert plain["status"] == "STALE"
    assert type(plain["status"]) is str


def test_plain_holds_nothing_but_what_the_channel_carries() -> None:
    def types_in(value: Any) -> set[type]:
        if isinstance(value, dict):
            return {dict}.union(*map(types_in, value), *map(types_in, value.values()))
        if isinstance(value, list):
            return {list}.union(*map(types_in, value))
        return {type(value)}

    assert types_in(to_plain(REPORT)) == {dict, list, str, int, float, bool}


def test_unknown_keys_are_ignored_at_every_depth() -> None:
    plain = to_plain(RESULT)
    plain["new"] = 1
    plain["case"]["new"] = {"a": 1}
    plain["builds"][0]["counts"]["new"] = []
    assert from_plain(CaseResult, plain) == RESULT


def test_missing_keys_get_their_defaults() -> None:
    back = from_plain(Finding, {"check": "pieces", "status": "PASS", "summary": "fine"})
    assert back == Finding(check="pieces", status=Status.PASS, summary="fine")


def test_missing_required_key_is_an_error() -> None:
    with pytest.raises(TypeError, match="summary"):
        from_plain(Finding, {"check": "pieces", "status": "PASS"})


def test_unknown_status_is_an_error() -> None:
    with pytest.raises(ValueError, match="MAYBE"):
        from_plain(Finding, {"check": "pieces", "status": "MAYBE", "summary": ""})


def test_case_id_names_model_engine_and_dtype() -> None:
    assert CASE.id == "tiny-native-bfloat16"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((Status.PASS, Status.SKIP, Status.STALE, Status.NEW, Status.FAIL), Status.FAIL),
        ((Status.PASS, Status.SKIP, Status.STALE, Status.NEW), Status.NEW),
        ((Status.PASS, Status.SKIP, Status.STALE), Status.STALE),
        ((Status.SKIP, Status.PASS), Status.PASS),
        ((Status.SKIP,), Status.SKIP),
        ((), Status.SKIP),
    ],
)
def test_status_of_a_case_is_the_worst_finding(found: tuple[Status, ...], expected: Status) -> None:
    findings = tuple(Finding(check="pieces", status=status, summary="") for status in found)
    assert dataclasses.replace(RESULT, findings=findings).status is expected


def test_every_check_says_what_its_pass_means() -> None:
    assert all(len(text) > 20 for text in CHECKS.values())


def violations(schema: dict[str, Any], value: Any, path: str = "report") -> list[str]:
    """What of `value` breaks `schema`, for the keywords that `json_schema` writes."""
    if "anyOf" in schema:
        alternatives = [violations(part, value, path) for part in schema["anyOf"]]
        return [] if any(not found for found in alternatives) else alternatives[0]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{path}: {value!r} is none of {schema['enum']}"]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(has_json_type(value, name) for name in names):
        return [f"{path}: {value!r} is no {' or '.join(names)}"]
    if isinstance(value, list):
        return [text for i, item in enumerate(value) for text in violations(schema["items"], item, f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    found = [f"{path}: {name} is missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        part = properties.get(name, rest)
        found += violations(part, item, f"{path}.{name}") if part else []
    return found


def has_json_type(value: Any, name: str) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "boolean": (bool,),
        "integer": (int,),
        "number": (int, float),
        "null": (type(None),),
    }
    return isinstance(value, kinds[name]) and not (isinstance(value, bool) and name in ("integer", "number"))


def test_schema_accepts_a_report() -> None:
    nan = dataclasses.replace(RESULT, comparisons=(dataclasses.replace(COMPARISON, gain=math.nan),))
    report = dataclasses.replace(REPORT, results=(RESULT, nan))
    assert violations(json_schema(Report), json.loads(json.dumps(to_plain(report)))) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("tier",), 3, "report.tier: 3 is no string"),
        (("complete",), 1, "report.complete: 1 is no boolean"),
        (("results", 0, "seed"), "7", "report.results[0].seed: '7' is no integer"),
        (
            ("results", 0, "comparisons", 0, "error"),
            "x",
            "report.results[0].comparisons[0].error: 'x' is no number or null",
        ),
        (("results", 0, "comparisons", 0, "index"), 3, "report.results[0].comparisons[0].index: 3 is no array"),
        (("results", 0, "environment", "python"), 3, "report.results[0].environment.python: 3 is no string"),
        (
            ("results", 0, "findings", 0, "status"),
            "MAYBE",
            "report.results[0].findings[0].status: 'MAYBE' is none of ['PASS', 'FAIL', 'STALE', 'NEW', 'SKIP']",
        ),
    ],
)
def test_schema_refuses_a_wrong_value(path: tuple[Any, ...], value: Any, expected: str) -> None:
    plain = to_plain(REPORT)
    place = plain
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert violations(json_schema(Report), plain) == [expected]


def test_schema_requires_what_has_no_default() -> None:
    plain = to_plain(REPORT)
    del plain["results"][0]["case"]["name"], plain["results"][0]["findings"][0]["summary"]
    assert violations(json_schema(Report), plain) == [
        "report.results[0].case: name is missing",
        "report.results[0].findings[0]: summary is missing",
    ]
