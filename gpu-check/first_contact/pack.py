"""The verb `pack`: creates an ignored folder .kit/ in this checkout, to be copied together with it to a machine with a GPU. With
--cluster also .kit-cluster/ ([parts](parts.py)).

    .kit/dist    the programs      .kit/tools   strace, eu-stack, runc, two small libraries (tools)
    .kit/state.json, rows          results of an earlier run      .kit/packed.json   commit, hashes, build-ids

strace and eu-stack come from Debian's packages (vgpu-cache) and are never committed; runc is the test cluster's build.
Without network, compiler or cluster the pack lacks them, and says so: it is usable without them.

Failure modes: killed in between, the old .kit/ stays (.kit.new is removed by the next pack); too large: the sizes by part,
no .kit/, status 1.
"""

import json
import os
import shutil
import subprocess
import sys
import time

from . import elf, parts, state, tools
from .options import CLUSTER, KIT

PROGRAMS = ("vgpu", "libvgpu.so", "libvgpu-preload.so", "vgpu-kubelet-plugin", "vgpu-cdi-hook", "vgpu-driver-limit")
DISSECT = "libvgpu-dissect.so"
DEBIAN = ("strace", "elfutils")
CARRIED = ("strace", "eu-stack")
MIB = 1 << 20


def say(text):
    print("pack: " + text, flush=True)


def output(*command, **more):
    """(status, text)"""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, **more)
        return done.returncode, done.stdout.strip() or done.stderr.strip()
    except OSError as error:
        return 127, str(error)


def put(source, folder):
    """Copies a file into a folder, by its base name. Never to a path from another program's output: `ld.so --list` prints
    the loader's absolute path."""
    to = os.path.join(folder, os.path.basename(source))
    if os.path.lexists(to):
        os.remove(to)
    shutil.copy(source, to)


def debian_tools(checkout, to):
    """Copies the tools with the loader and the libraries that they need; returns the reason if it cannot."""
    status, root = output("cargo", "run", "--quiet", "--package", "vgpu-cache", "--", *DEBIAN, cwd=str(checkout))
    if status:
        return root.splitlines()[-1] if root else "cargo fails"
    libraries = os.path.join(root, tools.FOLDERS[1][1])
    loader = os.path.join(libraries, tools.LOADER)
    for folder in ("bin", "lib"):
        os.makedirs(os.path.join(to, folder))
    put(loader, os.path.join(to, "lib"))
    for name in CARRIED:
        program = os.path.join(root, "usr/bin", name)
        put(program, os.path.join(to, "bin"))
        _, listed = output(loader, "--library-path", libraries, "--list", program)
        for line in listed.splitlines():
            # `libdw.so.1 => /root/.../libdw.so.1 (0x...)`
            name = os.path.basename(line.split("=>")[0].strip())
            path = os.path.join(libraries, name)
            if "=>" in line and name != tools.LOADER and os.path.exists(path):
                put(path, os.path.join(to, "lib"))
    return ""


def runc(to):
    found = tools.cached_runc()
    if not found:
        return "the test cluster's is not built: build/e2e.sh tools"
    os.makedirs(os.path.join(to, tools.STATIC), exist_ok=True)
    put(found, os.path.join(to, tools.STATIC))
    return ""


def size(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def checkout_size(checkout):
    """Bytes of the checkout's files that are copied: tracked ones, and untracked ones that git does not ignore."""
    status, names = output("git", "ls-files", "-co", "--exclude-standard", cwd=str(checkout))
    paths = [os.path.join(str(checkout), name) for name in names.splitlines()] if status == 0 else []
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def symbols(options, dist):
    """Prints for each program whether its symbols are here, where `explain` needs them. Returns the build IDs."""
    folder, ids = options.symbols or str(options.checkout / "target/symbols"), {}
    for name in PROGRAMS:
        ids[name] = elf.build_id(os.path.join(dist, name))
        twin = os.path.join(folder, name)
        if not ids[name] or not os.path.exists(twin) or elf.build_id(twin) != ids[name]:
            say("{}: {} has no symbols of this build: its addresses stay offsets".format(name, folder))
    return ids


def main(options):
    missing = [name for name in PROGRAMS + ("soft-gpu",) if not (options.dist / name).exists()]
    if missing:
        sys.stderr.write("pack: {} lacks {}: run `make dist`\n".format(options.dist, ", ".join(missing)))
        return 1
    new, kit = str(options.checkout / (KIT + ".new")), str(options.checkout / KIT)
    shutil.rmtree(new, ignore_errors=True)
    dist, carried = os.path.join(new, "dist"), os.path.join(new, "tools")
    os.makedirs(dist)
    os.makedirs(carried)
    for name in PROGRAMS:
        put(str(options.dist / name), dist)
    dissect = [path for path in (options.dist, options.checkout / "target/dissect-dist") if (path / DISSECT).exists()]
    if dissect:
        put(str(dissect[0] / DISSECT), dist)
    else:
        say("without {}: build/dist.sh --dissect builds it".format(DISSECT))
    shutil.copytree(str(options.dist / "soft-gpu"), os.path.join(dist, "soft-gpu"))
    for what, why in (("strace and eu-stack", debian_tools(options.checkout, carried)), ("runc", runc(carried))):
        if why:
            say("without {}: {}".format(what, why))
    for name in tools.LIBRARIES:
        if not tools.build(name, carried):
            say("without {}.so: there is no C compiler".format(name))
    if options.earlier:
        state.load(options.earlier).save(new)
    ids = symbols(options, dist)
    commit = output("git", "rev-parse", "HEAD", cwd=str(options.checkout))[1]
    with open(os.path.join(new, "packed.json"), "w") as file:
        json.dump({"packed": time.strftime("%FT%TZ", time.gmtime()), "commit": commit, "build": state.build_hash(dist), "build_ids": ids}, file)
    own, rest = size(new) / MIB, checkout_size(options.checkout) / MIB
    say("{} has {:.1f} MiB, the checkout's files {:.1f} MiB".format(KIT, own, rest))
    if options.size and own + rest > options.size:
        sizes = ", ".join("{} {:.1f}".format(name, size(os.path.join(new, name)) / MIB) for name in ("dist", "tools"))
        sys.stderr.write("pack: more than --size {:g}: {} MiB\n".format(options.size, sizes))
        shutil.rmtree(new)
        return 1
    shutil.rmtree(kit, ignore_errors=True)
    os.rename(new, kit)
    if options.cluster:
        why = parts.make(options.checkout, options.dist, int(options.part_size * MIB), say)
        if why:
            sys.stderr.write("pack: no {}: {}\n".format(CLUSTER, why))
            return 1
    print("On the machine, in a copy of this checkout with {}/:\n"
          "  gpu-check/first-contact.sh run --out DIR --budget 240     # S0 to S8; its last line is the next call\n"
          "Back here:\n"
          "  gpu-check/first-contact.sh explain DIR\n"
          "  gpu-check/first-contact.sh pack --earlier DIR             # another machine of the same kind goes on there".format(KIT))
    return 0
