"""Steps in the history: which measurements have changed for good, since which commit, and what changed beside them."""
