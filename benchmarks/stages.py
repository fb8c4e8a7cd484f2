"""The share of time that two stages of a model wait for each other, by the number of micro-batches, beside the bubble of equal stages.

    cargo build --release && python benchmarks/stages.py
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import zlib


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def images(folder, count, size):
    """Noise in two classes, as PNG files."""
    noise, header = random.Random(0), struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    for name in ["a", "b"]:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            rows = zlib.compress(b"".join(b"\0" + noise.randbytes(3 * size) for _ in range(size)), 1)
            png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
            (folder / name / f"{number}.png").write_bytes(png)


def epoch(binary, data, out, arguments):
    command = [binary, "train", data, "--json", "--out", out, "--epochs", "1", "--threads", "1", *arguments]
    lines = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in lines.splitlines()]
    return next(line for line in found if line.get("event") == "epoch")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--binary", default="target/release/enmasse")
    options.add_argument("--batch", type=int, default=64, help="samples of a step")
    options.add_argument("--size", type=int, default=64)
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    options.add_argument("--stages", default="layer3")
    options = options.parse_args()
    model = ["--model", "resnet18", "--size", options.size, "--max-steps", options.steps]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "data")
        images(data, options.batch * options.steps // 2, options.size)
        one = epoch(options.binary, data, f"{folder}/one", [*model, "--devices", "cpu:1", "--batch", options.batch])
        print(f"one rank: {one['images_per_second']:.1f} images/s")
        print("| micro-batches | schedule | waited, stage 0 | stage 1 | mean | (p-1)/(m+p-1) | images/s |")
        print("|---|---|---|---|---|---|---|")
        for count in options.micro_batches:
            for schedule in ["gpipe", "1f1b"]:
                arguments = ["--devices", "cpu:2", "--stages", options.stages, "--schedule-stages", schedule]
                arguments += ["--micro-batches", count, "--batch", options.batch // count]
                found = epoch(options.binary, data, f"{folder}/{schedule}{count}", [*model, *arguments])
                waits = found["ranks"]["rank_wait"]
                mean, bubble = sum(waits) / 2, 1 / (count + 1)
                cells = [f"{share:.0%}" for share in [*waits, mean, bubble]]
                print(f"| {count} | {schedule} | {' | '.join(cells)} | {found['images_per_second']:.1f} |")


if __name__ == "__main__":
    main()
