#!/usr/bin/env python3
"""Images per second and latency of `enmasse serve`, of a PyTorch server and of an ONNX Runtime server, in turns.

    python benchmarks/serve.py --peer PYTHON [--models resnet34 resnet18 mobilenet_v2] [--servers enmasse torch onnx] [--clients 1 8] [--seconds 8] [--rounds 2]

PYTHON has PyTorch, torchvision, ONNX Runtime, starlette and uvicorn with uvloop and httptools. The load is wrk's (Debian's package): --clients
connections of one thread, each of which sends a JPEG of 500x375 again as soon as it has an answer. The models have ten
classes and weights of one step, the same in all servers, in f32 at 224.

Both peers decode by torchvision's decode_jpeg, resize and crop as the weights' own transform does, on a thread for each core, and batch like
ours: what is there, up to eight, as soon as the model is free. PyTorch computes in channels_last memory, eager or traced and frozen for inference,
whichever is faster at the start; ONNX Runtime computes our own export. Both have a thread for each core.

Nothing else should run: a figure during which other programs took 4 % of the processors is measured again, up to five times. Every figure is
appended to --results, and the medians of all rounds in it count; --tables only prints them.
"""
import argparse
import asyncio
import contextlib
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tutorials import ROOT, commit, hardware, table

SERVERS = ["enmasse", "torch", "onnx"]
BATCH = 8
CLASSES = 10
OTHERS = 0.04
ENMASSE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "release/enmasse")


def faster(ways, images):
    """The fastest of these functions."""
    import torch

    def seconds(way):
        with torch.inference_mode():
            times = []
            for _ in range(8):
                start = time.perf_counter()
                way(images)
                times.append(time.perf_counter() - start)
        return statistics.median(times[3:])

    return min(ways, key=seconds)


def torch_model(name, folder):
    """Probabilities of a batch of bytes, of PyTorch."""
    import torch
    import torchvision

    model = torchvision.models.get_model(name, num_classes=CLASSES)
    model.load_state_dict(torch.load(folder / f"{name}.pth"))
    model = model.eval().to(memory_format=torch.channels_last)
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    prepare = lambda images: ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
    example = prepare(torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8))
    with torch.inference_mode():
        frozen = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, example)))
    best = faster([model, frozen], example)

    def compute(images):
        with torch.inference_mode():
            return best(prepare(torch.stack(images))).softmax(1).tolist()

    return compute


def onnx_model(name, folder):
    """The same of ONNX Runtime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count()
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
    batch = lambda images: np.ascontiguousarray(np.stack([image.numpy() for image in images]).transpose(0, 2, 3, 1))
    return lambda images: session.run(None, {session.get_inputs()[0].name: batch(images)})[0].tolist()


def peer(server, name, folder):
    """Serves in the peer's Python until it is killed, and prints the port."""
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    torch.set_num_threads(os.cpu_count())
    compute = (torch_model if server == "torch" else onnx_model)(name, Path(folder))
    fit = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    workers, device = ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)), ThreadPoolExecutor(1)
    decode = lambda body: fit(decode_jpeg(torch.frombuffer(bytearray(body), dtype=torch.uint8), mode=ImageReadMode.RGB))
    waiting, arrived = [], asyncio.Event()

    async def batches():
        loop = asyncio.get_running_loop()
        while True:
            await arrived.wait()
            batch, waiting[:] = waiting[:BATCH], waiting[BATCH:]
            if not waiting:
                arrived.clear()
            found = await loop.run_in_executor(device, compute, [image for image, _ in batch])
            for (_, answer), row in zip(batch, found):
                answer.set_result(row)

    async def predict(request):
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(workers, decode, await request.body())
        answer = loop.create_future()
        waiting.append((image, answer))
        arrived.set()
        row = await answer
        top = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:5]
        return JSONResponse({"top": [{"index": index, "probability": row[index]} for index in top]})

    @contextlib.asynccontextmanager
    async def lifespan(_):
        task = asyncio.create_task(batches())
        yield
        task.cancel()

    app = Starlette(routes=[Route("/predict", predict, methods=["POST"])], lifespan=lifespan)
    config = uvicorn.Config(app, port=0, log_level="error", access_log=False)
    own = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()
    print(f"listening on http://127.0.0.1:{socket.getsockname()[1]};", flush=True)
    own.run([socket])


def prepare(folder):
    """Writes the image, and data for a step. Runs in the peer's Python."""
    import torch
    from torchvision.io import write_jpeg

    torch.manual_seed(0)
    coarse = torch.rand(1, 3, 12, 16)
    image = torch.nn.functional.interpolate(coarse, (375, 500), mode="bicubic") + 0.06 * torch.randn(1, 3, 375, 500)
    image = (image[0].clamp(0, 1) * 255).byte()
    write_jpeg(image, str(Path(folder, "image.jpg")), quality=90)
    for label in range(CLASSES):
        path = Path(folder, "data", str(label))
        path.mkdir(parents=True)
        for number in range(5):
            write_jpeg(image.roll(40 * label + number, 2), str(path / f"{number}.jpg"), quality=90)


