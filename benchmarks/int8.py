"""Accuracy, size and speed of a run's model in f32 and in integers of 8 bits, by ONNX Runtime over the validation part of the run.

    python benchmarks/int8.py DATA RUN [--enmasse FILE] [--threads N]

Needs numpy, Pillow and onnxruntime. Prints a JSON line for each of the two models.
"""

import argparse
import csv
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy
import onnxruntime
from PIL import Image

BATCH = 16


def validation(enmasse, data, run, folder):
    """Paths and classes of the run's validation part."""
    out = folder / "features.npy"
    subprocess.run([enmasse, "embed", data, "--weights", run, "--out", out], check=True, stdout=subprocess.DEVNULL)
    with open(out.with_suffix(".csv"), newline="") as table:
        return [(row["path"], row["class"]) for row in csv.DictReader(table) if row["part"] in ("val", "validation")]


def prepared(path, meta):
    """As docs/export.md prepares an image."""
    resize, crop = int(meta["resize"]), int(meta["crop"])
    image = Image.open(path).convert("RGB")
    size = [int(resize * edge / min(image.size)) for edge in image.size]
    image = image.resize(size, Image.Resampling[meta["interpolation"].upper()])
    left, top = [round((edge - crop) / 2) for edge in size]
    return numpy.asarray(image.crop((left, top, left + crop, top + crop)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("run")
    parser.add_argument("--enmasse", default="target/release/enmasse")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = given.threads
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        images, first = validation(given.enmasse, given.data, given.run, folder), None
        for form in ([], ["--int8"]):
            file = folder / "model.onnx"
            export = [given.enmasse, "export", given.run, "--to", "onnx", "--out", file, *form]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            meta = session.get_modelmeta().custom_metadata_map
            classes = json.loads(meta["classes"])
            pixels = numpy.stack([prepared(path, meta) for path, _ in images])
            batches = [pixels[at : at + BATCH] for at in range(0, len(pixels), BATCH)]
            found, seconds = [], []
            for batch in batches:
                begin = time.perf_counter()
                (probabilities,) = session.run(None, {"images": batch})
                seconds.append((time.perf_counter() - begin) / len(batch))
                found += [classes[row.argmax()] for row in probabilities]
            first = first or found
            line = {
                "model": meta["model"],
                "form": "int8" if form else "f32",
                "images": len(images),
                "accuracy": sum(a == b for a, (_, b) in zip(found, images)) / len(images),
                "same_as_f32": sum(a == b for a, b in zip(found, first)) / len(images),
                "bytes": file.stat().st_size,
                "ms_per_image": round(statistics.median(seconds) * 1e3, 3),
            }
            print(json.dumps(line), flush=True)


main()
