"""Real architectures of `transformers`, from published configs: small on a CPU, full width with few layers on a GPU."""
