"""Measures the limits on a real GPU, beyond what the software GPU can show, and prints a table.

    flags (options) ─► GPU and share (machine) ─► groups: seen, held, time, node, costs, overhead
                                                    │
         probe.py, bare or under `vgpu run` (sides) │ lines of JSON, a step at a time (child)
         probe.py watch, outside the share (truth)  │
                                                    ▼
        each complete row (bench) ─► a line of text (report), a line of JSON (journal)
                                                    │
                                                    ▼
                              summary, Markdown, JSON (report) ─► exit status

All code that loads a driver's library runs in a child process, with a time-out for each line of output. A
probe that hangs or crashes becomes a row `FAILED`, and the check continues. These probes are in `probes/`;
no other module opens a library. Pure: rows, node_rows, spans, expected, report. Only Python's standard library is needed.

Failure modes: a child that cannot be killed (it waits inside the kernel driver) is left running and named. A
share that a `vgpu run` could not remove is removed by the next one. When the time is up, the remaining rows
are failures, never passes. After SIGTERM, it prints the summary of the rows so far; if it is killed, its rows are in the journal.

first_contact/ is a second program with the same probes, for a first check of an unknown machine.
"""
