#!/usr/bin/env python3
"""Compiles the kernels of this folder to PTX, and writes docs/cuda-kernels.md: what they take of each kind of GPU.

    make_ptx.py            writes both
    make_ptx.py --check    compiles, and compares: status 1 if anything differs

The text is kept as kernels.ptx.gz, and its SHA-256 beside it: `gzip -dc kernels.ptx.gz | sha256sum` gives the same.
Its first line has a hash of the sources, by which a test knows without any tool that they belong together.

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
PTX = HERE / "kernels.ptx.gz"
DIGEST = HERE / "kernels.ptx.sha256"
TABLE = HERE.parents[3] / "docs" / "cuda-kernels.md"
# The oldest GPU. Drivers compile PTX for any newer one.
OPTIONS = ["-arch=compute_75", "-std=c++17", "-default-device", "-fmad=false"]
# The version of PTX that drivers since CUDA 12.0 read. NVRTC states its own, but nothing here needs more: ptxas tells.
VERSION = "8.0"
GPUS = {"75": "T4", "80": "A100", "86": "RTX 3090", "89": "RTX 4090", "90": "H200", "100": "B200", "120": "RTX 5090"}


def sources(pattern):
    return sorted(HERE.glob(pattern))


def digest():
    """FNV-1a over names and texts: see `ptx.rs`, which computes the same."""
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


def text_of(library, program, size, get):
    length = ctypes.c_size_t()
    getattr(library, size)(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    getattr(library, get)(program, buffer)
    return buffer.value.decode()


def compiled(library):
    included = sources("*.h") + sources("*.cu")
    texts = (ctypes.c_char_p * len(included))(*[path.read_bytes() for path in included])
    names = (ctypes.c_char_p * len(included))(*[path.name.encode() for path in included])
    options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
    program = ctypes.c_void_p()
    result = library.nvrtcCreateProgram(ctypes.byref(program), unit().encode(), b"kernels.cu", len(included), texts, names)
    assert result == 0, f"nvrtcCreateProgram: {result}"
    result = library.nvrtcCompileProgram(program, len(OPTIONS), options)
    log = text_of(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
    if result != 0 or log.strip():
        sys.exit(log)
    ptx = text_of(library, program, "nvrtcGetPTXSize", "nvrtcGetPTX")
    ptx = re.sub(r"^\.version .*$", f".version {VERSION}", ptx, count=1, flags=re.MULTILINE)
    return f"// Sources {digest()}; made by make_ptx.py.\n" + ptx.strip() + "\n"


def resources(capability, ptx):
    """Of each kernel: registers, bytes of shared memory, bytes that it spills."""
    command = ["ptxas", "-v", f"-arch=sm_{capability}", ptx, "-o", "/dev/null"]
    report = subprocess.run(command, capture_output=True, text=True)
    if report.returncode != 0:
        sys.exit(report.stderr)
    found = {}
    for part in report.stderr.split("Compiling entry function ")[1:]:
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        shared = re.search(r"(\d+) bytes smem", part)
        found[part.split("'")[1]] = registers, int(shared[1]) if shared else 0, int(re.search(r"(\d+) bytes spill stores", part)[1])
    return found


def table(text):
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file, ThreadPoolExecutor() as pool:
        file.write(text)
        file.flush()
        by_gpu = dict(zip(GPUS, pool.map(lambda capability: resources(capability, file.name), GPUS)))
    lines = [
        "# CUDA kernels",
        "",
        "What `ptxas` makes of each kernel: registers of a thread for each kind of GPU, bytes of memory that a block shares, and the",
        "most bytes of registers that a thread spills on any GPU. Blocks have 256 threads, so a GPU whose multiprocessors have 65536",
        "registers holds 4 blocks of 64 registers at a time. `crates/backends/cuda/kernels/make_ptx.py` writes this file.",
        "",
        "| kernel | " + " | ".join(f"{name} (sm_{capability})" for capability, name in GPUS.items()) + " | shared | spills |",
        "|---|" + "--:|" * (len(GPUS) + 2),
    ]
    for kernel in sorted(by_gpu["75"]):
        rows = [by_gpu[capability][kernel] for capability in GPUS]
        shared, spills = (max(row[i] for row in rows) for i in (1, 2))
        lines.append(f"| {kernel} | " + " | ".join(str(row[0]) for row in rows) + f" | {shared} | {spills} |")
    return "\n".join(lines) + "\n"


def release(text):
    return re.search(r"^// Cuda compilation tools, (.*)$", text, re.MULTILINE)[1]


def interface(text):
    """The kernels, and what they take."""
    return re.findall(r"^\.visible \.entry .*|^\t\.param .*", text, re.MULTILINE)


def kept():
    return gzip.decompress(PTX.read_bytes()).decode()


def digest_line(text):
    return f"{hashlib.sha256(text.encode()).hexdigest()}  kernels.ptx\n"


def main():
    built = compiled(nvrtc())
    if sys.argv[1:] == ["--check"]:
        if DIGEST.read_text() != digest_line(kept()):
            sys.exit("kernels.ptx.sha256 is not the hash of the text in kernels.ptx.gz: run make_ptx.py")
        # Another release writes another text, and other registers.
        if release(built) == release(kept()):
            if built != kept() or table(built) != TABLE.read_text():
                sys.exit("kernels.ptx.gz or its table is not what the sources give: run make_ptx.py")
        elif interface(built) != interface(kept()):
            sys.exit("kernels.ptx.gz has not the kernels of the sources: run make_ptx.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PTX.write_bytes(gzip.compress(built.encode(), mtime=0))
        DIGEST.write_text(digest_line(built))
        TABLE.write_text(table(built))


main()
