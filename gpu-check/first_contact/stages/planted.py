"""Failures for the self-test. Runs only by name."""

TITLE, LIMIT = "planted", 100
KINDS = {
    "policy": "error", "crash": "crash", "hang": "hang", "noise": "noise", "wrong": "differs", "error": "error", "refused": "refused",
}


def run_stage(kit):
    kinds = [kind for kind in kit.options.planted if kind in KINDS or kind == "in both"]
    for kind in kinds:
        kit.pair(kind, "planted:fail", kind, share={"memory": 256 << 20}, limit=3, same=("answer",))
