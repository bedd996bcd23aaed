"""Models through vLLM's own compiler: `pytest --piecewise suites/vllm`. Without vLLM they are skipped."""
