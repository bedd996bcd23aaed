"""Small repositories with a pipeline of their own."""

from __future__ import annotations

from pathlib import Path

CONFIG = """\
name: small
job_dirs: [.buildkite/steps]
devices: {cpu: {queue: default}, gpu: {queue: gpu_1_queue}}
tiers: {fastcheck: {}, full: {labels: [ready], branches: [main], block: Run all}, nightly: {sources: [schedule]}}
run_all_patterns: ["setup\\\\.py"]
run_all_exclude_patterns: ["setup\\\\.pyc"]
run_all_labels: [everything]
sources: [src]
"""
STEPS = """\
group: Small
steps:
  - {label: One, key: one, commands: [make one], timeout_in_minutes: 5, source_file_dependencies: [src/]}
"""
BOOTSTRAP = """\
steps:
  - label: generate
    key: generate
    commands: [generate]
    timeout_in_minutes: 5
    retry: {automatic: [{exit_status: -1, limit: 1}]}
"""


def project(root: Path, steps: str = STEPS, config: str = CONFIG) -> Path:
    """A repository at `root`: two source files, a configuration and one file of steps."""
    files = {
        ".buildkite/ci_config.yaml": config,
        ".buildkite/steps/steps.yaml": steps,
        ".buildkite/pipeline.yaml": BOOTSTRAP,
        "src/a.py": "",
        "src/b.py": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def step(key: str, **more: object) -> str:
    """One step in YAML's flow style, with what every step needs unless `more` says otherwise."""
    fields = {
        "label": key,
        "key": key,
        "commands": [f"make {key}"],
        "timeout_in_minutes": 5,
        "source_file_dependencies": ["src/"],
        **more,
    }
    return "{" + ", ".join(f"{name}: {_flow(value)}" for name, value in fields.items() if value is not None) + "}"


def steps(*written: str) -> str:
    return "group: Small\nsteps:\n" + "".join(f"  - {text}\n" for text in written)


def _flow(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
