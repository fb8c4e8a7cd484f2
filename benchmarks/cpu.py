#!/usr/bin/env python3
"""One step on the CPU, compared with PyTorch's, in turns, on synthetic data: forward, loss, backward, SGD with momentum and weight
decay.

    python benchmarks/cpu.py --peer PYTHON [--only train others one-thread forward avx2] [--rounds 2] [--shapes MODEL:SIZE:BATCH ...]

--setup DIR first creates a virtual environment with PyTorch and torchvision, and uses it as the peer. Tables: train (a training step
with --threads), one-thread, forward (evaluation), avx2 (both limited to AVX2), roofline (no peer), each in --precisions. "% of roofline"
is the least time by `plan print --roofline cpu`, whose limits are measured right afterwards, in percent of the median.

PyTorch runs with its best setting: contiguous and channels_last memory, eager and with torch.compile, then, with the best of these,
other settings of its memory (freed memory kept, 2 MB pages); each in a separate process. bf16 is its autocast. One pass over all
settings finds the best one. Then both programs run in turns, --rounds times each, ten steps after three to warm up (twelve if it
compiles), and the median of the rounds' medians counts. Nothing else should run.

Every figure is appended to --results, so a stopped script continues when it is started again; --tables only prints the tables.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from tutorials import commit, hardware, table

SHAPES = ["resnet34:224:16", "resnet34:224:32", "resnet18:224:16", "resnet50:224:16", "resnet18-cifar:32:128", "resnet34:32:128"]
OTHERS = ["efficientnet_lite0:224:16", "efficientnet_b0:224:16", "convnext_tiny:224:16", "vit_small_patch16_224:224:16"]
OTHERS += ["mobilenet_v2:224:16", "resnext50_32x4d:224:8", "vgg11:224:16", "alexnet:224:16", "resnet18:64:32", "resnet50:96:8", "resnet18:224:1"]
TITLES = {
    "train": "Training step",
    "others": "Training step of other shapes",
    "one-thread": "Training step, one thread",
    "forward": "Forward pass in evaluation",
    "avx2": "Training step with AVX2 alone",
    "roofline": "Training step against the limits of this machine",
}
MAIN = ["resnet34:224:16", "resnet50:224:16", "mobilenet_v2:224:16", *OTHERS[:4]]
VERSIONS = ["torch==2.13.0", "torchvision==0.28.0", "timm==1.0.31"]
SETTINGS = ["contiguous", "channels_last", "contiguous compile", "channels_last compile"]
# By default glibc returns large tensors to the kernel after each step, and faults them in again at the next one.
# timm's names of models that have other ones here.
TIMM = {"efficientnet_lite0": "tf_efficientnet_lite0"}
MEMORY = {
    "keep": {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"},
    "huge": {"THP_MEM_ALLOC_ENABLE": "1"},
}
MEMORY["keep huge"] = {**MEMORY["keep"], **MEMORY["huge"]}


def torch_step(shape, precision, threads, setting, forward):
    """Runs in the child process, and prints a line of JSON."""
    import resource
    import time

    import torch
    import torchvision

    name, size, batch = shape.split(":")
    size, batch = int(size), int(batch)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    classes = 10 if size <= 64 else 1000
    plain = name.removesuffix("-cifar")
    if hasattr(torchvision.models, plain):
        net = getattr(torchvision.models, plain)(num_classes=classes)
    else:
        import timm

        net = timm.create_model(TIMM.get(plain, plain), num_classes=classes)
    if name.endswith("-cifar"):
        net.conv1, net.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    net.train(not forward)
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
    if "channels_last" in setting:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    run = torch.compile(net) if "compile" in setting else net
    times, warm = [], 12 if "compile" in setting else 3
    for _ in range(warm + 10):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if forward:
                with torch.inference_mode():
                    run(x).sum().item()
            else:
                loss = torch.nn.functional.cross_entropy(run(x), y)
        if not forward:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"images_per_second": batch / statistics.median(times[warm:]), "peak_rss_bytes": peak}))


def run(command, variables):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no word"]
        print(f"  {reason[0]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


class Case:
    """One row of a table, and how each program runs it."""

    def __init__(self, a, kind, shape, precision):
        self.a, self.kind, self.shape, self.precision = a, kind, shape, precision
        self.threads = 1 if kind == "one-thread" else a.threads
        self.forward = kind == "forward"

    def settings(self):
        model, size, batch = self.shape.split(":")
        settings = ["--model", model, "--size", size, "--batch", batch, "--precision", self.precision, "--threads", self.threads]
        return settings + ["--eval"] * self.forward + ["--isa", "avx2"] * (self.kind == "avx2")

    def ours(self):
        return run([self.a.enmasse, "bench", "step", *self.settings(), "--json"], {})

    def roofline(self):
        """What the step moves and multiplies, and its least time."""
        command = [str(part) for part in (self.a.enmasse, "plan", "print", "--roofline", "cpu", *self.settings())]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(f"  {text.splitlines()[-1]}", file=sys.stderr)
        number = lambda pattern: float(re.search(pattern, text).group(1))
        return {"mb": number(r"moves ([\d.]+) MB"), "gflop": number(r"multiplies ([\d.]+) GFLOP"), "ms": number(r"at least ([\d.]+) ms")}

    def peer(self, setting):
        layout = setting.partition(" + ")
        command = [self.a.peer, __file__, "--torch-step", self.shape, self.precision, self.threads, layout[0], int(self.forward)]
        variables = {"OMP_NUM_THREADS": str(self.threads), **MEMORY.get(layout[2], {})}
        if self.kind == "avx2":
            variables |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
        return run(command, variables)

    def best_setting(self):
        """PyTorch's fastest setting, by one run of each."""
        rate = {setting: (self.peer(setting) or {}).get("images_per_second", 0) for setting in self.a.settings}
        best = max(rate, key=rate.get)
        for memory in self.a.memory:
            setting = f"{best.partition(' + ')[0]} + {memory}"
            rate[setting] = (self.peer(setting) or {}).get("images_per_second", 0)
        return max(rate, key=rate.get)

    def measure(self):
        sides = {"enmasse": self.ours}
        setting = None
        if self.kind != "roofline":
            setting = self.best_setting()
            sides["torch"] = lambda: self.peer(setting)
        rounds = [{name: side() for name, side in sides.items()} for _ in range(self.a.rounds)]
        if not all(all(found.values()) for found in rounds):
            return None
        middle = lambda name, key: statistics.median(found[name][key] for found in rounds)
        record = {"run": [self.kind, self.shape, self.precision], "setting": setting, "commit": commit(), "hardware": hardware()}
        record["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        for name in sides:
            record[name] = {key: middle(name, key) for key in ("images_per_second", "peak_rss_bytes")}
        record |= {key: middle("enmasse", key) for key in ("share_of_peak", "gflops", "median_ms")}
        return record | {"roofline": self.roofline()}


def cases(a):
    for kind in a.only:
        for shape in a.shapes or {"others": OTHERS, "roofline": MAIN}.get(kind, SHAPES):
            for precision in a.precisions:
                yield Case(a, kind, shape, precision)


def share_of_roofline(record):
    """In percent; nothing if the record was made before there was a roofline."""
    return f"{100 * record['roofline']['ms'] / record['median_ms']:.0f}" if "roofline" in record else ""


def tables(results):
    columns = ("model, size, batch", "precision", "enmasse images/s", "% of peak", "% of roofline")
    columns += ("PyTorch images/s", "its setting", "ratio", "memory, MiB", "of PyTorch's")
    limits = ("model, size, batch", "precision", "GB moved", "GFLOP", "least ms", "median ms", "% of roofline")
    for kind, title in TITLES.items():
        rows = []
        for (of, shape, precision), record in results.items():
            if of != kind:
                continue
            if kind == "roofline":
                least = record["roofline"]
                work = (f"{least['mb'] / 1e3:.2f}", f"{least['gflop']:.0f}", f"{least['ms']:.0f}")
                rows.append((shape.replace(":", ", "), precision, *work, f"{record['median_ms']:.0f}", share_of_roofline(record)))
                continue
            ours, peer = record["enmasse"], record["torch"]
            rate, memory = (ours[key] / peer[key] for key in ("images_per_second", "peak_rss_bytes"))
            shares = (f"{100 * record['share_of_peak']:.0f}", share_of_roofline(record))
            own = (shape.replace(":", ", "), precision, f"{ours['images_per_second']:.1f}", *shares)
            theirs = (f"{peer['images_per_second']:.1f}", record["setting"], f"{rate:.2f}")
            rows.append((*own, *theirs, f"{ours['peak_rss_bytes'] / 2**20:.0f}", f"{memory:.2f}"))
        if rows:
            table(title, limits if kind == "roofline" else columns, rows)
    stamps = sorted({f"{r['date']}, commit {r['commit']}, {r['hardware']}" for r in results.values()})
    print("\n" + "\n".join(f"- {stamp}" for stamp in stamps))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--enmasse", default="target/release/enmasse", metavar="PROGRAM")
    p.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="an interpreter with PyTorch and torchvision")
    p.add_argument("--setup", type=Path, metavar="DIR", help="create such an interpreter in DIR")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES), help="tables to measure")
    p.add_argument("--precisions", nargs="+", choices=("f32", "bf16"), default=["f32", "bf16"])
    p.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS, help="PyTorch settings to choose the best from")
    p.add_argument("--memory", nargs="*", choices=MEMORY, default=list(MEMORY), help="PyTorch memory settings to try")
    p.add_argument("--results", type=Path, default=Path("target/cpu.jsonl"), metavar="FILE")
    p.add_argument("--tables", action="store_true", help="print the tables, run nothing")
    p.add_argument("--torch-step", nargs=5, help=argparse.SUPPRESS)
    p.add_argument("--shapes", nargs="+", metavar="MODEL:SIZE:BATCH", help="shapes instead of those of each table")
    a = p.parse_args()
    if a.torch_step:
        shape, precision, threads, setting, forward = a.torch_step
        return torch_step(shape, precision, int(threads), setting, forward == "1")
    if a.setup:
        subprocess.run([sys.executable, "-m", "venv", a.setup], check=True)
        subprocess.run([a.setup / "bin/python", "-m", "pip", "install", *VERSIONS], check=True)
        a.peer = a.setup / "bin/python"
    lines = a.results.read_text().splitlines() if a.results.exists() else []
    results = {tuple(record["run"]): record for record in map(json.loads, lines)}
    for case in [] if a.tables else cases(a):
        key = (case.kind, case.shape, case.precision)
        if key in results:
            continue
        print(f"{', '.join(key)}", file=sys.stderr, flush=True)
        if record := case.measure():
            results[key] = record
            with a.results.open("a") as file:
                print(json.dumps(record), file=file)
    tables(results)


if __name__ == "__main__":
    main()
