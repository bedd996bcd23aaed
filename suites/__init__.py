"""Suites that users can copy: ordinary pytest tests that need pytest-piecewise and nothing else of this repository."""
