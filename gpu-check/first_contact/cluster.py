"""Runs the demo on this machine with the parts from `pack --cluster`: a cluster of Kubernetes' own programs with this
project, and pods with shares.

    cluster.py FOLDER POD FOLDERS...      FOLDER: .kit-cluster; POD: a pod's file, for `vgpu-e2e demo --extra`; FOLDERS: this
                                          machine's folders that it needs; the node sees them at `on_the_node`

The parts are unpacked to tmpfs in a separate mount namespace, at the paths of the machine that packed them, so nothing
outlives this process; missing parent folders are created, and removed at the end. Failure modes: parts are missing: they
are named, status 77; a cluster cannot be created here: vgpu-e2e's reason, status 3; it is killed: vgpu-e2e ends the
cluster, and empty folders stay.
"""

import ctypes
import os
import signal
import subprocess
import sys

from first_contact import parts
from first_contact.container import BIND, NEW_MOUNTS, PRIVATE, REC, mount

# The exit status if parts are missing; no other program here uses it.
NO_PARTS = 77


def make_folders(path):
    """Creates a folder and its parents; returns the created ones, the deepest first."""
    made = []
    while not os.path.isdir(path):
        made.append(path)
        path = os.path.dirname(path)
    for one in reversed(made):
        os.mkdir(one)
    return made


def on_the_node(folder, needed):
    """{path on the node: folder of this machine}. A node has its own /opt and other folders."""
    found = parts.index(folder)
    below = found["folders"][1] if found else ""
    return {os.path.join(below, "machine", path.lstrip("/")): path for path in needed}


def in_namespace(folder, pod, needed):
    found = parts.index(folder)
    if found is None:
        sys.stderr.write("cluster: {} has no {}: first-contact.sh pack --cluster\n".format(folder, parts.INDEX))
        return NO_PARTS
    try:
        # Before the mounts, because the folder may be below one of them.
        files = parts.opened(folder, found)
    except parts.Missing as error:
        sys.stderr.write("cluster: {}\n".format(error))
        return NO_PARTS
    libc = ctypes.CDLL(None, use_errno=True)
    # The folders are created in the machine's own tree, because the mounts need them there.
    made = [one for path in found["folders"] for one in make_folders(path)]
    try:
        return child(libc, found, files, pod, on_the_node(folder, needed))
    finally:
        for path in sorted(made, key=len, reverse=True):
            try:
                os.rmdir(path)
            except OSError:
                pass


def child(libc, found, files, pod, binds):
    """Runs in a separate process, whose mounts end with it."""
    signals = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        try:
            os._exit(run(libc, found, files, pod, binds))
        except Exception as error:
            sys.stderr.write("cluster: {}\n".format(error))
        os._exit(1)
    for number in signals:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def run(libc, found, files, pod, binds):
    if libc.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no mount namespace: " + os.strerror(ctypes.get_errno()))
    mount(None, "/", None, PRIVATE | REC)
    # The mounts below may hide these folders; the descriptors still reach them.
    opened = {target: os.open(path, os.O_PATH) for target, path in binds.items()}
    with open(pod) as file:
        text = file.read()
    # Parents first, if one folder is below another.
    for path in sorted(found["folders"], key=len):
        os.makedirs(path, exist_ok=True)
        mount("tmpfs", path, "tmpfs", 0, "mode=755")
    parts.unpack(files, found["folders"])
    for target, source in opened.items():
        os.makedirs(target)
        mount("/proc/self/fd/{}".format(source), target, None, BIND | REC)
    # The same file where the program sees it.
    pod = os.path.join(found["folders"][1], "pod.json")
    with open(pod, "w") as file:
        file.write(text)
    os.chdir(found["folders"][0])
    environment = dict(os.environ, **found["environment"])
    # One process, so that a signal reaches vgpu-e2e, which ends the cluster.
    os.execvpe(found["program"], [found["program"], "demo", "--extra", pod], environment)


if __name__ == "__main__":
    sys.exit(in_namespace(os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]))
