#!/usr/bin/env python3
"""One training step beside PyTorch's, in turns, on synthetic data: forward, loss, backward, SGD with momentum and weight decay.

    python benchmarks/step.py --enmasse target/release/enmasse --threads 2 [--rounds 3] [--eval] [MODEL:SIZE:BATCH ...]

Needs PyTorch and torchvision in the Python that runs it. PyTorch runs in both memory layouts (contiguous and channels_last); the
faster one counts. Each round runs every program once, in a process of its own; the table gives medians over rounds, and the
ratio enmasse / PyTorch. Nothing else should run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

DEFAULT = ["resnet18:224:16", "resnet34:224:16", "resnet50:224:16", "resnet18:32:128", "resnet34:32:128", "resnet18:64:32"]


def torch_step(model, size, batch, threads, layout, evaluation):
    """Runs in the child: prints {"images_per_second": …}."""
    import time

    import torch
    import torchvision

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    classes = 10 if size <= 64 else 1000
    net = getattr(torchvision.models, model)(num_classes=classes).train(not evaluation)
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
    if layout == "channels_last":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    times = []
    for _ in range(3 + 10):
        start = time.perf_counter()
        if evaluation:
            with torch.inference_mode():
                net(x).sum().item()
        else:
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        times.append(time.perf_counter() - start)
    print(json.dumps({"images_per_second": batch / statistics.median(times[3:]), "version": torch.__version__}))


def run(command):
    environment = {**os.environ, "OMP_NUM_THREADS": command[command.index("--threads") + 1]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["images_per_second"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--enmasse", default="target/release/enmasse")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--eval", action="store_true", help="forward only")
    p.add_argument("--torch-step", nargs=4, metavar=("MODEL", "SIZE", "BATCH", "LAYOUT"), help=argparse.SUPPRESS)
    p.add_argument("shapes", nargs="*", default=DEFAULT, metavar="MODEL:SIZE:BATCH")
    a = p.parse_args()
    if a.torch_step:
        model, size, batch, layout = a.torch_step
        return torch_step(model, int(size), int(batch), a.threads, layout, a.eval)
    evaluation = ["--eval"] if a.eval else []
    print("| model, size, batch | enmasse images/s | PyTorch contiguous | PyTorch channels_last | ratio to the better |")
    print("|---|---|---|---|---|", flush=True)
    for shape in a.shapes:
        model, size, batch = shape.split(":")
        threads = ["--threads", str(a.threads)]
        own = [a.enmasse, "bench", "step", "--model", model, "--size", size, "--batch", batch, *threads, *evaluation, "--json"]
        peers = [
            [sys.executable, __file__, *threads, *evaluation, "--torch-step", model, size, batch, layout]
            for layout in ("contiguous", "channels_last")
        ]
        found = [[run(command) for command in (own, *peers)] for _ in range(a.rounds)]
        ours, *theirs = (statistics.median(column) for column in zip(*found))
        print(f"| {model}, {size}, {batch} | {ours:.1f} | {theirs[0]:.1f} | {theirs[1]:.1f} | {ours / max(theirs):.2f} |", flush=True)


main()
