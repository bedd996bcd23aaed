"""What runs have measured, kept for good: series of points in an SQL database that only ever grows. Nothing here gates."""
