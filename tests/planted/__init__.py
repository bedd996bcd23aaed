"""Models and engines with one planted fault each, and their clean twins. Run by `tests/test_planted.py`."""
