"""GPU leases with real memory: what the driver gives back when, and whether builds that share a GPU leave each other alone.

Usage: python3 scripts/gpu_leases.py [ROUNDS]. Needs one GPU and torch; exits 1 if anything is not as it must be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_piecewise import leases, nvml

CHILD = """
import os, sys
from pytest_piecewise.leases import hold
hold(sys.argv[3:])
import torch
from pytest_piecewise.engines.prepare import limit_gpu_memory
limit_gpu_memory("cuda", int(sys.argv[2]))
try:
    held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    print("allocated", flush=True)
except torch.cuda.OutOfMemoryError:
    print("out of memory", flush=True)
sys.stdin.readline()
"""


def start(lease: leases.Lease, size: int, budget: int = 0) -> subprocess.Popen[str]:
    """A child on the leased GPU that allocates `size` bytes, says how that went, and waits."""
    command = [sys.executable, "-c", CHILD, str(size), str(budget), *map(str, lease.held)]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": lease.name}
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(child: subprocess.Popen[str]) -> str:
    """The line that a child has printed."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def given_back(gpu: str, total: int, rounds: int, folder: Path) -> bool:
    """A child is killed with most of the GPU allocated, and the next one starts as soon as the lease is given back."""
    good, waits = True, []
    for _ in range(rounds):
        with leases.leased_gpu((gpu,), folder=folder) as lease:
            begin = 0.0
            with leases.freed_afterwards(lease.name):
                child = start(lease, int(total * 0.9))
                good &= said(child) == "allocated"
                child.send_signal(signal.SIGKILL)
                child.communicate()
                begin, left = time.monotonic(), nvml.memory_used(gpu)
            waits.append((time.monotonic() - begin, (left or 0) / 2**30))
    seconds = sorted(wait for wait, _ in waits)
    print(f"given back: {rounds} children of {total * 0.9 / 2**30:.0f} GiB killed; waited {seconds[0]:.2f} to "
          f"{seconds[-1]:.2f} s, median {seconds[len(seconds) // 2]:.2f} s; in use right after the kill: "
          f"{max(left for _, left in waits):.1f} GiB at most; every next one could allocate: {good}")  # fmt: skip
    return good


def shared(gpu: str, total: int, folder: Path) -> bool:
    """Two builds with a third of the GPU each: one that wants more runs out of memory, and the other goes on."""
    budget = total // 3
    slots = leases.slots_for(budget, total)
    with leases.leased_gpu((gpu,), slots, folder=folder) as one, leases.leased_gpu((gpu,), slots, folder=folder) as two:
        modest, greedy = start(one, int(budget * 0.8), budget), start(two, int(budget * 1.2), budget)
        found = (said(modest), said(greedy))
        for child in (modest, greedy):
            child.kill()
            child.communicate()
    print(f"shared: {slots} of {leases.SLOTS} parts each; within the budget {found[0]}, beyond it {found[1]}")
    return found == ("allocated", "out of memory")


def outlived(gpu: str, folder: Path) -> bool:
    """A lease is given back while its child lives on: the next one waits for the child."""
    with leases.leased_gpu((gpu,), folder=folder) as lease:
        child = start(lease, 2**30)
        said(child)
    begin, waited = time.monotonic(), []

    def end_it() -> None:
        waited.append(time.monotonic() - begin)
        if waited[-1] > 2 and child.poll() is None:
            child.kill()

    with leases.leased_gpu((gpu,), on_wait=end_it, folder=folder):
        seconds, alive = time.monotonic() - begin, child.poll() is None
    child.communicate()
    print(f"outlived: the next lease came after {seconds:.1f} s, the child alive then: {alive}")
    return seconds > 2 and not alive


def main() -> int:
    """All three, and whether all of them were as they must be."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    known = nvml.gpus()
    names = leases.machine_wide(leases.visible_gpus(len(known)), known)
    if not names:
        print("no GPU here")
        return 1
    gpu, total = names[0], nvml.memory_total(names[0])
    print(f"{gpu}: {total / 2**30:.0f} GiB, {(nvml.memory_used(gpu) or 0) / 2**30:.1f} in use")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = [given_back(gpu, total, rounds, folder), shared(gpu, total, folder), outlived(gpu, folder)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
