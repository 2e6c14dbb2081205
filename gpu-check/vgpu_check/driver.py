"""Finds NVIDIA's driver. The same rule in Rust, with its failure modes: kubelet-plugin/find-driver/src/lib.rs; change both.

    LD_LIBRARY_PATH ─► the loader's cache ─► the loader's folders ─► other folders ─► the root itself

All paths are below a root, and links are resolved inside that root. A file in a folder `stubs` belongs to the CUDA toolkit
and is not a driver.
"""

import os
import stat
import struct

from . import arch

NATIVE = arch.names()
LIBCUDA, LIBNVIDIA_ML = "libcuda.so.1", "libnvidia-ml.so.1"
CACHE = "etc/ld.so.cache"
# A cache of thousands of libraries is smaller than one MiB.
CACHE_MAX = 16 << 20
LOADER_FOLDERS = ("lib/" + NATIVE.triplet, "usr/lib/" + NATIVE.triplet, "lib64", "usr/lib64", "lib", "usr/lib")
OTHER_FOLDERS = (
    "usr/lib/" + NATIVE.triplet + "/nvidia/current",
    "usr/lib/nvidia",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "",
)
LIBRARY_PATH, BY_CACHE, LOADER, OTHER = (
    "by LD_LIBRARY_PATH",
    "by the loader's cache",
    "in a folder of the loader",
    "in a folder where drivers lie",
)
MAX_LINKS = 40

MAGIC = b"glibc-ld.so.cache1.1"
HEADER, ENTRY = 48, struct.Struct("=III12x")
PATH_MAX, MOST = 4096, 32


class Library:
    """A file of the driver, with links resolved, and how it was found."""

    def __init__(self, file, how):
        self.file, self.how = file, how

    @property
    def folder(self):
        return os.path.dirname(self.file)


def driver(root="/", library_path=()):
    """Returns the driver's libcuda below root; None without libcuda or NVML. `library_path`: folders."""
    found = [find(root, library_path, name) for name in (LIBCUDA, LIBNVIDIA_ML)]
    return found[0] if all(found) else None


def root_for(libcuda):
    """The root with which the plugin, which has no LD_LIBRARY_PATH, finds this libcuda of the machine."""
    folder = libcuda.folder
    above = {folder[: -len(end) - 1] for end in LOADER_FOLDERS + OTHER_FOLDERS if end and folder.endswith("/" + end)}
    for root in ["/"] + sorted(filter(None, above), key=len):
        found = driver(root)
        if found and found.file == libcuda.file:
            return root
    return folder


def loader_finds(libcuda, root, library_path):
    """Returns True if the loader uses this libcuda. Unlike this rule, it accepts stubs, and knows only one root."""
    for folder in library_path:
        if os.path.exists(os.path.join(folder, LIBCUDA)):
            return resolve("/", os.path.join(folder, LIBCUDA)) == libcuda.file
    return root == "/" and libcuda.how in (BY_CACHE, LOADER)


def places():
    """Every place of a search without LD_LIBRARY_PATH, for messages."""
    return ", ".join("/" + place for place in (CACHE,) + LOADER_FOLDERS + OTHER_FOLDERS)


def folders(value):
    """The folders of a value of LD_LIBRARY_PATH; relative ones depend on the working directory, and are left out."""
    return [folder for folder in (value or "").split(":") if folder.startswith("/")]


def find(root, library_path, name):
    """The first file for a library's name; None if there is none."""
    ways = [(folder + "/" + name, LIBRARY_PATH) for folder in library_path]
    ways += [(path, BY_CACHE) for path in cached(read_cache(root), name)]
    ways += [(folder + "/" + name, LOADER) for folder in LOADER_FOLDERS]
    ways += [(folder + "/" + name, OTHER) for folder in OTHER_FOLDERS]
    for path, how in ways:
        file = resolve(root, path)
        if file and not is_stub(path) and not is_stub(file):
            return Library(file, how)
    return None


def is_stub(path):
    return os.path.basename(os.path.dirname(path)) == "stubs"


def resolve(root, path):
    """The regular file below root to which path leads, with links resolved inside root; None if there is none."""
    left, found, links = path.split("/")[::-1], [], 0
    while left:
        part = left.pop()
        if part == "..":
            found = found[:-1]
            continue
        if part in ("", "."):
            continue
        try:
            target = os.readlink(os.path.join(root, *found, part))
        except FileNotFoundError:
            return None
        except OSError:  # no link, or not readable
            found.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        if target.startswith("/"):
            found = []
        left += target.split("/")[::-1]
    file = os.path.join(root, *found)
    try:
        return file if stat.S_ISREG(os.lstat(file).st_mode) else None
    except OSError:
        return None


def read_cache(root):
    file = resolve(root, CACHE)
    try:
        with open(file or os.devnull, "rb") as opened:
            return opened.read(CACHE_MAX)
    except OSError:
        return b""


def cached(cache, name):
    """The paths of a 64-bit library in a loader's cache. Damaged entries are ignored."""
    start, found = cache.find(MAGIC), []
    if start < 0 or len(cache) < start + HEADER:
        return []
    cache = memoryview(cache)[start:]
    count = min(struct.unpack_from("=I", cache, len(MAGIC))[0], (len(cache) - HEADER) // ENTRY.size)
    key = os.fsencode(name) + b"\0"
    for index in range(count):
        flags, at, value = ENTRY.unpack_from(cache, HEADER + index * ENTRY.size)
        if flags & 0xFFFF == NATIVE.cache_flags and cache[at : at + len(key)] == key:
            path, end, _ = bytes(cache[value : value + PATH_MAX]).partition(b"\0")
            found.append(os.fsdecode(path) if end else "")
            if len(found) == MOST:
                break
    return [path for path in found if path.startswith("/")]
