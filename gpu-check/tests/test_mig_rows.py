"""The rules of the rows for MIG."""

import copy
import unittest

from vgpu_check import mig_rows

PROFILE = {"id": 9, "number": 2, "name": "MIG 3g.40gb", "most": 2, "code": 0, "placements": [[0, 4], [4, 4]]}
DEVICE = {
    "index": 0,
    "uuid": "MIG-3f8a1c20-1111-5222-8333-444455556666",
    "name": "NVIDIA H100 MIG 3g.40gb",
    "gi": [0, 1],
    "ci": [0, 0],
    "named": True,
    "parent": True,
    "attributes": 0,
    "mib": 40448,
    "sms": 60,
    "total": 40448 << 20,
    "unmeasured": {"nvmlDeviceGetUtilizationRates": 3},
}
GPU = {
    "index": 0,
    "uuid": "GPU-x",
    "mode": [0, 1, 1],
    "resetless": [0, 1],
    "profiles": [PROFILE],
    "after_last": 2,
    "most": [0, 7],
    "devices": [DEVICE],
    "gpu_instances": [{"id": 1, "name": "MIG 3g.40gb", "start": 0, "size": 4}],
}


def rows(**changes):
    return {row.name: row for row in mig_rows.of_gpu({**copy.deepcopy(GPU), **changes})}


class Rules(unittest.TestCase):
    def fails(self, name, part, **changes):
        row = rows(**changes)[name]
        self.assertEqual(row.outcome, "FAILED", row.note)
        self.assertIn(part, row.note)

    def test_a_sound_gpu_has_no_failure(self):
        self.assertEqual([row.note for row in rows().values() if row.outcome == "FAILED"], [])

    def test_what_the_node_agent_relies_on_is_checked(self):
        profiles, places, instances = "GPU 0: profiles", "GPU 0: placements", "GPU 0: GPU instances"
        self.fails(profiles, "MIG big", profiles=[{**PROFILE, "name": "MIG big"}])
        self.fails(profiles, "same id", profiles=[PROFILE, PROFILE])
        self.fails(profiles, "describes none", profiles=[])
        self.fails(profiles, "profile 18 answers 3", after_last=3)
        self.fails(places, "sizes [2, 4]", profiles=[{**PROFILE, "placements": [[0, 4], [4, 2]]}])
        self.fails(places, "overlap", profiles=[{**PROFILE, "placements": [[0, 4], [2, 4]]}])
        self.fails(instances, "that it does not list: [1]", gpu_instances=[{**GPU["gpu_instances"][0], "id": 2}])
        self.fails(instances, "overlap", gpu_instances=[GPU["gpu_instances"][0], {"id": 2, "name": "MIG 3g.40gb", "start": 2, "size": 4}])
        device = "GPU 0: instance 0, 3g.40gb"
        self.fails(device, "another form", devices=[{**DEVICE, "uuid": "MIG-GPU-3f8a1c20/1/0"}])
        self.fails(device, "by its UUID", devices=[{**DEVICE, "named": False}])
        self.fails(device, "its GPU", devices=[{**DEVICE, "parent": False}])
        self.fails(device, "above its profile", devices=[{**DEVICE, "total": 40449 << 20}])
        self.fails(device, "compute instance's id: NVML answers 6", devices=[{**DEVICE, "ci": [6, 0]}])
        self.fails("GPU 0: instance 0, NVIDIA H100", "no profile", devices=[{**DEVICE, "name": "NVIDIA H100"}])

    def test_what_is_not_said_is_left_out_or_told(self):
        row = rows(profiles=[{**PROFILE, "code": 4, "placements": None}])["GPU 0: placements"]
        self.assertEqual((row.outcome, row.note), ("skipped", mig_rows.PRIVILEGED))
        row = rows(gpu_instances=[])["GPU 0: GPU instances"]
        self.assertEqual((row.outcome, row.note), ("skipped", mig_rows.PRIVILEGED))
        self.assertIn("without a compute instance: id 1", rows(devices=[])["GPU 0: GPU instances"].note)
        self.assertIn("next reset", rows(mode=[0, 0, 1])["GPU 0: MIG mode"].note)
        row = rows(resetless=[3, 0])["GPU 0: the mode changes without a reset (field 184)"]
        self.assertEqual(row.outcome, "skipped")
        self.assertEqual([row.outcome for row in mig_rows.of_gpu({"index": 1, "mode": [3, 0, 0]})], ["skipped"])
