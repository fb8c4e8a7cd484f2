"""Trained models as modules of PyTorch."""
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchvision import models, transforms

from ._error import Error
from ._program import run as program


def exported(run: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The weights of a run by PyTorch's names, and how images are prepared for them: docs/json.md has the keys."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pth"
        made = program("export", str(run), "--to", "pth", f"--out={weights}")
        if made["preprocessing"] is None:
            raise Error(f"{run}: bare weights do not name their model")
        recipe = json.loads(Path(made["preprocessing"]).read_text())
        return torch.load(weights, weights_only=True), recipe


def module(run: Path) -> torch.nn.Module:
    weights, recipe = exported(run)
    name, outputs, size = recipe["model"], len(recipe["classes"]), recipe["size"]
    if recipe["channels"] != 3:
        raise Error(f"{run}: the model sees grey images, and those of torchvision and timm are for three channels")
    if name in models.list_models():
        made = models.get_model(name, num_classes=outputs)
    else:
        made = of_timm(name, outputs, size)
    made.load_state_dict(weights)
    return made.eval()


def of_timm(name: str, outputs: int, size: int) -> torch.nn.Module:
    """The module of a model whose weights have timm's names."""
    sized: dict[str, int] = {}
    if name.startswith("efficientnet_lite"):
        name = f"tf_{name}"
    elif name.startswith(("vit_", "deit_")):
        sized = {"img_size": size}
    else:
        raise Error(f"neither torchvision nor timm has a module for {name}; enmasse export --to onnx writes a model for ONNX Runtime")
    import timm

    made: torch.nn.Module = timm.create_model(name, num_classes=outputs, **sized)
    return made


def transform(run: Path) -> Any:
    _, recipe = exported(run)
    steps = [
        transforms.Lambda(upright) if recipe["exif_transpose"] else None,
        transforms.Lambda(rgb),
        transforms.Resize(recipe["resize"], transforms.InterpolationMode(recipe["interpolation"]), antialias=recipe["antialias"]),
        transforms.CenterCrop(recipe["crop"]),
        transforms.Grayscale() if recipe["channels"] == 1 else None,
        transforms.ToTensor(),
        transforms.Normalize(recipe["mean"], recipe["std"]),
    ]
    return transforms.Compose([step for step in steps if step])


def upright(image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def rgb(image: Any) -> Any:
    return image.convert("RGB")
