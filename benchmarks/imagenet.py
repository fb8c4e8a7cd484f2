#!/usr/bin/env python3
"""ImageNet rehearsed: a data set of its size, with its names and layouts, from the first look to the end of an epoch.

    cargo build --release
    python benchmarks/imagenet.py --folder DIR [--share 0.01] [--only counts check] [--enmasse target/release/enmasse]

Draws 1,281,167 images for training and 50,000 for validation, in 1,000 classes (imagenet_drawn.py), as torchvision's folders, in Kaggle's layout and as
WebDataset's archives, unless DIR has them. --share draws a share of them, for a try. 14 GB of DIR's disk are needed, and 1.5 million files.
The parts, of which --only chooses some:

    counts  each layout is opened by a run: images and classes, seconds to the first step, memory
    pack    `data pack` of the archives, and the packed file opened as the others were
    check   `data check` and `data stats` of the packed file
    order   an epoch's samples on four ranks, and on two after a cut in its middle: each once, in the same batches
    load    images per second out of the packed file, on two threads
    epoch   a whole epoch of a small net on four ranks: accuracy, and memory of each rank
    resume  the same epoch, all of whose processes are killed in its middle, and which is resumed: the same weights
    claim   the tutorial's four GPUs beside `bench scaling --simulate`

The images are small, so the figures are of what depends on their number: decoding and computing of real ones take longer. Needs only Python.
"""
import argparse
import collections
import datetime
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import imagenet_drawn
from tutorials import ROOT, commit, hardware, table

MIB = 1 << 20
RANKS = 4
BATCH = 256
# What the tutorial says of ResNet-18: four GPUs, half an hour for an epoch. Its batch of 128 takes minutes here; a smaller one hides less of the sums.
CLAIM_GPUS, CLAIM_MINUTES, SIMULATED_BATCH = 4, 30, 32
NET = ["--model", "mlp", "--size", "64", "--batch", str(BATCH), "--devices", f"cpu:{RANKS}", "--epochs", "1", "--seed", "0", "--lr", "0.02"]


class Run:
    """A command with a line of JSON for each event, and the memory of its processes while it runs."""

    def __init__(self, command):
        self.began = time.monotonic()
        self.command = list(map(str, command))
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)
        # By process: proportional set sizes in bytes.
        self.memory = collections.defaultdict(list)
        self.ended = threading.Event()
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()

    def sample(self):
        """A process that shares pages with others has its part of them."""
        while not self.ended.wait(0.5):
            for process in [self.process.pid, *children(self.process.pid)]:
                try:
                    text = Path(f"/proc/{process}/smaps_rollup").read_text()
                except OSError:
                    continue
                sizes = dict(line.split(":", 1) for line in text.splitlines()[1:])
                self.memory[process].append(int(sizes["Pss"].split()[0]) << 10)

    def events(self):
        """Each event with the seconds since the start."""
        for line in self.process.stdout:
            yield time.monotonic() - self.began, json.loads(line)

    def kill(self):
        """Ends all its processes, which cannot do anything about it."""
        processes = [self.process.pid, *children(self.process.pid)]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self.end()

    def end(self):
        """The seconds and the memory that it took."""
        self.process.stdout.read()
        code = self.process.wait()
        self.seconds = time.monotonic() - self.began
        self.ended.set()
        self.sampler.join()
        return code

    def finish(self):
        """All its events; it must succeed."""
        found = [event for _, event in self.events()]
        if self.end():
            self.errors.seek(0)
            raise SystemExit(f"{' '.join(self.command)}: {self.errors.read()}")
        return found

    def peak(self):
        """MiB of all processes at their peaks."""
        return sum(map(max, self.memory.values())) / MIB


def children(process):
    """All processes below one."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        own = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return own + [inner for child in own for inner in children(child)]


def digest_of_tensors(path):
    """Of all values in a checkpoint: weights and the optimiser's state. Its header also has the run's folder."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    return hashlib.sha256(content[begin:]).hexdigest()[:16]


