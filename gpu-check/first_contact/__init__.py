"""A first check of a machine with a GPU, in minutes, where nothing can be rebuilt and only small files can be returned.

    pack ─► .kit/ in a checkout ─► run (there) ─► results folder ─► explain (here)

    run: options ─► Kit (kit) ─► stages/sNN_*: S0 facts, S1 loads, ...
                     │ each step bare, then under `vgpu run`; jobs (job) with hard limits
                     │ probes/ run in processes of their own, as vgpu_check's probes, which stages use too
                     ├─► class of each step (classes) ─► rows.jsonl at once (vgpu_check.journal)
                     ├─► failure: evidence (evidence), then variants of the step (variants) that name the culprit
                     └─► after each stage report.txt (report) and state.json (state): a later run continues there

It changes no setting of a GPU and resets none. Pure: classes, report, and state except its file.

Failure modes:
- killed between two rows: the rows, the report and the state of the last stage, and diag.tar exist; children end with it;
- no room on the disk: one line on stderr, the run continues without that file and prints its report;
- a second run in the same folder: skips stages that passed for the same build, driver and kind of GPU, and appends its rows;
- two runs at once in one folder: the second ends with status 2 and one line;
- a GPU that hangs or is lost: the run ends after the step that found it, with its evidence.
"""
