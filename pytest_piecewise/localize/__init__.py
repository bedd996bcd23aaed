"""From a failed comparison to its place: the first segment that is wrong, the first op in it, and a script that shows it.

`task` is what the child does: it makes the failing variant again, leads it to the failing call (`observe`), judges every
segment by its own graph run eagerly and in float64 (`truth`, `inspection`), narrows a wrong piece down to an op (`ops`),
and writes the script (`repro`), which it runs.
"""
