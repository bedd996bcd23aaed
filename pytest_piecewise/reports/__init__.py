"""Records -> what people read. Strings and files out, no verdicts of their own."""
