#!/usr/bin/env python3
"""Whole training runs, compared with PyTorch's: same images, same recipe, several seeds; final and best validation accuracy.

    python benchmarks/train.py DIR --enmasse target/release/enmasse [--model resnet18] [--size 128] [--epochs 10] [--seeds 0 1 2]

DIR is a folder of class folders; enmasse splits it, and PyTorch reads the same files from the run's split.json. Recipe: a global
batch of 16, RandomResizedCrop and flip, SGD 0.01 with momentum 0.9 and weight decay 5e-4, cosine annealing to 0 per epoch,
evaluation by Resize and CenterCrop. enmasse: two ranks of 8 with SyncBatchNorm, one thread each; PyTorch: one process, two
threads, channels_last. They run in turns; nothing else should run. Needs PyTorch and torchvision.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

LR, MOMENTUM, DECAY, BATCH = 0.01, 0.9, 5e-4, 16


def enmasse(a, seed, out):
    command = [a.enmasse, "train", a.dir, "--model", a.model, "--size", str(a.size), "--epochs", str(a.epochs)]
    command += ["--devices", "cpu:2", "--batch", str(BATCH // 2), "--sync-bn", "--lr", str(LR), "--momentum", str(MOMENTUM)]
    command += ["--weight-decay", str(DECAY), "--schedule", "cosine-annealing", "--seed", str(seed), "--out", out, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    epochs = [record for record in records if record["event"] == "epoch"]
    return [e["val_accuracy"] for e in epochs], statistics.median(e["images_per_second"] for e in epochs)


def torch_run(a, seed, split):
    import torch
    from PIL import Image
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, Dataset
    from torchvision import models
    from torchvision import transforms as T

    torch.set_num_threads(2)
    torch.manual_seed(seed)
    end = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    train = T.Compose([T.RandomResizedCrop(a.size), T.RandomHorizontalFlip(), *end])
    evaluate = T.Compose([T.Resize(round(a.size * 256 / 224)), T.CenterCrop(a.size), *end])

    class Files(Dataset):
        def __init__(self, files, transform):
            self.files, self.transform = files, transform

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            label = split["classes"].index(os.path.basename(os.path.dirname(self.files[i])))
            return self.transform(Image.open(os.path.join(a.dir, self.files[i]))), label

    batches = DataLoader(Files(split["train"], train), BATCH, shuffle=True)
    held = DataLoader(Files(split["validation"], evaluate), BATCH)
    net = getattr(models, a.model)(num_classes=len(split["classes"])).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a.epochs)
    accuracies, rates = [], []
    for _ in range(a.epochs):
        net.train()
        start = time.perf_counter()
        for x, y in batches:
            loss = cross_entropy(net(x.contiguous(memory_format=torch.channels_last)), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        rates.append(len(batches.dataset) / (time.perf_counter() - start))
        schedule.step()
        net.eval()
        with torch.inference_mode():
            right = sum((net(x).argmax(1) == y).sum().item() for x, y in held)
        accuracies.append(right / len(split["validation"]))
    return accuracies, statistics.median(rates)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--enmasse", default="target/release/enmasse")
    p.add_argument("--model", default="resnet18")
    p.add_argument("--size", type=int, default=128)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--torch-child", type=int, metavar="SEED", help=argparse.SUPPRESS)
    p.add_argument("--split", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.torch_child is not None:
        with open(a.split) as f:
            return print(json.dumps(torch_run(a, a.torch_child, json.load(f))))
    print("| seed | enmasse final / best | images/s | PyTorch final / best | images/s |\n|---|---|---|---|---|", flush=True)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in a.seeds:
            out = os.path.join(folder, f"run{seed}")
            own, own_rate = enmasse(a, seed, out)
            child = [sys.executable, __file__, a.dir, "--model", a.model, "--size", str(a.size), "--epochs", str(a.epochs)]
            child += ["--torch-child", str(seed), "--split", os.path.join(out, "split.json")]
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            peer, peer_rate = json.loads(done.stdout.splitlines()[-1])
            ours.append(own[-1])
            theirs.append(peer[-1])
            print(f"| {seed} | {own[-1]:.3f} / {max(own):.3f} | {own_rate:.1f} | {peer[-1]:.3f} / {max(peer):.3f} | {peer_rate:.1f} |", flush=True)
    print(f"| mean | {statistics.mean(ours):.3f} | | {statistics.mean(theirs):.3f} | |")


main()
