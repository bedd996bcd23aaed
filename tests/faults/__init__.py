"""The planted faults and the canary run, on small models that between them have all that a fault may need."""