class Rehearsal:
    def __init__(self, arguments):
        self.enmasse = arguments.enmasse
        self.share = arguments.share
        self.folder = arguments.folder
        self.data = arguments.folder / "data"
        self.packed = arguments.folder / "imagenet.enmasse"
        self.images = [len(images) for images in imagenet_drawn.names(self.share).values()]

    def draw(self):
        if self.data.exists():
            return
        part = self.folder / "data.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        began = time.monotonic()
        imagenet_drawn.draw(part, self.share)
        part.rename(self.data)
        print(f"drawn in {time.monotonic() - began:.0f} s", flush=True)

    def out(self, name):
        run = self.folder / "runs" / name
        shutil.rmtree(run, ignore_errors=True)
        return run

    def opened(self, name, data):
        """A row: what a run on one rank says of the data, and when."""
        net = ["--model", "lenet", "--size", "64", "--devices", "cpu:1", "--max-steps", "1000", "--log-every", "1"]
        run = Run([self.enmasse, "train", data, *net, "--out", self.out("opened"), "--json"])
        for seconds, event in run.events():
            if event["event"] == "start":
                start, started = event, seconds
            if event["event"] == "step":
                break
        run.kill()
        found = [start["train_samples"], start["validation_samples"]]
        self.require(found == self.images and len(start["classes"]) == imagenet_drawn.CLASSES, f"{name} has {found}, and not {self.images}")
        cells = [f"{number:,}" for number in [*found, len(start["classes"])]]
        return [name, *cells, f"{started:.2f}", f"{seconds:.2f}", f"{run.peak():.0f}"]

    def require(self, holds, problem):
        if not holds:
            raise SystemExit(f"error: {problem}")

    def opened_table(self, layouts):
        rows = [self.opened(name, self.folder / data) for name, data in layouts.items()]
        heads = ["layout", "training", "validation", "classes", "event `start`, s", "first step, s", "memory, MiB"]
        table("Opened by a run", heads, rows)

    def counts(self):
        self.opened_table({"torchvision's folders": "data/folders", "Kaggle's": "data/kaggle", "archives": "data/shards"})

    def pack(self):
        self.packed.unlink(missing_ok=True)
        run = Run([self.enmasse, "data", "pack", self.data / "shards", self.packed, "--json"])
        packed = run.finish()[0]
        found = [packed["train"], packed["validation"]]
        self.require(found == self.images, f"the packed file has {found}, and not {self.images}")
        rate = sum(found) / run.seconds
        table("Packed", ["seconds", "images/s", "GB", "memory, MiB"], [[f"{run.seconds:.0f}", f"{rate:.0f}", f"{packed['bytes'] / 1e9:.2f}", f"{run.peak():.0f}"]])
        self.opened_table({"packed file": self.packed})

    def check(self):
        rows = []
        for command, *words in [["check"], ["stats", "--size", 64]]:
            run = Run([self.enmasse, "data", command, self.packed, *words, "--json"])
            found = run.finish()[0]
            if command == "check":
                self.require(not found["problems"], f"problems: {[problem['what'] for problem in found['problems']]}")
                counted = [part["samples"] for part in found["parts"]]
                said = ", ".join(f"{note['count']:,} {note['kind']}" for note in found["notes"])
            else:
                counted = [found["samples"]]
                said = f"mean {found['mean'][0]:.4f}, std {found['std'][0]:.4f} of red"
            self.require(counted == self.images[: len(counted)], f"`data {command}` counts {counted}")
            rows.append([f"`data {command}`", f"{run.seconds:.0f}", f"{sum(counted) / run.seconds:.0f}", f"{run.peak():.0f}", said])
        table("Checked", ["command", "seconds", "images/s", "memory, MiB", "it says"], rows)

    def loader_bench(self, *words):
        subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "enmasse-datasets", "--example", "loader_bench"], check=True, cwd=ROOT)
        program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples/loader_bench"
        run = Run([program, self.packed, *words])
        return run.finish(), run.peak()

    def order(self):
        # At the end of a global batch, near the middle.
        middle = self.images[0] // 2 // (RANKS * BATCH) * RANKS * BATCH
        cases = {
            "4 ranks": ["--ranks", 4, "--batch", BATCH],
            "4 ranks, until the middle": ["--ranks", 4, "--batch", BATCH, "--until", middle],
            "2 ranks, from the middle": ["--ranks", 2, "--batch", 2 * BATCH, "--from", middle],
        }
        found = {name: self.loader_bench("--order", "--size", 64, *words)[0][0] for name, words in cases.items()}
        whole, *halves = found.values()
        self.require(whole["once"] == whole["samples"] == self.images[0], f"an epoch has {whole['once']:,} samples once")
        self.require(all(half["once"] == half["samples"] for half in halves), "half an epoch has a sample twice")
        self.require(sum(half["digest"] for half in halves) % (1 << 64) == whole["digest"], "the epoch that was cut has other batches")
        rows = [[name, f"{one['samples']:,}", f"{one['once']:,}", f"{one['digest']:016x}", f"{one['images_per_second']:.0f}"] for name, one in found.items()]
        table("An epoch's order", ["", "samples", "exactly once", "digest", "images/s"], rows)

    def load(self):
        rows = []
        for size in [64, 224]:
            lines, peak = self.loader_bench("--size", size, "--threads", 2, "--passes", 1)
            rows += [[f"{one['transform']}, {size} px", f"{one['images_per_second']:.0f}", f"{one['processor_ms']:.3f}", f"{one['first_batch_ms']:.1f}", f"{peak:.0f}"] for one in lines]
        table("Loading from the packed file, two threads", ["transform", "images/s", "processor time, ms", "first batch, ms", "memory, MiB"], rows)

    def train(self, out, *words):
        return Run([self.enmasse, "train", self.packed, *NET, "--save-every", self.save_every(), "--log-every", max(1, self.save_every() // 20), "--out", out, "--json", *words])

    def save_every(self):
        """Ten checkpoints an epoch."""
        return max(1, self.images[0] // (RANKS * BATCH) // 10)

    def epoch(self):
        run = self.train(self.out("epoch"))
        events = run.finish()
        epoch = next(event for event in events if event["event"] == "epoch")
        done = next(event for event in events if event["event"] == "done")
        first = [f"{epoch['val_accuracy']:.4f}", f"{epoch['train_loss']:.3f}", f"{epoch['images_per_second']:.0f}", f"{epoch['data_wait']:.3f}", f"{done['seconds']:.0f}"]
        table("An epoch of an MLP of three layers, 64 px, 4 ranks", ["accuracy", "loss of training", "images/s", "wait for data", "seconds"], [first])
        rows = []
        for process, sizes in run.memory.items():
            if len(sizes) > 10:
                tenths = [sizes[len(sizes) * part // 100] / MIB for part in (10, 30, 50, 70, 90)]
                rows.append([len(rows), *(f"{size:.1f}" for size in tenths), f"{max(sizes) / MIB:.1f}"])
        table("Memory of each process over the run (PSS, MiB)", ["process", "10 %", "30 %", "50 %", "70 %", "90 %", "peak"], rows)

    def resume(self):
        whole = self.folder / "runs/epoch"
        self.require(whole.exists(), "the part `epoch` comes first")
        out = self.out("resume")
        run = self.train(out)
        for _, event in run.events():
            if event["event"] == "step" and event["samples"] >= self.images[0] // 2:
                break
        killed = event["step"]
        run.kill()
        run = self.train(out, "--resume")
        steps = []
        for seconds, event in run.events():
            if event["event"] == "step":
                steps.append((event["step"], seconds))
        self.require(run.end() == 0, "the resumed run failed")
        digests = [digest_of_tensors(folder / "checkpoints/last.safetensors") for folder in (whole, out)]
        print(f"\nkilled at step {killed:,} ({killed * RANKS * BATCH:,} samples), resumed at step {steps[0][0]:,} or less, whose line came after {steps[0][1]:.2f} s")
        print(f"weights of the whole epoch {digests[0]}, of the resumed one {digests[1]}")
        metrics = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]) for folder in (whole, out)]
        self.require(metrics[0]["train_loss"] == metrics[1]["train_loss"] and digests[0] == digests[1], "the resumed epoch ends with other weights")

    def claim(self):
        images = imagenet_drawn.TRAIN
        rate = images / CLAIM_MINUTES / 60
        words = ["--model", "resnet18", "--size", "224", "--batch", SIMULATED_BATCH, "--devices", "cpu:1", "--steps", 2, "--json"]
        run = Run([self.enmasse, "bench", "scaling", *words, "--simulate", f"nodes=1,gpus={CLAIM_GPUS},bus=12GB,link=25Gbit"])
        found = [row for row in run.finish() if not row["sync_bn"]]
        rows = [["the tutorial, 4 GPUs", f"{rate:.0f}", "", "", f"{CLAIM_MINUTES}"]]
        for row in found:
            name = "predicted" if row.get("simulated") else "measured"
            seconds = images / row["images_per_second"]
            rows.append([f"{name}, {row['devices']} x this machine", f"{row['images_per_second']:.1f}", f"{row['speed_up']:.3f}", f"{row['efficiency']:.3f}", f"{seconds / 60:.0f}"])
        table(f"ResNet-18, 224 px, batches of {SIMULATED_BATCH} a device", ["", "images/s", "speed-up", "efficiency", "an epoch, minutes"], rows)


PARTS = ["counts", "pack", "check", "order", "load", "epoch", "resume", "claim"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--folder", type=Path, required=True, help="where the data and the runs lie")
    p.add_argument("--share", type=float, default=1.0, help="of the images")
    p.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    p.add_argument("--enmasse", type=Path, default=Path("target/release/enmasse"))
    a = p.parse_args()
    a.enmasse = a.enmasse.absolute()
    print(f"{datetime.date.today()}, commit {commit()}; {hardware()}; {a.share:.4g} of ImageNet")
    rehearsal = Rehearsal(a)
    rehearsal.draw()
    for part in a.only:
        getattr(rehearsal, part)()


if __name__ == "__main__":
    main()
