#!/usr/bin/env python3
"""The memory that runs state before their first step, and their peak: every model of the zoo, and runs with other settings.

    python benchmarks/memory.py [--enmasse target/release/enmasse] [--batch 8] [--sizes 64 0] [--models vgg11 resnet34]

Each run trains two steps on images made here, validates, and writes its checkpoints. What is stated is `memory_bytes` of the event
`start` times the number of ranks (which host as many shards each), the peak is `peak_rss_bytes` of `done` (VmHWM, the sum over ranks). Size 0 is the model's own.
Nothing else needs to be idle.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import zlib

# Runs of one model with other settings.
VARIANTS = [
    "--optimizer adamw",
    "--ema 0.99",
    "--momentum 0",
    "--precision bf16",
    "--recompute",
    "--recompute 80%",
    "--recompute 60%",
    "--accumulate 3",
    "--shards 4 --sync-bn",
    "--freeze-layers",
    # A whole epoch, which alone has an export.
    "--keep 2 --export-every 1 --max-steps 8",
    "--devices cpu:2",
    "--devices cpu:2 --ranks thread",
    "--devices cpu:2 --shards 4",
    "--loader-threads 4",
]
MIB = 1 << 20


def png(path, size):
    """An image of noise, which decoders cannot shorten."""
    rows = b"".join(b"\0" + random.randbytes(3 * size) for _ in range(size))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def images(folder, count):
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            png(folder / kind / f"{number}.png", 256)


def run(program, data, folder, words):
    """The start of a run, the bytes that it stated, and its peak."""
    out = tempfile.mkdtemp(dir=folder)
    command = [program, "train", str(data), "--epochs", "1", "--json", "--out", f"{out}/run", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events = {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}
    subprocess.run(["rm", "-r", out], check=True)
    if "done" not in events:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    start = events["start"]
    return start, start["memory_bytes"] * start["world_size"], events["done"]["peak_rss_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enmasse", default="target/release/enmasse")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 0])
    parser.add_argument("--models", nargs="*", help="default: all")
    parser.add_argument("--variants-of", default="resnet34")
    parser.add_argument("--variants-size", default="96")
    a = parser.parse_args()
    listed = subprocess.run([a.enmasse, "models", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    zoo = {entry["model"]: entry["size"] for entry in map(json.loads, listed.stdout.splitlines())}
    models = zoo if a.models is None else a.models
    sizes = {(model, size or zoo[model]) for model in models for size in a.sizes}
    cases = [["--model", model, "--size", str(size)] for model, size in sorted(sizes, key=lambda c: (list(zoo).index(c[0]), c[1]))]
    own = ["--model", a.variants_of, "--size", a.variants_size]
    cases += [own + words.split() for words in VARIANTS]
    print("| run | stated, MiB | peak, MiB | peak ÷ stated | activations, weights, batches, base |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        images(folder / "data", 5 * a.batch)
        for words in cases:
            usual = [] if "--devices" in words else ["--devices", "cpu:1"]
            usual += [] if "--max-steps" in words else ["--max-steps", "2"]
            start, stated, peak = run(a.enmasse, folder / "data", folder, ["--batch", str(a.batch), *usual, *words])
            parts = ", ".join(f"{bytes / MIB:.0f}" for bytes in start["memory"].values())
            text = " ".join(words).replace("--model ", "").replace("--size ", "")
            print(f"| {text} | {stated / MIB:.0f} | {peak / MIB:.0f} | {peak / stated:.3f} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
