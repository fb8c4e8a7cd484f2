#!/usr/bin/env python3
"""The runs of the tutorials, on this machine: tables of losses, accuracies and seconds, with the tutorials' and PyTorch's.

    python benchmarks/tutorials.py --data DIR [--peer PYTHON --peer-script train_ddp.py] [--size 96] [--only flowers mnist]

Groups: colossalai (ResNet-34 on CIFAR-10, two epochs), flowers (ResNet-34 on photographs: one rank and two, spawned and launched,
with and without SyncBatchNorm), freeze (training the classifier alone), mnist (LeNet), cifar (ResNet-18, five epochs, several
seeds, with PyTorch's). DIR holds those that are available of flower_photos, cifar-10-batches-bin, mnist, and cifar10 with the
images of cifar-10-batches-bin as files in train/CLASS and test/CLASS, which PyTorch reads.

Every run appends one line to --results, with its command, date, commit and hardware. A run with a line is not repeated, so a stopped
script continues when it is started again. The tables are made from those lines: `--tables` prints them and runs nothing. Needs only
Python; PyTorch's runs need --peer, an interpreter with PyTorch and torchvision, and --peer-script, the training script that it runs.
Nothing else should run at the same time.

The recipes are the flags below. --peer-script has them as its recipe "cifar": RandomCrop(32, padding=4), flip, Normalize, the last
incomplete batch left out, SGD with momentum 0.9 without Nesterov, weight decay on all parameters, cosine annealing per epoch to 0,
evaluation of the unchanged images, each once. Only its stem for CIFAR is replaced here: both sides train torchvision's model,
from torchvision's initial distribution. Seeds have a different meaning on each side.
"""
import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEAN, STD, TUTORIAL_STD = "0.4914,0.4822,0.4465", "0.2470,0.2435,0.2616", "0.2023,0.1994,0.2010"

# The tutorial's output: seconds of ResNet-34, flowers, ten epochs, batch 16 per GPU (TITAN Xp).
FLOWERS_TUTORIAL = {"1 GPU": 141.53, "launch, 5 GPUs": 84.19, "torchrun, 6 GPUs": 77.93, "spawn, 5 GPUs": 81.20}


def recipes(a):
    """Every run: (group, name, program, command, the folder it reads). `RUN` stands for a fresh folder."""
    train = [a.enmasse, "train"]
    crop = ["--augment", "crop", "--crop-padding", "4", "--flip", "0.5", "--mean", MEAN]
    sgd = ["--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.1", "--weight-decay", "5e-4", "--schedule", "cosine-annealing"]
    end = ["--out", "RUN", "--json"]
    cifar, files = a.data / "cifar-10-batches-bin", a.data / "cifar10"

    def peer(std, *options):
        child = [a.peer, __file__, "--peer-child", a.peer_script, std, "--data", files, "--recipe", "cifar", "--threads", "2"]
        return [*child, *options, *shlex.split(a.peer_options)]

    colossalai = [*train, cifar, "--model", "resnet34", *crop, "--std", TUTORIAL_STD, *sgd, "--epochs", "2"]
    for name, share in (
        ("1 rank x 128", ["--batch", "128", "--devices", "cpu:1", "--threads", "2"]),
        ("2 ranks x 64", ["--batch", "64", "--devices", "cpu:2", "--threads", "1"]),
        ("2 ranks x 128", ["--batch", "128", "--devices", "cpu:2", "--threads", "1"]),
    ):
        yield "colossalai", name, "enmasse", [*colossalai, *share, *end], cifar
    options = ["--model", "resnet34", "--batch", "128", "--epochs", "2"]
    yield "colossalai", "1 process x 128", "PyTorch", peer(TUTORIAL_STD, *options), files

    photos = a.data / "flower_photos"
    flowers = [*train, "--data-path", photos, "--num_classes", "5", "--model", "resnet34", "--size", str(a.size), "--batch-size", "16"]
    flowers += ["--lr", "0.001", "--lrf", "0.1", "--weight-decay", "0.005"]
    run = ["--epochs", "10", "--scale-lr", "linear", "--threads", "1", "--loader-threads", "1"]
    yield "flowers", f"1 rank, size {a.size}", "enmasse", [*flowers, *run, "--devices", "cpu:1", "--syncBN", "False", *end], photos
    for sync in ("False", "True"):
        norm = ["--syncBN", sync]
        spawned = [*flowers, *run, "--devices", "cpu:2", *norm, *end]
        launched = [a.enmasse, "launch", "-n", "2", "--", *flowers, *run, *norm, *end]
        yield "flowers", f"2 ranks, spawned, syncBN {sync}, size {a.size}", "enmasse", spawned, photos
        yield "flowers", f"2 ranks, launched, syncBN {sync}, size {a.size}", "enmasse", launched, photos

    whole = ["--devices", "cpu:1", "--threads", "2"]
    small = [*train, cifar, "--model", "resnet34", "--batch", "128", "--lr", "0.1", "--epochs", "1"]
    for frozen in ("False", "True"):
        layers = ["--freeze-layers", frozen]
        yield "freeze", f"flowers, size {a.size}, {frozen}", "enmasse", [*flowers, "--epochs", "3", *whole, *layers, *end], photos
        yield "freeze", f"CIFAR-10, size 32, {frozen}", "enmasse", [*small, *whole, *layers, *end], cifar

    mnist = [*train, a.data / "mnist", "--model", "lenet", "--epochs", "5", "--batch", "32", "--devices", "cpu:2", "--lr", "0.03"]
    yield "mnist", "lenet, 2 ranks x 32", "enmasse", [*mnist, *end], a.data / "mnist"

    resnet = [*train, cifar, "--model", "resnet18", *crop, "--std", STD, *sgd, "--batch", "128", *whole, "--epochs", "5"]
    for seed in a.seeds:
        yield "cifar", f"seed {seed}", "enmasse", [*resnet, "--seed", str(seed), *end], cifar
        options = ["--model", "resnet18", "--batch", "128", "--epochs", "5", "--seed", str(seed)]
        yield "cifar", f"seed {seed}", "PyTorch", peer(STD, *options), files


