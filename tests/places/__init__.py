"""Faults with a known place: which piece, which op. Run by `tests/test_localize.py` and `scripts/localize_hits.py`."""
