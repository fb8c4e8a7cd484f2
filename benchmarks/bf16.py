#!/usr/bin/env python3
"""Whole training runs in f32 and in bf16, ours and PyTorch's autocast, with several seeds: accuracies, and losses by epoch.

    python benchmarks/bf16.py --data DIR --peer PYTHON --peer-script train_ddp.py [--only stem cifar flowers] [--seeds 0 1 2]

Tasks: stem (ResNet-18 with the CIFAR stem on CIFAR-10), cifar (torchvision's ResNet-18 on CIFAR-10), flowers (ResNet-18 on
photographs of 128 pixels). DIR holds cifar-10-batches-bin and flower_photos. For a short run use fewer --epochs, --seeds and
tasks, and limit the training images of CIFAR-10 with --train; the test part is always complete.

Recipes. CIFAR-10: batch 128, RandomCrop(32, padding=4), flip, SGD 0.1 with momentum 0.9 and weight decay 5e-4, cosine annealing per
epoch to 0. Flowers: batch 16, RandomResizedCrop, flip, SGD 0.01, the rest as above; a fifth is held out, the same files on both
sides, by Python's random.sample. Each run: one process, two threads. A seed has a different meaning on each side. --variants are
settings of ours, such as precision=bf16,exact=true, with a column each; PyTorch runs without autocast and with bf16's, with
parameters in f32, channels_last.

Every run appends a line to --results, as in tutorials.py, whose code this script uses: a stopped script continues when it is
started again, and `--tables` only prints the tables. Needs only Python; PyTorch's runs need --peer and --peer-script.
"""
import argparse
import os
import shlex
import statistics
import struct
import sys
import zlib
from pathlib import Path

from tutorials import MEAN, STD, print_stamps, read, run_all, table

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]
TEST = "test_batch.bin"
RECORD = 1 + 3 * 32 * 32
TASKS = {
    "stem": "ResNet-18 with the CIFAR stem on CIFAR-10",
    "cifar": "torchvision's ResNet-18 on CIFAR-10",
    "flowers": "ResNet-18 on flowers, 128 x 128",
}


def png(record):
    """The image of a record of CIFAR-10's binary files, as PNG."""
    planes = [record[1 + 1024 * c : 1 + 1024 * (c + 1)] for c in range(3)]
    rows = b"".join(b"\0" + bytes(v for rgb in zip(*(p[y * 32 : y * 32 + 32] for p in planes)) for v in rgb) for y in range(32))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def prepare(source, folder, count):
    """Writes `count` training images, the first ones of each file, and all test images: binary files for us, PNGs for
    PyTorch."""
    if (folder / "done").exists():
        return
    ours = folder / "cifar-10-batches-bin"
    ours.mkdir(parents=True, exist_ok=True)
    (ours / "batches.meta.txt").write_bytes((source / "batches.meta.txt").read_bytes())
    number = 0
    for place, name in enumerate((*BATCHES, TEST)):
        data = (source / name).read_bytes()
        if name != TEST:
            share = count * (place + 1) // len(BATCHES) - count * place // len(BATCHES)
            data = data[: share * RECORD]
        (ours / name).write_bytes(data)
        for start in range(0, len(data), RECORD):
            record = data[start : start + RECORD]
            images = folder / "files" / ("test" if name == TEST else "train") / CLASSES[record[0]]
            images.mkdir(parents=True, exist_ok=True)
            (images / f"{number:05}.png").write_bytes(png(record))
            number += 1
    (folder / "done").touch()


