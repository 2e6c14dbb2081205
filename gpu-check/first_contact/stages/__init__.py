"""The stages: `TITLE`, `LIMIT` in seconds, and `run_stage(kit)`. A stage that is ended at its limit keeps its rows. The limits of
FIRST are 240 s together; unused time of a stage goes to the next."""

import importlib

FILES = {
    "S0": "s00_facts", "S1": "s01_loads", "S2": "s02_context", "S3": "s03_refusal", "S4": "s04_torch", "S5": "s05_pace",
    "S6": "s06_graphs", "S7": "s07_clients", "S8": "s08_processes", "S9": "s09_node", "S10": "s10_tools", "S11": "s11_serving",
    "S12": "s12_check", "S13": "s13_container", "S14": "s14_cluster", "S15": "s15_checkpoint",
    "S16": "s16_driver_limit", "planted": "planted",
}
FIRST = tuple("S0 S1 S2 S3 S4 S5 S6 S7 S8".split())
# The order of the second call: the most informative stages first.
ORDER = FIRST + tuple("S9 S16 S11 S15 S13 S10 S12 S14".split())


def load(name):
    return importlib.import_module("first_contact.stages." + FILES[name])
