"""The probes, which run in child processes: one module each, with a `main` whose arguments are strings."""
