"""What runs in the children: one module a probe, with a `main` that takes its arguments as strings."""
