#!/usr/bin/env python3
"""Write the lists of public names of libcuda and libnvidia-ml: those that libvgpu.so exports as well lie in
vgpu-core/shim/names, the others beside this file.

    shim/names/cuda.txt       every public name of libcuda.so.1, functions and objects
    shim/names/cuda-data.txt  those of cuda.txt that are objects, not functions (the debugger's)
    shim/names/nvml.txt       every public name of libnvidia-ml.so.1
    names/cuda-errors.txt     "code name" of each CUresult
    names/procaddress.txt     cuGetProcAddress: "base version default|stream export" a line;
                              a look-up gets the newest line whose version the caller allows

procaddress-graphics.txt has the same lines for OpenGL, EGL, VDPAU and the profiler. It is written by hand, from what
driver 535 answers (vgpu-core/loading/tests/real_files.rs compares).

The names are facts read from NVIDIA's headers of CUDA 11.8, 12.9 and 13.5, which pip fetches into a
temporary folder and which are never kept. Names that no header declares are in EXTRA_*, below; they
were read from the symbol tables of Debian's libcuda1 and libnvidia-ml1, release 535.

Needs: pip, gcc (as a preprocessor), network. Run it by hand when a new CUDA release appears.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

WHEELS = [
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-nvml-dev==13.5.37",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-nvml-dev-cu12==12.9.79",
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-nvml-dev-cu11==11.8.86",
]

EXTRA_CUDA = """
cuEGLApiInit cuMemGetAttribute cuMemGetAttribute_v2 cuProfilerInitialize cuProfilerStart cuProfilerStop
cudbgApiAttach cudbgApiDetach cudbgApiInit cudbgGetAPI cudbgGetAPIVersion cudbgMain
cudbgReportDriverApiError cudbgReportDriverInternalError
""".split()

EXTRA_CUDA_DATA = """
cudbgApiClientPid cudbgApiClientRevision cudbgAttachHandlerAvailable cudbgDebuggerCapabilities
cudbgDebuggerInitialized cudbgDetachSuspendedDevicesMask cudbgEnableIntegratedMemcheck
cudbgEnableLaunchBlocking cudbgEnablePreemptionDebugging cudbgInjectionPath cudbgIpcFlag
cudbgReportDriverApiErrorFlags cudbgReportedDriverApiErrorCode cudbgReportedDriverApiErrorFuncNameAddr
cudbgReportedDriverApiErrorFuncNameSize cudbgReportedDriverInternalErrorCode cudbgResumeForAttachDetach
cudbgRpcEnabled cudbgSessionId cudbgUseExternalDebugger
""".split()

# Functions of the header itself, over exported ones: no library has them.
INLINE_CUDA = {"cuGetProcAddress_ptsz", "cuGetProcAddress_v2_ptsz"}

EXTRA_NVML = "nvmlGetBlacklistDeviceCount nvmlGetBlacklistDeviceInfoByIndex nvmlInternalGetExportTable".split()

def preprocess(header, include, *defines):
    run = subprocess.run(
        ["gcc", "-E", "-P", *defines, "-I", str(include), "-"],
        input=f'#include "{header}"\n', capture_output=True, text=True, check=False,
    )
    return run.stdout if run.returncode == 0 else ""


def fetch(folder):
    for wheel in WHEELS:
        into = folder / re.sub(r"\W", "_", wheel)
        into.mkdir()
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", into, wheel], check=True
        )
        for file in into.glob("*.whl"):
            zipfile.ZipFile(file).extractall(into)


def suffix(export, base):
    """The variant's number: cuMemAlloc is 1, cuMemAlloc_v2 is 2."""
    rest = re.sub(r"_pt[sd][zs]$", "", export)[len(base):]
    return int(rest[2:]) if rest else 1


def lookups(typedefs, exports):
    lines, odd = [], []
    bases = {}
    for base, version, stream in typedefs:
        bases.setdefault((base, bool(stream)), set()).add(int(version))
    for (base, stream), versions in sorted(bases.items()):
        ending = r"_pt(sz|ds)" if stream else ""
        found = sorted(
            (e for e in exports if re.fullmatch(re.escape(base) + r"(_v\d+)?" + ending, e)),
            key=lambda e: suffix(e, base),
        )
        if len(found) != len(versions):
            odd.append((base, stream, sorted(versions), found))
        kind = "stream" if stream else "default"
        lines += [f"{base} {version} {kind} {export}" for version, export in zip(sorted(versions), found)]
    return lines, odd


def main():
    here = pathlib.Path(__file__).resolve().parent
    shared = here / "../../shim/names"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        fetch(folder)
        cuda, nvml, typedefs, errors = set(), set(), set(), set()
        for header in folder.rglob("cuda.h"):
            text = header.read_text(errors="replace")
            errors |= {(int(code), name) for name, code in re.findall(r"\b(CUDA_ERROR_\w+)\s*=\s*(\d+)", text)}
            for name in ("cuda.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h"):
                for define in ("-D__CUDA_API_VERSION_INTERNAL", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-DPLAIN"):
                    text = preprocess(name, header.parent, define)
                    cuda |= set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", text))
            for define in ("-D__CUDA_API_VERSION_INTERNAL", "-DPLAIN"):
                text = preprocess("cudaTypedefs.h", header.parent, define)
                typedefs |= set(re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds|)\)", text))
        for header in folder.rglob("nvml.h"):
            for define in ("-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-DPLAIN"):
                nvml |= set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", preprocess("nvml.h", header.parent, define)))
    lines, odd = lookups(typedefs, cuda)
    for entry in odd:
        print("check by hand:", *entry, file=sys.stderr)
    for file, content in {
        shared / "cuda.txt": sorted(cuda - INLINE_CUDA | set(EXTRA_CUDA) | set(EXTRA_CUDA_DATA)),
        shared / "cuda-data.txt": sorted(EXTRA_CUDA_DATA),
        shared / "nvml.txt": sorted(nvml | set(EXTRA_NVML)),
        here / "cuda-errors.txt": [f"{code} {name}" for code, name in sorted(errors)],
        here / "procaddress.txt": lines,
    }.items():
        file.write_text("\n".join(content) + "\n")
        print(f"{file.name}: {len(content)}")


if __name__ == "__main__":
    main()
