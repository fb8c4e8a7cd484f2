"""One training step at full size against a live PyTorch: logits, loss and every gradient.

    python benchmarks/compare_torch.py --models resnet18 resnet34 resnet50 --size 224 --batch 4 --device cpu

Needs torch, torchvision and numpy. The truth is PyTorch in f64; PyTorch also runs in f32. Images and labels are
random. Weights are torchvision's initial ones, except the biases of batch norms, which keep the inputs of ReLUs away
from zero: gradients jump at zero, and among millions of inputs some are so near to it that rounding decides. One such
element of the last stage changes every gradient by up to 1e-2, in our f32 run or in PyTorch's, and would dominate the
comparison. Errors are as in `fixtures/make.py`; a tensor passes with at most 1e-4, or twice PyTorch's own error if
that is larger. Prints a Markdown table.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck

ROOT = Path(__file__).parent.parent
TYPES = {"F32": np.float32, "U8": np.uint8, "I32": np.int32}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    names = {np.dtype(t): n for n, t in TYPES.items()}
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {"dtype": names[values.dtype], "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    body = memoryview(data)[8 + length :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in json.loads(data[8 : 8 + length]).items()
        if name != "__metadata__"
    }


def keep_from_kinks(model):
    """ReLUs get inputs around 4, or around -4 in a quarter of the channels; after a residual, only positive ones."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.constant_(module.bias, 4.0)
            block = model.get_submodule(name.rpartition(".")[0])
            last = isinstance(block, (BasicBlock, Bottleneck)) and name[-1] == ("2" if block.expansion == 1 else "3")
            if not last and "downsample" not in name:
                module.bias.data[::4] = -4.0


def step(model, images, labels, dtype):
    """Logits, loss and gradients of one step."""
    model = model.to(dtype).train()
    mean, std = (
        torch.tensor(np.float32(c), dtype=dtype).view(3, 1, 1) for c in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    x = (torch.from_numpy(images).permute(0, 3, 1, 2).to(dtype) / 255 - mean) / std
    logits = model(x.contiguous())
    loss = F.cross_entropy(logits, torch.from_numpy(labels).long())
    loss.backward()
    out = {"logits": logits, "loss": loss} | {f"gradient.{n}": p.grad for n, p in model.named_parameters()}
    return {name: tensor.detach().double().numpy().reshape(-1).copy() for name, tensor in out.items()}


def compare(name, arguments):
    torch.manual_seed(arguments.seed)
    random = np.random.default_rng(arguments.seed)
    build = getattr(torchvision.models, name)
    model = build(num_classes=arguments.classes)
    keep_from_kinks(model)
    state = {n: t.clone() for n, t in model.state_dict().items()}
    shape = (arguments.batch, arguments.size, arguments.size, 3)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    labels = random.integers(0, arguments.classes, arguments.batch, dtype=np.int32)

    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "inputs.safetensors"), Path(folder, "outputs.safetensors")
        tensors = {n: t.numpy() for n, t in state.items() if not n.endswith("num_batches_tracked")}
        write_safetensors(inputs, tensors | {"images": images, "labels": labels})
        command = ["cargo", "run", "--release", "-q", "-p", "enmasse-models", "--example", "one_step", "--"]
        subprocess.run([*command, name, arguments.device, inputs, outputs], check=True, cwd=ROOT)
        ours = {n: v.astype(np.float64) for n, v in read_safetensors(outputs).items()}

    single = step(model, images, labels, torch.float32)
    model = build(num_classes=arguments.classes)
    model.load_state_dict(state)
    truth = step(model, images, labels, torch.float64)

    floor = 1e-3 * np.median([np.linalg.norm(v) for n, v in truth.items() if n.startswith("gradient.")])
    failed = 0
    for kind in ("loss", "logits", "gradient."):
        names = [n for n in truth if n.startswith(kind)]
        denominators = {n: max(np.linalg.norm(truth[n]), floor if kind == "gradient." else 0.0) for n in names}
        mine, theirs = (
            {n: np.linalg.norm(run[n] - truth[n]) / denominators[n] for n in names} for run in (ours, single)
        )
        bad = [n for n in names if not mine[n] <= max(1e-4, 2 * theirs[n])]
        failed += len(bad)
        figures = [f"{f(list(run.values())):.1e}" for run in (mine, theirs) for f in (np.median, max)]
        worst = max(names, key=mine.get).removeprefix(kind) or "-"
        row = [name, kind.rstrip("."), len(names), *figures, worst, len(bad)]
        print("|", " | ".join(map(str, row)), "|", flush=True)
        for n in bad:
            print(f"{name} {n}: error {mine[n]:.2e}, PyTorch's {theirs[n]:.2e}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "resnet34", "resnet50"])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"Batch {arguments.batch} x {arguments.size}x{arguments.size}, device {arguments.device}, ", end="")
    print(f"PyTorch {torch.__version__} in f64 as truth. Errors: ours, and PyTorch's in f32.\n")
    columns = ["model", "what", "tensors", "median", "largest", "PyTorch median", "PyTorch largest", "our largest at"]
    print("|", " | ".join([*columns, "beyond the limit"]), "|")
    print("|---" * (len(columns) + 1) + "|")
    sys.exit(sum(compare(name, arguments) for name in arguments.models) > 0)
