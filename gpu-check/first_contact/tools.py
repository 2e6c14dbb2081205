"""The tools that travel with the kit: strace and eu-stack with their own loader, and two small libraries.

Without them a failure has fewer stacks, and its evidence says so. Programs are looked for in the folder of tools (`pack` or
a root file system of Debian's packages), then in PATH.
"""

import glob
import os
import shutil
import subprocess

from vgpu_check import arch

NATIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
LOADER = arch.names().loader
FOLDERS = (("bin", "lib"), ("usr/bin", "usr/lib/" + arch.names().triplet))
# Programs that need no loader. One that starts itself again cannot be started through another loader.
STATIC, BY_ITSELF = "static", ("runc",)
LIBRARIES = ("stop", "injection")


class Tools:
    def __init__(self, folder, work):
        """`work`: where libraries are compiled that are not in the folder."""
        self.folder, self.work = folder, work

    def program(self, name):
        """The command that runs a tool; None if there is none."""
        static = os.path.join(self.folder, STATIC, name)
        if self.folder and os.path.exists(static):
            return [static]
        for programs, libraries in FOLDERS if self.folder and name not in BY_ITSELF else ():
            program, library = [os.path.join(self.folder, one) for one in (os.path.join(programs, name), libraries)]
            if os.path.exists(program) and os.path.exists(os.path.join(library, LOADER)):
                return [os.path.join(library, LOADER), "--library-path", library, program]
        found = shutil.which(name) or (name == "runc" and cached_runc())
        return [found] if found else None

    def library(self, name):
        """The path of a library; None where there is neither the library nor a compiler."""
        for folder in filter(None, (self.folder, self.work)):
            path = os.path.join(folder, name + ".so")
            if os.path.exists(path):
                return path
        return build(name, self.work)


def cached_runc():
    """The runc that the test cluster has built on this machine (`build/e2e.sh tools`); None if there is none."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    found = sorted(glob.glob(os.path.join(cache, "dra-driver-vgpu/tools/runc-*/runc")), key=os.path.getmtime)
    return found[-1] if found else None


def build(name, folder):
    source, to = os.path.join(NATIVE, name + ".c"), os.path.join(folder, name + ".so")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return None
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", to, source, "-ldl"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return to if done.returncode == 0 else None
