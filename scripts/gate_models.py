"""A model whose piecewise compilation can be slowed down, for `gate_power.py`: by burning CPU or by sleeping, in a pass.

`GATE_SLOW_KIND` is burn or sleep, `GATE_SLOW_SECONDS` how long in all; without them it is compiled as it is.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from suites.fastcheck.test_known_answer import KNOWN_ANSWER

KIND, SECONDS = "GATE_SLOW_KIND", "GATE_SLOW_SECONDS"
OP = "add_neighbour"
DISTINCT = 3
"""Distinct pieces of the model: as often is the pass run in a piecewise compilation."""


def config() -> dict[str, Any]:
    """Inductor's configuration with the pass in it."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Slow(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            if any(OP in str(node.target) for node in graph.nodes):
                return  # the whole graph: this is the full variant, which is not slowed down
            seconds = float(os.environ.get(SECONDS, "0")) / DISTINCT
            if os.environ.get(KIND) == "sleep":
                time.sleep(seconds)
                return
            end = time.process_time() + seconds
            while time.process_time() < end:
                pass

        def uuid(self) -> bytes:
            return b"slow"

    return {"post_grad_custom_post_pass": Slow()}


SLOWED = dataclasses.replace(KNOWN_ANSWER, name="slowed", inductor_config=config)