def runs(a):
    """Every run, in the form of tutorials.py: (task, name, program, command, the folder it reads)."""
    images = a.cache / f"cifar10-{a.train}"
    binaries, files, photos = images / "cifar-10-batches-bin", images / "files", a.data / "flower_photos"
    sgd = ["--optimizer", "sgd", "--momentum", "0.9", "--weight-decay", "5e-4", "--schedule", "cosine-annealing"]
    end = [*sgd, "--devices", "cpu:1", "--threads", "2", "--loader-threads", "2", "--out", "RUN", "--json"]
    crop = ["--augment", "crop", "--crop-padding", "4", "--flip", "0.5", "--mean", MEAN, "--std", STD, "--lr", "0.1", "--batch", "128"]
    split = ["--split", "python", "--lr", "0.01", "--size", "128", "--batch", "16"]
    for task in a.only:
        epochs = a.epochs or (10 if task == "flowers" else 5)
        setup = f"{epochs} epochs" if task == "flowers" else f"{epochs} epochs of {a.train} images"
        for seed in a.seeds:
            for variant in a.variants:
                flags = [f"--{setting}" for setting in variant.split(",")]
                own = [a.enmasse, "train", *([photos, *split, "--split-seed", seed] if task == "flowers" else [binaries, *crop])]
                own += ["--model", "resnet18-cifar" if task == "stem" else "resnet18", "--epochs", epochs, "--seed", seed]
                yield task, f"{variant}, {setup}, seed {seed}", "enmasse", [*own, *flags, *end], binaries if task != "flowers" else photos
            for precision in ("f32", "bf16"):
                # The script's own recipe has the CIFAR stem; tutorials.py replaces it.
                start = [a.peer, Path(__file__).with_name("tutorials.py"), "--peer-child", a.peer_script, STD]
                peer = start if task == "cifar" else [a.peer, a.peer_script]
                peer += ["--model", "resnet18", "--epochs", epochs, "--seed", seed, "--threads", "2", "--precision", precision]
                if task == "flowers":
                    peer += ["--data", photos, "--recipe", "photos", "--size", "128", "--batch", "16"]
                else:
                    peer += ["--data", files, "--recipe", "cifar", "--batch", "128"]
                command = [*peer, "--channels-last", *shlex.split(a.peer_options)]
                yield task, f"{precision}, {setup}, seed {seed}", "PyTorch", command, photos if task == "flowers" else files


def mean(values, digits):
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def tables(results):
    tasks = {}
    for (task, name, who), record in results.items():
        variant, setup, _ = name.rsplit(", ", 2)
        tasks.setdefault(f"{TASKS[task]}, {setup}", {}).setdefault(f"{who} {variant}", []).append(record["epochs"])
    for title, variants in tasks.items():
        rows = []
        for variant, found in variants.items():
            last = [epochs[-1] for epochs in found]
            accuracy = mean([epoch["val_accuracy"] for epoch in last], 4)
            best = mean([max(epoch["val_accuracy"] for epoch in epochs) for epochs in found], 4)
            losses = [mean([epoch[key] for epoch in last], 4) for key in ("train_loss", "val_loss")]
            rate = statistics.median(epoch["images_per_second"] for epochs in found for epoch in epochs)
            rows.append((variant, len(found), accuracy, best, *losses, f"{rate:.0f}"))
        table(title, ("", "seeds", "accuracy", "best", "train loss", "validation loss", "images/s"), rows)
        length = max(len(epochs) for found in variants.values() for epochs in found)
        curves = [
            (number + 1, *(curve([epochs[number] for epochs in found if number < len(epochs)]) for found in variants.values()))
            for number in range(length)
        ]
        table(f"{title}: training / validation loss, means over seeds", ("epoch", *variants), curves)
    print_stamps(results)


def curve(epochs):
    """Both losses of one epoch, over seeds."""
    means = (statistics.mean(epoch[key] for epoch in epochs) for key in ("train_loss", "val_loss"))
    return " / ".join(f"{value:.4f}" for value in means) if epochs else ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="folder of the data sets")
    p.add_argument("--enmasse", default="target/release/enmasse", metavar="PROGRAM")
    p.add_argument("--peer", metavar="PYTHON", help="an interpreter with PyTorch and torchvision")
    p.add_argument("--peer-script", metavar="FILE", help="train_ddp.py, which trains with PyTorch")
    p.add_argument("--peer-options", default="", metavar="FLAGS", help='further flags for it, such as "--workers 1"')
    p.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    p.add_argument("--variants", nargs="+", default=["precision=f32", "precision=bf16"], metavar="SETTINGS", help="settings of enmasse, one variant each")
    p.add_argument("--seeds", nargs="+", default=["0", "1", "2"], metavar="SEED")
    p.add_argument("--epochs", type=int, metavar="N", help="default 5, for flowers 10")
    p.add_argument("--train", type=int, default=50_000, metavar="IMAGES", help="number of CIFAR-10 training images")
    p.add_argument("--cache", type=Path, default=Path("target/bf16"), metavar="DIR", help="folder for copies of CIFAR-10")
    p.add_argument("--results", type=Path, default=Path("target/bf16.jsonl"), metavar="FILE")
    p.add_argument("--tables", action="store_true", help="print the tables, run nothing")
    a = p.parse_args()
    a.enmasse = os.path.abspath(a.enmasse)
    results, failed = read(a.results), 0
    if not a.tables:
        if {"stem", "cifar"} & set(a.only):
            prepare(a.data / "cifar-10-batches-bin", a.cache / f"cifar10-{a.train}", a.train)
        failed = run_all(a, runs(a), results)
    tables(results)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
