"""Faults planted through vLLM: in its configuration, in a model for it, and in what it is given."""
