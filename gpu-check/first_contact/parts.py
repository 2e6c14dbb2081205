"""The files of a cluster for a machine without network, in parts that can be copied one by one: .kit-cluster/.

    index.json   its paths after unpacking (vgpu-e2e payload), and size and hash of each part
    part-00 ...  a tar, compressed with xz, cut into pieces of --part-size

Failure modes: killed in between, the old folder stays (.kit-cluster.new is removed by the next pack); a part that is missing
or from another pack is named, and nothing is unpacked.
"""

import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile

from .options import CLUSTER

INDEX = "index.json"
# Level 1 packs three times as fast as the default, and the pack becomes a tenth larger.
PRESET = 1
BLOCK = 1 << 20


class Missing(Exception):
    """Parts are not here; the text names them."""


class Writer(io.RawIOBase):
    """Splits written data into files of `size` bytes."""

    def __init__(self, folder, size):
        super().__init__()
        self.folder, self.size, self.parts, self.file = folder, size, [], None

    def writable(self):
        return True

    def write(self, data):
        data, written = memoryview(data).cast("B"), 0
        while written < len(data):
            if self.file is None or self.file.tell() == self.size:
                self.end_part()
                self.file = open(os.path.join(self.folder, "part-{:02}".format(len(self.parts))), "wb")
                self.hash = hashlib.sha256()
            piece = data[written : written + self.size - self.file.tell()]
            self.file.write(piece)
            self.hash.update(piece)
            written += len(piece)
        return written

    def end_part(self):
        if self.file is not None:
            self.parts.append({"bytes": self.file.tell(), "sha256": self.hash.hexdigest()})
            self.file.close()
            self.file = None


class Reader(io.RawIOBase):
    """The parts as one file."""

    def __init__(self, files):
        super().__init__()
        self.files = list(files)

    def readable(self):
        return True

    def readinto(self, buffer):
        while self.files:
            count = self.files[0].readinto(buffer)
            if count:
                return count
            self.files.pop(0).close()
        return 0


def make(checkout, dist, size, say):
    """Creates the folder in `checkout`; returns the reason if it cannot, or an empty text."""
    new, folder = str(checkout / (CLUSTER + ".new")), str(checkout / CLUSTER)
    shutil.rmtree(new, ignore_errors=True)
    os.mkdir(new)
    tar = os.path.join(new, "payload.tar")
    done = subprocess.run(
        [str(checkout / "build/e2e.sh"), "payload", tar], env=dict(os.environ, VGPU_DIST=str(dist)), stdout=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        shutil.rmtree(new)
        return "build/e2e.sh payload ends with status {}".format(done.returncode)
    unpacked, writer = json.loads(done.stdout.splitlines()[-1]), Writer(new, size)
    with open(tar, "rb") as source, lzma.open(writer, "wb", preset=PRESET) as packed:
        shutil.copyfileobj(source, packed, BLOCK)
    os.remove(tar)
    writer.end_part()
    with open(os.path.join(new, INDEX), "w") as file:
        json.dump(dict(unpacked, parts=writer.parts), file)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(new, folder)
    names = ["{}/part-{:02}".format(CLUSTER, number) for number in range(len(writer.parts))]
    say("{} has {} parts, {:.1f} MiB in all. Carry {}/{} and each of them to the machine, where they stay: {}".format(
        CLUSTER, len(names), sum(one["bytes"] for one in writer.parts) / BLOCK, CLUSTER, INDEX, ", ".join(names)))
    return ""


def index(folder):
    """What is in index.json; None without it."""
    try:
        with open(os.path.join(folder, INDEX)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def opened(folder, found):
    """The parts, open and in order, each of the right content."""
    files, wrong = [], []
    for number, part in enumerate(found["parts"]):
        path = os.path.join(folder, "part-{:02}".format(number))
        try:
            file = open(path, "rb", buffering=0)
        except OSError as error:
            wrong.append("{}: {}".format(path, error.strerror))
            continue
        digest = hashlib.sha256()
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
        if digest.hexdigest() != part["sha256"]:
            wrong.append("{}: of another pack, or cut".format(path))
        file.seek(0)
        files.append(file)
    if wrong:
        raise Missing("; ".join(wrong))
    return files


def unpack(files, folders):
    """Unpacks the parts at the root, as root; nothing outside these folders but folders above them."""
    # Python 3.14 refuses absolute links unless told otherwise.
    more = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    with lzma.open(io.BufferedReader(Reader(files), BLOCK)) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for entry in tar:
            path = os.path.normpath("/" + entry.name)
            if any(path == one or path.startswith(one + "/") for one in folders):
                tar.extract(entry, "/", numeric_owner=True, **more)
            elif not entry.isdir():
                raise OSError("{} is outside of {}".format(path, ", ".join(folders)))