def models(names, folder):
    """A run of each model, as PyTorch's and as ONNX files."""
    for name in names:
        run = folder / name
        train = ["train", folder / "data", "--model", name, "--size", "224", "--batch", "4", "--epochs", "1", "--max-steps", "1"]
        commands = [[*train, "--devices", "cpu:1", "--out", run]]
        commands += [["export", run, "--to", form, "--out", folder / f"{name}.{form}"] for form in ("pth", "onnx")]
        for command in commands:
            subprocess.run(list(map(str, [ENMASSE, *command])), check=True, capture_output=True)


def others(server):
    """Seconds of processor time so far that neither the server, nor this process and its children took."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, interrupts, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    own = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    ours = os.times()
    here = ours.user + ours.system + ours.children_user + ours.children_system
    return (user + nice + system + interrupts + soft + steal) / tick - sum(map(int, own[11:13])) / tick - here


def measure(arguments, server, name, folder):
    """Figures of a server under each load."""
    here = [arguments.peer, __file__, "--server", server, "--models", name, "--folder", folder]
    ours = [ENMASSE, "serve", folder / name, "--port", "0", "--batch-size", BATCH]
    command = ours if server == "enmasse" else here
    running = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = re.search(r":(\d+);", running.stdout.readline())[1]
        address = f"http://127.0.0.1:{port}/predict"
        body = (folder / "image.jpg").read_bytes()
        for _ in range(5):
            urllib.request.urlopen(address, body).read()
        script = folder / "post.lua"
        script.write_text(
            f'local file = io.open("{folder}/image.jpg", "rb")\nwrk.method = "POST"\nwrk.body = file:read("*a")\n'
            'wrk.headers["Content-Type"] = "image/jpeg"\n'
        )
        for clients in arguments.clients:
            wrk = ["wrk", "-t1", f"-c{clients}", f"-d{arguments.seconds}s", "--timeout", "30s", "--latency", "-s", script, address]
            for _ in range(5):
                before, start = others(running.pid), time.perf_counter()
                text = subprocess.run(list(map(str, wrk)), capture_output=True, text=True, check=True).stdout
                share = (others(running.pid) - before) / (time.perf_counter() - start) / os.cpu_count()
                if share < OTHERS:
                    break
            else:
                print(f"{server}, {name}: other programs took {share:.0%} of the processors", file=sys.stderr)
                continue
            failed = "Non-2xx" in text or "Socket errors" in text
            if failed:
                sys.exit(f"{server}: {text}")
            scale = {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4}
            latency = {share: float(value) * scale[unit] for share, value, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s|m)\n", text)}
            rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
            memory = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{running.pid}/status").read_text())[1]) / 1024
            yield {"clients": clients, "rate": rate, "p50": latency["50"], "p99": latency["99"], "memory": memory}
    finally:
        running.terminate()
        running.wait()


def tables(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    rows = []
    for name, clients in dict.fromkeys((record["model"], record["clients"]) for record in records):
        row = [name, clients]
        found = {}
        for server in SERVERS:
            own = [r for r in records if (r["model"], r["clients"], r["server"]) == (name, clients, server)]
            if not own:
                row += ["not measured"] * 4
                continue
            found[server] = {key: statistics.median(r[key] for r in own) for key in ("rate", "p50", "p99", "memory")}
            row += [f"{found[server][key]:.{places}f}" for key, places in (("rate", 1), ("p50", 0), ("p99", 0), ("memory", 0))]
        ratios = [f"{found['enmasse']['rate'] / found[s]['rate']:.2f}" if s in found else "" for s in SERVERS[1:]]
        rows.append((*row, *ratios))
    first = records[-1]
    print(f"{first['date']}, commit {first['commit']}: {first['hardware']}")
    figures = [f"{server} {key}" for server in SERVERS for key in ("images/s", "p50 ms", "p99 ms", "MiB")]
    table("Servers", ("model", "clients", *figures, "images/s ÷ torch's", "÷ onnx's"), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--models", nargs="+", default=["resnet34", "resnet18", "mobilenet_v2"])
    parser.add_argument("--servers", nargs="+", default=SERVERS, choices=SERVERS)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("serve.jsonl"))
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.server == "prepare":
        prepare(arguments.folder)
        sys.exit()
    if arguments.server:
        peer(arguments.server, arguments.models[0], arguments.folder)
        sys.exit()
    if not arguments.tables:
        about = {"date": str(datetime.date.today()), "commit": commit(), "hardware": hardware()}
        with tempfile.TemporaryDirectory() as folder, arguments.results.open("a") as results:
            folder = Path(folder)
            subprocess.run([arguments.peer, __file__, "--server", "prepare", "--folder", folder], check=True)
            models(arguments.models, folder)
            for _ in range(arguments.rounds):
                for name in arguments.models:
                    for server in arguments.servers:
                        for figures in measure(arguments, server, name, folder):
                            record = {**about, "server": server, "model": name, **figures}
                            results.write(json.dumps(record) + "\n")
                            results.flush()
    tables(arguments.results)
