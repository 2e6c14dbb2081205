"""The search for the driver on temporary roots, and the resulting flags and header."""

import contextlib
import io
import os
import pathlib
import struct
import tempfile
import types
import unittest
from unittest import mock

from vgpu_check import driver, machine, options

CUDA, NVML = driver.LIBCUDA, driver.LIBNVIDIA_ML


def cache(entries):
    """A loader's cache of (flags, name, path)."""
    texts, table = b"", b""
    base = driver.HEADER + len(entries) * driver.ENTRY.size
    for flags, name, path in entries:
        table += driver.ENTRY.pack(flags, base + len(texts), base + len(texts) + len(name) + 1)
        texts += name.encode() + b"\0" + path.encode() + b"\0"
    head = driver.MAGIC + struct.pack("=I", len(entries))
    return head.ljust(driver.HEADER, b"\0") + table + texts


class Roots(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)

    def write(self, path, text=b""):
        file = pathlib.Path(self.root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)

    def link(self, target, path):
        file = pathlib.Path(self.root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def install(self, folder, version):
        for name in (CUDA, NVML):
            file = name[:-1] + version
            self.write("{}/{}".format(folder, file))
            self.link(file, "{}/{}".format(folder, name))

    def found(self, *library_path):
        """(path below the root, how it was found); None without a driver."""
        found = driver.driver(self.root, library_path)
        return found and (os.path.relpath(found.file, self.root), found.how)


class Order(Roots):
    def test_library_path_then_cache_then_folders(self):
        self.assertIsNone(self.found())
        self.install("usr/local/nvidia/lib64", "1.1")
        self.assertEqual(self.found(), ("usr/local/nvidia/lib64/libcuda.so.1.1", driver.OTHER))
        self.install("usr/lib64", "2.2")
        self.assertEqual(self.found(), ("usr/lib64/libcuda.so.2.2", driver.LOADER))
        self.install("opt/cached", "3.3")
        self.write(driver.CACHE, cache([(0x303, name, "/opt/cached/" + name) for name in (CUDA, NVML)]))
        self.assertEqual(self.found(), ("opt/cached/libcuda.so.3.3", driver.BY_CACHE))
        self.install("opt/named", "4.4")
        self.assertEqual(self.found("/nothing", "/opt/named"), ("opt/named/libcuda.so.4.4", driver.LIBRARY_PATH))
        os.remove(os.path.join(self.root, "opt/named", CUDA))
        self.assertEqual(self.found("/opt/named")[0], "opt/cached/libcuda.so.3.3")

    def test_libcuda_alone_is_no_driver(self):
        self.write("usr/lib64/" + CUDA)
        self.assertIsNone(self.found())

    def test_a_stub_is_left_out_wherever_it_is_named(self):
        stubs = "usr/local/cuda/lib64/stubs"
        for name in ("libcuda.so", CUDA, NVML):
            self.write("{}/{}".format(stubs, name))
        self.link("/{}/libcuda.so".format(stubs), "usr/lib64/" + CUDA)
        self.write(driver.CACHE, cache([(0x303, CUDA, "/{}/{}".format(stubs, CUDA))]))
        self.assertIsNone(self.found("/" + stubs))
        self.install("usr/local/nvidia/lib64", "1.1")
        self.assertEqual(self.found("/" + stubs)[1], driver.OTHER)

    def test_links_and_cached_paths_do_not_leave_the_root(self):
        inner = "root"
        self.install("outside", "1.1")
        self.link("../../../outside/" + CUDA, inner + "/usr/lib64/" + CUDA)
        self.link(os.path.join(self.root, "outside", NVML), inner + "/usr/lib64/" + NVML)
        self.link(CUDA, inner + "/lib64/" + CUDA)
        self.write(inner + "/" + driver.CACHE, cache([(0x303, CUDA, "/../outside/" + CUDA)]))
        self.assertIsNone(driver.driver(os.path.join(self.root, inner)))

    def test_rust_has_the_same_folders(self):
        text = pathlib.Path(__file__).resolve().parents[2].joinpath("kubelet-plugin/find-driver/src/lib.rs").read_text()
        for name in ("LOADER_FOLDERS", "OTHER_FOLDERS"):
            part = text.split("pub const {}".format(name))[1].split("[\n")[1].split("]")[0]
            # `concat!("usr/lib/", arch!(triplet), "/nvidia"),` or `"usr/lib",`
            part = part.replace("arch!(triplet)", '"' + driver.NATIVE.triplet + '"')
            folders = tuple("".join(line.split('"')[1::2]) for line in part.splitlines() if line.strip())
            self.assertEqual(folders, getattr(driver, name))


class Cache(unittest.TestCase):
    def test_only_the_64_bit_file_of_the_name(self):
        found = cache(
            [
                (0x003, CUDA, "/32/libcuda.so.1"),
                (0x303, CUDA + "0", "/10/libcuda.so.10"),
                (0x303, CUDA, "/a/libcuda.so.1"),
                (0x303, CUDA, "relative"),
                (0x303, CUDA, "/b/libcuda.so.1"),
            ]
        )
        self.assertEqual(driver.cached(found, CUDA), ["/a/libcuda.so.1", "/b/libcuda.so.1"])
        self.assertEqual(driver.cached(b"ld.so-1.7.0\0" + found, CUDA), ["/a/libcuda.so.1", "/b/libcuda.so.1"])

    def test_a_damaged_or_hostile_one_raises_nothing_and_names_few_paths(self):
        whole = cache([(0x303, CUDA, "/a")])
        for at in range(len(whole)):
            driver.cached(whole[:at], CUDA)
            driver.cached(whole[:at] + b"\xff" + whole[at + 1 :], CUDA)
        self.assertEqual(driver.cached(whole[:-1], CUDA), [])
        endless = whole[: len(driver.MAGIC)] + b"\xff" * 4 + whole[len(driver.MAGIC) + 4 :]
        self.assertEqual(driver.cached(endless, CUDA), ["/a"])
        self.assertEqual(len(driver.cached(cache([(0x303, CUDA, "/a")] * 1000), CUDA)), driver.MOST)
        self.assertEqual(driver.cached(cache([(0x303, CUDA, "/" + "a" * 5000)]), CUDA), [])

    def test_this_machines_knows_libc(self):
        if os.path.exists("/etc/ld.so.cache"):
            self.assertTrue(driver.cached(driver.read_cache("/"), "libc.so.6"))


class Flags(Roots):
    """A driver found on this machine's root only by LD_LIBRARY_PATH, because a test cannot install one in /usr."""

    def parse(self, *flags, **variables):
        with mock.patch.dict(os.environ, variables):
            return options.parse(flags)

    def test_library_path_decides_and_the_plugin_gets_a_root(self):
        self.install("nvidia/lib64", "1.1")
        folder = os.path.join(self.root, "nvidia/lib64")
        found = self.parse(LD_LIBRARY_PATH="/nothing:" + folder)
        self.assertEqual((found.driver.file, found.driver.how), (folder + "/libcuda.so.1.1", driver.LIBRARY_PATH))
        self.assertEqual(found.driver_root, os.path.join(self.root, "nvidia"))
        self.assertEqual(found.environment["LD_LIBRARY_PATH"], "/nothing:" + folder)
        self.assertEqual(machine.where(found.driver), " in {}, found by LD_LIBRARY_PATH".format(folder))

    def test_a_stub_before_the_driver_is_not_left_to_the_loader(self):
        self.install("flat", "1.1")
        self.write("stubs/" + CUDA)
        folder, stubs = os.path.join(self.root, "flat"), os.path.join(self.root, "stubs")
        found = self.parse(LD_LIBRARY_PATH=stubs + ":" + folder)
        self.assertEqual(found.driver_root, folder)
        self.assertEqual(found.environment["LD_LIBRARY_PATH"].split(":")[0], folder)

    def test_the_flag_goes_before_library_path_and_programs_get_that_driver(self):
        self.install("one/usr/local/nvidia/lib64", "1.1")
        self.install("two", "2.2")
        root, two = os.path.join(self.root, "one"), os.path.join(self.root, "two")
        found = self.parse("--driver-root", root, LD_LIBRARY_PATH=two)
        folder = os.path.join(root, "usr/local/nvidia/lib64")
        self.assertEqual((found.driver_root, found.driver.folder), (root, folder))
        self.assertEqual(found.environment["LD_LIBRARY_PATH"], folder + ":" + two)

    def test_a_flag_without_a_driver_names_where_it_was_looked_for(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            self.parse("--driver-root", self.root)
        for part in ("--driver-root " + self.root, CUDA, "/etc/ld.so.cache", "/usr/local/nvidia/lib64"):
            self.assertIn(part, said.getvalue())

    def test_without_a_driver_the_reason_names_where_it_was_looked_for(self):
        flags = types.SimpleNamespace(soft_gpu=False, driver=None)
        said = machine.why_missing(flags, "cannot open libnvidia-ml.so.1")
        for part in ("libnvidia-ml.so.1", "LD_LIBRARY_PATH", "/usr/local/nvidia/lib64", "--driver-root"):
            self.assertIn(part, said)
        self.assertEqual(machine.where(None), "")


if __name__ == "__main__":
    unittest.main()