def peer_child(script, std, *arguments):
    """Inside --peer: runs the training script with torchvision's stem, and this deviation."""
    sys.path.insert(0, str(Path(script).resolve().parent))
    sys.argv = [script, *arguments]
    import train_ddp

    build = train_ddp.build_model
    train_ddp.build_model = lambda name, classes: build(name.removesuffix("-cifar"), classes)
    train_ddp.RECIPES["cifar"]["std"] = tuple(map(float, std.split(",")))
    train_ddp.main()


def hardware():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    widest = next((name for name in ("amx_bf16", "avx512f", "avx2") if name in facts.get("flags", "").split()), "baseline")
    name = facts.get("model name", platform.machine())
    return f"{os.cpu_count()} cores of {name} (family {facts.get('cpu family', '?')}, {widest})"


def commit():
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True).returncode
    return head + ("-changed" if changed else "")


def execute(command):
    """(epoch records, seconds of the whole process); raises with the end of standard error if the run failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(part) if part != "RUN" else os.path.join(folder, "run") for part in command]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-2000:]}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    epochs = [record for record in records if record["event"] == "epoch"]
    if not epochs:
        raise RuntimeError("it printed no epoch")
    return epochs, seconds


def read(path):
    if not path.exists():
        return {}
    # If a run has two lines, the last one counts.
    return {tuple(record["run"]): record for record in map(json.loads, path.read_text().splitlines())}


def run_all(a, runs, results):
    """Runs every run without a result; returns the number of failures."""
    failed = 0
    for group, name, who, command, folder in runs:
        if (group, name, who) in results:
            continue
        missing = [part for part in (folder, *([a.peer, a.peer_script] if who == "PyTorch" else [])) if not part or not Path(part).exists()]
        if missing:
            reason = ", ".join(str(part) if part else "--peer or --peer-script" for part in missing)
            print(f"{group}, {name}, {who}: left out, there is no {reason}", file=sys.stderr)
            continue
        # For publication: programs and folders by name only.
        shown = shlex.join([Path(part).name if os.path.isabs(str(part)) else str(part) for part in command])
        print(f"{group}, {name}, {who}: {shown}", file=sys.stderr, flush=True)
        try:
            epochs, seconds = execute(command)
        except (RuntimeError, OSError) as error:
            print(f"  failed: {error}", file=sys.stderr)
            failed += 1
            continue
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        record = {"run": [group, name, who], "date": date, "commit": commit(), "hardware": hardware(), "command": shown}
        record |= {"seconds": round(seconds, 2), "epochs": epochs}
        with a.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        results[group, name, who] = record
    return failed


def figures(record):
    epochs = record["epochs"]
    accuracies = [epoch["val_accuracy"] for epoch in epochs]
    rate = statistics.median(epoch["images_per_second"] for epoch in epochs)
    return epochs[-1], accuracies[-1], max(accuracies), rate


def table(title, columns, rows):
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def tables(results):
    groups = {group: [] for group in GROUPS}
    for (group, name, who), record in results.items():
        groups[group].append((name, who, record))
    if found := groups["colossalai"]:
        rows = [("tutorial, 2 A6000, mixed precision (losses of the last batch)", 1.8014, 1.4863, 0.3589, "", "", "")]
        for name, who, record in found:
            last, accuracy, _, rate = figures(record)
            losses = (f"{last['train_loss']:.4f}", f"{last['val_loss']:.4f}")
            rows.append((f"{who}, {name}", *losses, f"{accuracy:.4f}", f"{last['learning_rate']:.3g}", f"{rate:.0f}", f"{record['seconds']:.0f}"))
        columns = ("", "train loss", "test loss", "accuracy", "rate of the last epoch", "images/s", "seconds")
        table("ResNet-34 on CIFAR-10, two epochs", columns, rows)
    if found := groups["flowers"]:
        alone = {name.rpartition("size ")[2]: record["seconds"] for name, _, record in found if name.startswith("1 rank")}
        rows = [(f"tutorial, {name}", f"{s:.1f}", f"{FLOWERS_TUTORIAL['1 GPU'] / s:.2f}", "", "", "") for name, s in FLOWERS_TUTORIAL.items()]
        for name, _, record in found:
            _, accuracy, best, rate = figures(record)
            base = alone.get(name.rpartition("size ")[2])
            ratio = f"{base / record['seconds']:.2f}" if base else ""
            rows.append((name, f"{record['seconds']:.1f}", ratio, f"{rate:.1f}", f"{accuracy:.3f}", f"{best:.3f}"))
        table("ResNet-34 on flowers, ten epochs", ("", "seconds", "speed-up", "images/s", "accuracy", "best"), rows)
    if found := groups["freeze"]:
        by_name = {name: figures(record)[3] for name, _, record in found}
        rows = []
        for name, full in by_name.items():
            what, _, frozen = name.rpartition(", ")
            other = by_name.get(f"{what}, True")
            if frozen == "False" and other:
                rows.append((what, f"{full:.1f}", f"{other:.1f}", f"{other / full:.2f}"))
        table("ResNet-34 with --freeze-layers", ("", "images/s, all trained", "classifier alone", "speed-up"), rows)
    if found := groups["mnist"]:
        rows = []
        for name, _, record in found:
            _, accuracy, best, rate = figures(record)
            rows.append((name, f"{accuracy:.4f}", f"{best:.4f}", f"{rate:.0f}", f"{record['seconds']:.1f}"))
        table("MNIST, five epochs", ("", "accuracy", "best", "images/s", "seconds"), rows)
    if found := groups["cifar"]:
        rows, sides = [], {}
        for name, who, record in found:
            last, accuracy, _, rate = figures(record)
            sides.setdefault(who, []).append((accuracy, record["seconds"]))
            losses = (f"{last['train_loss']:.4f}", f"{last['val_loss']:.4f}")
            rows.append((f"{who}, {name}", *losses, f"{accuracy:.4f}", f"{rate:.0f}", f"{record['seconds']:.0f}"))
        for who, runs in sides.items():
            accuracies, seconds = zip(*runs)
            spread = f" ± {statistics.stdev(accuracies):.4f}" if len(runs) > 1 else ""
            mean = f"**{statistics.mean(accuracies):.4f}{spread}**"
            rows.append((f"**{who}, mean of {len(runs)}**", "", "", mean, "", f"{statistics.mean(seconds):.0f}"))
        columns = ("", "train loss", "test loss", "accuracy", "images/s", "seconds")
        table("ResNet-18 on CIFAR-10, five epochs", columns, rows)
    print_stamps(results)


def print_stamps(results):
    stamps = sorted({f"{r['date']}, commit {r['commit']}, {r['hardware']}" for r in results.values()})
    if stamps:
        print("\n" + "  \n".join(stamps))


GROUPS = ("colossalai", "flowers", "freeze", "mnist", "cifar")


def main():
    if sys.argv[1:2] == ["--peer-child"]:
        return peer_child(*sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="folder of the data sets")
    p.add_argument("--enmasse", default="target/release/enmasse", metavar="PROGRAM")
    p.add_argument("--peer", metavar="PYTHON", help="an interpreter with PyTorch and torchvision")
    p.add_argument("--peer-script", metavar="FILE", help="train_ddp.py, which trains with PyTorch")
    p.add_argument("--peer-options", default="", metavar="FLAGS", help='further flags for it, such as "--channels-last --workers 1"')
    p.add_argument("--size", type=int, default=96, metavar="PIXELS", help="size of the flower images")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the group cifar")
    p.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, metavar="GROUP")
    p.add_argument("--results", type=Path, default=Path("target/tutorials.jsonl"), metavar="FILE")
    p.add_argument("--tables", action="store_true", help="print the tables, run nothing")
    a = p.parse_args()
    a.enmasse = os.path.abspath(a.enmasse)
    results = read(a.results)
    failed = 0 if a.tables else run_all(a, (run for run in recipes(a) if run[0] in a.only), results)
    order = {(group, name, who): place for place, (group, name, who, *_) in enumerate(recipes(a))}
    tables(dict(sorted(results.items(), key=lambda run: order.get(run[0], len(order)))))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
