"""Checks on a real GPU what the software GPU cannot answer, and prints a table.

    flags (options) ─► GPU and share (machine) ─► groups: costs, seen, held, overhead
                                                    │
         probe.py, bare or under `vgpu run` (sides) │ lines of JSON, a step at a time (child)
         probe.py watch, outside the share (truth)  │
                                                    ▼
                              rows (rows) ─► table, Markdown, JSON (report) ─► exit status

Everything that loads a driver's library runs in a child, with a time-out at each line: what hangs or
crashes there becomes a row `FAILED`, and the check goes on. `probes/` is what runs in those children;
nothing outside of it opens a library. Pure: rows, report. Only Python's standard library is needed.

How it fails: a child that cannot be killed (a process that waits inside the kernel driver) is left
behind and named; a share that its `vgpu run` could not take away is swept by the next one; when the
time is up, rows that were not reached are failures, never passes.
"""
