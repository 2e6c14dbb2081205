"""What earlier runs found, in state.json: a stage that passed is not run again while build, driver and GPU are the same.

Written to a temporary name and renamed, so a killed run leaves the state of the stage before. A file that cannot be read
is no state.
"""

import hashlib
import json
import os

NAME = "state.json"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# Does what worked before still work?
ALWAYS = ("S3",)


def build_hash(dist):
    """Of the programs that are tested."""
    digest = hashlib.sha256()
    for name in ("libvgpu.so", "libvgpu-preload.so", "vgpu", "vgpu-kubelet-plugin"):
        try:
            with open(os.path.join(str(dist), name), "rb") as file:
                digest.update(file.read())
        except OSError:
            digest.update(b"missing " + name.encode())
    return digest.hexdigest()[:16]


class State:
    def __init__(self, found=None):
        found = found or {}
        self.key, self.stages, self.variant = found.get("key"), dict(found.get("stages", {})), found.get("variant")

    def begin(self, **key):
        """Forgets what is of another build, driver or kind of GPU."""
        if self.key != key:
            self.key, self.stages, self.variant = key, {}, None

    def to_run(self, chosen, again):
        """The stages of `chosen` to run: the canary if it has run before, those without a result, then those that failed."""
        results = {name: NOT_RUN if again else self.stages.get(name, NOT_RUN) for name in chosen}
        canary = [name for name in ALWAYS if results.get(name) in (PASSED, FAILED)]
        new = [name for name in chosen if results[name] == NOT_RUN]
        return canary + new + [name for name in chosen if results[name] == FAILED and name not in canary]

    def left(self, chosen):
        return [name for name in chosen if self.stages.get(name, NOT_RUN) == NOT_RUN]

    def save(self, folder):
        path = os.path.join(folder, NAME)
        with open(path + ".new", "w") as file:
            json.dump({"key": self.key, "stages": self.stages, "variant": self.variant}, file)
        os.replace(path + ".new", path)


def load(*folders):
    """The state in the first folder that has a valid one."""
    for folder in filter(None, folders):
        try:
            with open(os.path.join(folder, NAME)) as file:
                return State(json.load(file))
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return State()
