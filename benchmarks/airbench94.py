#!/usr/bin/env python3
"""The recipe airbench94 in PyTorch: what `enmasse train CIFAR10 --recipe airbench94` does, for comparison.

    python benchmarks/airbench94.py CIFAR10 [--epochs 10] [--threads 2] [--seed 0] [--bf16] [--channels-last]

CIFAR10 is a folder with the binary files of CIFAR-10. The settings are those of the paper in its own units (K. Jordan, "94% on CIFAR-10 in
3.29 seconds on a single GPU", arXiv:2404.04454, 2024): losses are summed, and rates are for steps without momentum. As in enmasse, the
bias of the whitening is trained in all epochs, where the paper has three. Prints the accuracy of the test images, without test-time
augmentation, and the seconds so far after each epoch, and at the end the accuracy with the mean of both flips, too.
"""
import argparse
import copy
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import nn

BATCH, WIDTHS, SCALE, SMOOTHING, SHIFT = 1024, [64, 256, 256], 1 / 9, 0.2, 2
LR, MOMENTUM, WEIGHT_DECAY, BIAS_FACTOR = 11.5, 0.85, 0.0153, 64
FIRST, PEAK, LAST = 0.2, 0.23, 0.07
EVERY, KEPT = 5, 0.95**5
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data", type=Path)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--stop-after", type=int, help="epochs to run, of those")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--bf16", action="store_true", help="the forward pass under autocast")
    p.add_argument("--channels-last", action="store_true")
    return p.parse_args()


def read(files):
    """Normalised images and labels."""
    records = numpy.concatenate([numpy.fromfile(file, numpy.uint8).reshape(-1, 3073) for file in files])
    images = torch.tensor(records[:, 1:]).reshape(-1, 3, 32, 32) / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std, torch.tensor(records[:, 0], dtype=torch.long)


class Group(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = (nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4) for _ in range(2))
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[: conv.in_channels])
        for norm in (self.norm1, self.norm2):
            norm.weight.requires_grad = False

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Airbench(nn.Module):
    def __init__(self, images):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.groups = nn.Sequential(*(Group(i, o) for i, o in zip([24, *WIDTHS], WIDTHS)))
        self.head = nn.Linear(WIDTHS[-1], 10, bias=False)
        patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
        self.whiten.weight.data = torch.cat([filters, -filters])
        self.whiten.weight.requires_grad = False
        nn.init.zeros_(self.whiten.bias)

    def forward(self, x):
        x = self.groups(F.gelu(self.whiten(x)))
        return self.head(F.max_pool2d(x, 3).flatten(1)) * SCALE


def batches(images, flips, epoch):
    """The images of an epoch in a random order, cropped, and every second epoch the other way round."""
    padded = F.pad(images, (SHIFT,) * 4, "reflect")
    flipped = flips ^ (epoch % 2 == 1)
    order = torch.randperm(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        indices = order[start : start + BATCH]
        shifts = torch.randint(2 * SHIFT + 1, (BATCH, 2))
        batch = torch.empty(BATCH, 3, 32, 32)
        for shift in torch.unique(shifts, dim=0):
            (y, x), of_shift = shift.tolist(), (shifts == shift).all(1)
            batch[of_shift] = padded[indices[of_shift], :, y : y + 32, x : x + 32]
        yield indices, torch.where(flipped[indices].view(-1, 1, 1, 1), batch.flip(3), batch)


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    images, labels = read(sorted(options.data.glob("data_batch_*.bin")))
    test_images, test_labels = read([options.data / "test_batch.bin"])
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = Airbench(images[:5000]).to(memory_format=layout)

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            return model(x.contiguous(memory_format=layout)).float()

    @torch.no_grad()
    def accuracy(flip=False):
        model.eval()
        correct = 0
        for x, y in zip(test_images.split(2000), test_labels.split(2000)):
            logits = forward(x) + forward(x.flip(3)) if flip else forward(x)
            correct += (logits.argmax(1) == y).sum().item()
        model.train()
        return 100 * correct / len(test_labels)

    # The paper's rate and decay are those of steps without momentum, of 1,024 images.
    scale = 1 + 1 / (1 - MOMENTUM)
    lr, decay = LR / scale / BATCH, WEIGHT_DECAY / scale
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and "norm" in name]
    others = [p for name, p in model.named_parameters() if not (name.endswith("bias") and "norm" in name) and p.requires_grad]
    groups = [(biases, lr * BIAS_FACTOR), (others, lr)]
    groups = [{"params": params, "lr": rate, "weight_decay": decay / rate} for params, rate in groups]
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    steps = options.epochs * (len(images) // BATCH)
    slow, step, began = copy.deepcopy(model.state_dict()), 0, time.time()

    def look_ahead(kept):
        for old, new in zip(slow.values(), model.state_dict().values()):
            if old.is_floating_point():
                old.lerp_(new, 1 - kept)
                new.copy_(old)

    flips = torch.rand(len(images)) < 0.5
    for epoch in range(options.stop_after or options.epochs):
        for indices, batch in batches(images, flips, epoch):
            progress = step / steps
            factor = FIRST + (1 - FIRST) * progress / PEAK
            if progress >= PEAK:
                factor = 1 + (LAST - 1) * (progress - PEAK) / (1 - PEAK)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
            loss = F.cross_entropy(forward(batch), labels[indices], label_smoothing=SMOOTHING, reduction="sum")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                look_ahead(KEPT * (step / steps) ** 3)
        if step == steps:
            look_ahead(1.0)
        print(f"epoch {epoch + 1}: {accuracy():.2f} % after {time.time() - began:.0f} s", flush=True)
    if step == steps:
        print(f"with the flipped images: {accuracy(flip=True):.2f} %", flush=True)


if __name__ == "__main__":
    main()
