#!/usr/bin/env python3
"""Compiles the kernels of this folder, and writes docs/cuda-kernels.md: what they take of each kind of GPU.

    make_binaries.py            writes both
    make_binaries.py --check    compiles, and compares: status 1 if anything differs

`binaries` gets a cubin for each kind of GPU in CUBINS, and PTX, which a driver compiles for any other. The file `sha256` there
has the hashes of their contents: `gzip -dc kernels.ptx.gz | sha256sum` gives the same. The PTX's first line has a hash of the
sources, by which a test knows without any tool that they belong together.

Needs NVRTC, found like any shared library, and `ptxas` in PATH; no GPU. `.ci/cuda FOLDER` fetches both: set
LD_LIBRARY_PATH=FOLDER and PATH=FOLDER:$PATH."""
import ctypes
import gzip
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

SCRIPT = pathlib.Path(__file__).resolve()
HERE = SCRIPT.parent
BINARIES = HERE / "binaries"
DIGESTS = BINARIES / "sha256"
PTX = "kernels.ptx"
TABLE = HERE.parents[3] / "docs" / "cuda-kernels.md"
# The oldest GPU, for which PTX is compiled.
OLDEST = "75"
# A cubin runs on GPUs of its major version with the same or a later minor one: that of the A100 on the RTX 3090 and 4090 too.
CUBINS = {"80": "A100, RTX 3090, RTX 4090", "90": "H200", "100": "B200", "120": "RTX 5090"}
OPTIONS = ["-std=c++17", "-default-device", "-fmad=false"]
# The version of PTX that drivers since CUDA 12.0 read. NVRTC states its own, but nothing here needs more: ptxas tells.
VERSION = "8.0"


def sources(pattern):
    return sorted(HERE.glob(pattern))


def digest():
    """FNV-1a over names and texts: see `binaries.rs`, which computes the same."""
    value = 0xCBF29CE484222325
    for path in sorted(sources("*.cu") + sources("*.h") + [SCRIPT]):
        for byte in path.name.encode() + b"\0" + path.read_bytes() + b"\0":
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def unit():
    """All kernels as one text. Those of each file are in a namespace of their own."""
    lines = [f'#include "{path.name}"' for path in sources("*.h")]
    for path in sources("*.cu"):
        lines += [f"namespace {path.stem}_kernels {{", f'#include "{path.name}"', "}"]
    return "\n".join(lines) + "\n"


def nvrtc():
    for name in ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit("there is no NVRTC: no libnvrtc.so.12 or .13 on the loader's path")


