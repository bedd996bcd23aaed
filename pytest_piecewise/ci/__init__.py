"""The pipeline: steps that files declare, generated for a change, linted, and run here. Needs the extra `ci` (PyYAML)."""
