"""Runs a command in a container without Kubernetes: runc over this machine's own root, with the plugin's CDI edits.

    container.py JOB.json -- COMMAND ...

JOB: `runc` (its command), `work` (a folder), `plugin` (the command that creates a share and prints its CDI spec; none: a
container with the bare GPU), `binds` (folders that the command needs), `devices` (paths), `environment`.

It runs in a separate mount namespace, so none of its mounts outlives it: an overlay of the root, because runtimes
create missing mount points. Failure modes: no overlay, no runc, no cgroups: a line on stderr and status 1. If
it is killed, runc's process ends with its group.
"""

import ctypes
import json
import os
import stat
import subprocess
import sys

NEW_MOUNTS, PRIVATE, BIND, REC = 0x20000, 1 << 18, 1 << 12, 1 << 14  # CLONE_NEWNS, MS_PRIVATE, MS_BIND, MS_REC
# File systems of the kernel; a container gets its own ones.
OWN = ("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "overlay", "securityfs", "debugfs", "tracefs",
       "bpf", "pstore", "nsfs", "autofs", "hugetlbfs", "configfs", "fusectl", "binfmt_misc", "rpc_pipefs")
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_MKNOD"]
MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
]


def bind(path, *options):
    return {"destination": path, "source": path, "type": "bind", "options": ["rbind", *options]}


def mount(source, target, kind, flags, data=None):
    call = ctypes.CDLL(None, use_errno=True).mount
    texts = [None if one is None else one.encode() for one in (source, target, kind)]
    if call(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()):
        raise OSError(ctypes.get_errno(), "mount {} at {}: {}".format(kind, target, os.strerror(ctypes.get_errno())))


def root(work):
    """An overlay of this machine's root; a container's writes to it are lost."""
    top = os.path.join(work, "top")
    os.makedirs(top, exist_ok=True)
    mount("top", top, "tmpfs", 0)
    for name in ("upper", "work", "root"):
        os.mkdir(os.path.join(top, name))
    data = "lowerdir=/,upperdir={0}/upper,workdir={0}/work".format(top)
    mount("overlay", os.path.join(top, "root"), "overlay", 0, data)
    return os.path.join(top, "root")


def disks():
    """Mount points of disks below the root, which an overlay of the root does not show."""
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, target, kind = line.split()[:3]
            if kind not in OWN and target != "/" and os.path.isdir(target) and not target.startswith(("/proc", "/sys", "/dev", "/run")):
                yield bind(target, "ro")


def device(path):
    found = os.stat(path)
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
    numbers = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    return {"path": path, "type": kind, "fileMode": 0o666, "uid": 0, "gid": 0, **numbers}


def edits_of(spec):
    """The edits of the whole spec and of its one device, in the order in which runtimes apply them."""
    parts = [spec.get("containerEdits", {}), spec["devices"][0].get("containerEdits", {})]
    return {name: [one for part in parts for one in part.get(name) or []] for name in ("env", "deviceNodes", "mounts", "hooks")}


def config(job, command, edits, root_path):
    """The OCI configuration."""
    mounts = MOUNTS + list(disks()) + [bind(path) for path in job["binds"]]
    for one in edits["mounts"]:
        mounts.append({"destination": one["containerPath"], "source": one["hostPath"], "type": one.get("type") or "bind", "options": one["options"]})
    devices = [device(path) for path in job["devices"]] + [device(one.get("hostPath") or one["path"]) for one in edits["deviceNodes"]]
    allowed = [{"allow": False, "access": "rwm"}]
    allowed += [{"allow": True, "type": one["type"], "major": one["major"], "minor": one["minor"], "access": "rwm"} for one in devices]
    hooks = {}
    for one in edits["hooks"]:
        hooks.setdefault(one["hookName"], []).append({name: one[name] for name in ("path", "args", "env", "timeout") if one.get(name)})
    environment = dict(job["environment"], **dict(one.split("=", 1) for one in edits["env"]))
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0}, "args": command, "cwd": "/", "env": ["{}={}".format(*one) for one in environment.items()],
            "capabilities": {name: CAPABILITIES for name in ("bounding", "effective", "permitted")}, "noNewPrivileges": True,
        },
        "root": {"path": root_path},
        # Deeper mounts later, as runtimes sort them.
        "mounts": sorted(mounts, key=lambda one: one["destination"].rstrip("/").count("/")),
        "hooks": hooks,
        "linux": {"namespaces": [{"type": one} for one in ("pid", "mount", "ipc", "uts")], "devices": devices, "resources": {"devices": allowed}},
    }


def main(path, command):
    with open(path) as file:
        job = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no mount namespace: " + os.strerror(ctypes.get_errno()))
    mount(None, "/", None, PRIVATE | REC)
    edits = {name: [] for name in ("env", "deviceNodes", "mounts", "hooks")}
    if job["plugin"]:
        done = subprocess.run(job["plugin"], stdout=subprocess.PIPE)
        if done.returncode:
            return 1
        edits = edits_of(json.loads(done.stdout)["spec"])
    bundle = os.path.join(job["work"], "bundle")
    os.makedirs(bundle, exist_ok=True)
    with open(os.path.join(bundle, "config.json"), "w") as file:
        json.dump(config(job, command, edits, root(job["work"])), file)
    name = "first-contact-{}".format(os.getpid())
    return subprocess.call([*job["runc"], "--root", os.path.join(job["work"], "runc"), "run", "--bundle", bundle, name])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[3:]))
    except OSError as error:
        sys.stderr.write("container: {}\n".format(error))
        sys.exit(1)
