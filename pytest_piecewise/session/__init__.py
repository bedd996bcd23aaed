"""What happens within one run of pytest, from the collected cases to the end of the session."""