def bytes_of(library, program, size, get):
    length = ctypes.c_size_t()
    getattr(library, size)(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    getattr(library, get)(program, buffer)
    return buffer.raw


def compiled(library, architecture, size, get):
    """What NVRTC makes for an architecture, and what its assembler reports of the kernels."""
    included = sources("*.h") + sources("*.cu")
    texts = (ctypes.c_char_p * len(included))(*[path.read_bytes() for path in included])
    names = (ctypes.c_char_p * len(included))(*[path.name.encode() for path in included])
    report = ["--ptxas-options=-v"] if architecture.startswith("sm_") else []
    options = [option.encode() for option in [f"-arch={architecture}", *OPTIONS, *report]]
    program = ctypes.c_void_p()
    result = library.nvrtcCreateProgram(ctypes.byref(program), unit().encode(), b"kernels.cu", len(included), texts, names)
    assert result == 0, f"nvrtcCreateProgram: {result}"
    result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = bytes_of(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
    if result != 0 or (log.strip() and not report):
        sys.exit(log)
    return bytes_of(library, program, size, get), log


def ptx(library):
    text = compiled(library, f"compute_{OLDEST}", "nvrtcGetPTXSize", "nvrtcGetPTX")[0].rstrip(b"\0").decode()
    text = re.sub(r"^\.version .*$", f".version {VERSION}", text, count=1, flags=re.MULTILINE)
    # Says which bytes of a load nobody uses, for tools that look for memory without contents. This version does not know it.
    text = re.sub(r'^\t\.pragma "used_bytes_mask .*\n', "", text, flags=re.MULTILINE)
    return f"// Sources {digest()}; made by {SCRIPT.name}.\n" + text.strip() + "\n"


def assembled(text):
    """What the assembler reports of the PTX on the oldest GPU."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = ["ptxas", "-v", f"-arch=sm_{OLDEST}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True)
    if report.returncode != 0:
        sys.exit(report.stderr)
    return report.stderr


def built():
    """The binaries by file, and the assembler's reports by compute capability."""
    library = nvrtc()
    with ThreadPoolExecutor() as pool:
        cubins = {
            capability: pool.submit(compiled, library, f"sm_{capability}", "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
            for capability in reversed(CUBINS)
        }
        text = ptx(library)
        reports = {OLDEST: assembled(text)} | {capability: cubins[capability].result()[1] for capability in CUBINS}
    binaries = {PTX: text.encode()} | {f"sm_{capability}.cubin": cubins[capability].result()[0] for capability in CUBINS}
    return binaries, reports


def resources(report):
    """Of each kernel: registers, bytes of shared memory, bytes that it spills."""
    found = {}
    for part in report.split("Compiling entry function ")[1:]:
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        shared = re.search(r"(\d+) bytes smem", part)
        spills = int(re.search(r"(\d+) bytes spill stores", part)[1])
        found[part.split("'")[1]] = registers, int(shared[1]) if shared else 0, spills
    return found


def table(reports):
    by_gpu = {capability: resources(report) for capability, report in reports.items()}
    names = {OLDEST: "T4"} | CUBINS
    lines = [
        "# CUDA kernels",
        "",
        "What each kernel takes: registers of a thread for each kind of GPU, bytes of memory that a block shares, and the most bytes of",
        "registers that a thread spills on any GPU. Blocks have 256 threads, so a GPU whose multiprocessors have 65536 registers holds 4",
        "blocks of 64 registers at a time. The program has machine code for all but the T4, whose driver compiles it from PTX.",
        f"`crates/backends/cuda/kernels/{SCRIPT.name}` writes this file.",
        "",
        "| kernel | " + " | ".join(f"{name} (sm_{capability})" for capability, name in names.items()) + " | shared | spills |",
        "|---|" + "--:|" * (len(names) + 2),
    ]
    for kernel in sorted(by_gpu[OLDEST]):
        rows = [by_gpu[capability][kernel] for capability in names]
        shared, spills = (max(row[i] for row in rows) for i in (1, 2))
        lines.append(f"| {kernel} | " + " | ".join(str(row[0]) for row in rows) + f" | {shared} | {spills} |")
    return "\n".join(lines) + "\n"


def release(text):
    return re.search(r"^// Cuda compilation tools, (.*)$", text, re.MULTILINE)[1]


def interface(text):
    """The kernels, and what they take."""
    return re.findall(r"^\.visible \.entry .*|^\t\.param .*", text, re.MULTILINE)


def kept(name):
    return gzip.decompress((BINARIES / f"{name}.gz").read_bytes())


def digests(binaries):
    return "".join(f"{hashlib.sha256(binary).hexdigest()}  {name}\n" for name, binary in binaries.items())


def check(binaries, reports):
    present = {name: kept(name) for name in binaries}
    if DIGESTS.read_text() != digests(present):
        sys.exit(f"{DIGESTS.name} has not the hashes of the binaries: run {SCRIPT.name}")
    text, text_kept = (of[PTX].decode() for of in (binaries, present))
    # Another release writes other code, which takes other registers.
    if release(text) == release(text_kept):
        if binaries != present or table(reports) != TABLE.read_text():
            sys.exit(f"the binaries or their table are not what the sources give: run {SCRIPT.name}")
    elif interface(text) != interface(text_kept):
        sys.exit(f"the PTX has not the kernels of the sources: run {SCRIPT.name}")


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    binaries, reports = built()
    if sys.argv[1:]:
        return check(binaries, reports)
    for name, binary in binaries.items():
        (BINARIES / f"{name}.gz").write_bytes(gzip.compress(binary, mtime=0))
    DIGESTS.write_text(digests(binaries))
    TABLE.write_text(table(reports))


main()
