#!/usr/bin/env python3
"""Images through the loader, compared with torchvision's: read, decoded, cropped, resized, batched.

    python benchmarks/loader.py --data FLOWER_PHOTOS --peer PYTHON [--rounds 3]

PYTHON has PyTorch, torchvision and Pillow. The transforms are train (RandomResizedCrop 224 and flip) and eval (Resize 256, CenterCrop 224).
The data are a folder of photographs, and 200 images of 1024x768 that the peer makes of them (enlarged, with noise, 4:2:0, quality 90).
Each is also packed into one file: as it is, as JPEG of 256 pixels and as raw squares of 224. The peers read the folder.

Two figures each. Processor time per image: ours of all threads, the peers' of one process without workers, so that they pay for
no communication. Images per second: ours with a thread for each core, the peers' with as many workers. The programs run in turns,
--rounds times, and the medians count. The first figure also holds where other programs run.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tutorials import commit, hardware, table

FORMS = {"jpeg": [], "jpeg-256": ["--resize", "256"], "raw": ["--raw", "224"]}
PEERS = {"pillow": "ImageFolder with Pillow", "torchvision": "decode_jpeg and v2 transforms"}


def pipeline(decoder, transform):
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    t, more = (v2, {"antialias": True}) if decoder == "torchvision" else (v1, {})
    if transform == "train":
        steps = [t.RandomResizedCrop(224, **more), t.RandomHorizontalFlip()]
    else:
        steps = [t.Resize(256, **more), t.CenterCrop(224)]
    if decoder == "torchvision":
        return v2.Compose(steps), lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    # As bytes, which is what our loader gives.
    return v1.Compose([*steps, v1.PILToTensor()]), lambda path: Image.open(path).convert("RGB")


def peer(decoder, transform, folder, passes):
    """Runs in the peer's Python, and prints a line of JSON."""
    import torch
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    steps, loader = pipeline(decoder, transform)
    data = ImageFolder(folder, steps, loader=loader)
    batches = lambda workers: torch.utils.data.DataLoader(data, 32, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    alone, together = batches(0), batches(os.cpu_count())
    rates = []
    for _ in alone:
        pass
    start = time.process_time()
    for _ in alone:
        pass
    processor = (time.process_time() - start) / len(data) * 1e3
    for _ in range(passes):
        start = time.perf_counter()
        for _ in together:
            pass
        rates.append(len(data) / (time.perf_counter() - start))
    print(json.dumps({"processor_ms": processor, "images_per_second": statistics.median(rates[1:])}))


def enlarge(source, folder):
    """Runs in the peer's Python."""
    import numpy
    from PIL import Image

    (folder / "all").mkdir(parents=True)
    random = numpy.random.default_rng(0)
    paths = sorted(source.glob("*/*.jpg"))
    for path in paths[:: len(paths) // 200][:200]:
        large = numpy.asarray(Image.open(path).convert("RGB").resize((1024, 768), Image.LANCZOS)).astype(float)
        noisy = (large + random.normal(0, 3, large.shape)).clip(0, 255).astype("uint8")
        Image.fromarray(noisy).save(folder / "all" / path.name, quality=90, subsampling=2)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    p.add_argument("--peer", default=sys.executable, help="a Python with torchvision")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--passes", type=int, default=3, help="over the data, of which the first does not count")
    p.add_argument("--large", type=Path, default=Path("target/loader-1024x768"), help="where the larger images are kept")
    p.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        return enlarge(a.data, a.large) if a.child == ["enlarge"] else peer(*a.child, a.data, a.passes)

    child = lambda *words: subprocess.run([a.peer, __file__, *words], check=True, text=True, stdout=subprocess.PIPE).stdout
    if not a.large.exists():
        child("--data", str(a.data), "--large", str(a.large), "--child", "enlarge")
    build = ["cargo", "build", "--release", "-p", "enmasse-datasets", "--example", "loader_bench"]
    subprocess.run(build, check=True)
    ours = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/examples/loader_bench"
    run = lambda *words: [json.loads(line) for line in subprocess.run([ours, *map(str, words)], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()]
    found = {}
    folders = {"photographs": a.data, "1024x768": a.large}
    packed = tempfile.TemporaryDirectory(dir=a.large.parent)
    for data, folder in folders.items():
        for form, words in FORMS.items():
            run(folder, "--pack", f"{packed.name}/{data}.{form}", *words)
    run(f"{packed.name}/many", "--make", 1_300_000)
    for number in range(a.rounds):
        found.setdefault("start", []).extend(run(f"{packed.name}/many", "--start", "--size", 1))
        found.setdefault("copy", []).extend(run(f"{packed.name}/photographs.raw", "--copy", "--size", 224))
        for data, folder in folders.items():
            for decode, words in {"fast": ["--fast"], "exact": []}.items():
                for record in run(folder, "--passes", a.passes, *words):
                    found.setdefault((data, record["transform"], decode), []).append(record)
            for form in FORMS:
                for record in run(f"{packed.name}/{data}.{form}", "--passes", a.passes):
                    found.setdefault((data, record["transform"], form), []).append(record)
            for transform in ["train", "eval"]:
                for decoder in PEERS:
                    line = child("--data", str(folder), "--passes", str(a.passes), "--child", decoder, transform)
                    found.setdefault((data, transform, decoder), []).append(json.loads(line))
        print(f"round {number + 1} of {a.rounds} done", file=sys.stderr)

    median = lambda key, figure: statistics.median(record[figure] for record in found[key])
    rows = []
    for data in folders:
        ways = [("train", "fast"), ("train", "exact"), ("eval", "exact"), *((t, form) for form in FORMS for t in ["train", "eval"])]
        for transform, way in ways:
            own = (data, transform, way)
            row = [f"{data}, {transform}" + (f", packed as {way}" if way in FORMS else f", {way}" if transform == "train" else "")]
            row += [f"{median(own, 'processor_ms'):.2f}", f"{median(own, 'images_per_second'):.0f}"]
            for decoder in PEERS:
                other = (data, transform, decoder)
                times = median(other, "processor_ms") / median(own, "processor_ms")
                rate = median(own, "images_per_second") / median(other, "images_per_second")
                row += [f"{median(other, 'processor_ms'):.2f}", f"{times:.1f}", f"{median(other, 'images_per_second'):.0f}", f"{rate:.1f}"]
            rows.append(row)
    heads = ["data, transform", "ms", "/s"]
    for name in PEERS.values():
        heads += [f"{name}: ms", "ratio", "/s", "ratio"]
    print(f"{datetime.date.today()}, commit {commit()}; {hardware()}")
    table("Processor time per image, and images per second", heads, rows)
    figure = lambda key, name: f"{median(key, name):.2f}"
    table("A packed file of 1.3 million samples", ["open, ms", "start of an epoch to its first batch, ms"], [[figure("start", "open_ms"), figure("start", "first_batch_ms")]])
    heads = ["batches, GB/s", "copies in memory, GB/s", "share"]
    table("Raw squares without a transform", heads, [[figure("copy", name) for name in ["batches_gb_per_second", "memory_gb_per_second", "share"]]])


if __name__ == "__main__":
    main()
