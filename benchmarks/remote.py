#!/usr/bin/env python3
"""Images of data on a server through the loader, for servers of several latencies: with a cache that has nothing, and with all of it.

    python benchmarks/remote.py --data FLOWER_PHOTOS [--copies 4] [--threads 2] [--rounds 3] [--program loader_bench]

Serves the photographs, each as often as --copies says, as a packed file, as eight archives and as one. The server, on loopback, waits
before each answer, as one that is far away. The data are opened for the first time. Then all images are removed from the cache, and an
epoch of training (RandomResizedCrop 224 and flip) follows, then two more. --program is another build to measure. The programs run in turns,
--rounds times, and the medians count.
"""
import argparse
import datetime
import http.server
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from tutorials import commit, hardware, table

DELAYS = [0, 20, 50, 100]
SHARDS = 8
FIGURES = {
    "open_ms": "opening, ms",
    "first_pass_images_per_second": "cold, /s",
    "images_per_second": "warm, /s",
    "requests": "requests",
}


class Server(http.server.ThreadingHTTPServer):
    """Gives parts of the files in a folder, each after a delay, and counts the requests."""

    daemon_threads = True
    request_queue_size = 128
    delay = 0.0
    requests = 0

    def __init__(self, folder):
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head of an answer must not wait for its body.
    wbufsize = -1

    def do_GET(self):
        self.server.requests += 1
        time.sleep(self.server.delay)
        data = memoryview(self.server.files[self.path.strip("/")])
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        part = data[first : last + 1]
        self.send_response(206)
        for name, value in {"ETag": '"1"', "Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}", "Content-Length": len(part)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *words):
        pass


def write_archives(images, names):
    """Each image with its class, in turns into each archive."""
    archives = [tarfile.open(name, "w") for name in names]
    for number, image in enumerate(images):
        members = {f"{number:06}.jpg": image.read_bytes(), f"{number:06}.cls": image.parent.name.encode()}
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archives[number % len(archives)].addfile(member, io.BytesIO(content))
    for archive in archives:
        archive.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    p.add_argument("--copies", type=int, default=4, help="of each image")
    p.add_argument("--threads", type=int, default=2, help="of the loader")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--program", type=Path, help="an earlier build of loader_bench, to compare")
    a = p.parse_args()
    build = ["cargo", "build", "--release", "-p", "enmasse-datasets", "--example", "loader_bench"]
    subprocess.run(build, check=True)
    programs = {"": Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/examples/loader_bench"}
    if a.program:
        programs = {"before": a.program, "after": programs[""]}

    def run(program, *words):
        found = subprocess.run([program, *map(str, words)], check=True, text=True, stdout=subprocess.PIPE).stdout
        return json.loads(found.splitlines()[0])

    found = {}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        served = place / "served"
        served.mkdir()
        for image in sorted(a.data.glob("*/*.jpg")):
            (place / "images" / image.parent.name).mkdir(parents=True, exist_ok=True)
            for number in range(a.copies):
                (place / "images" / image.parent.name / f"{number}-{image.name}").symlink_to(image.absolute())
        run(programs[max(programs)], place / "images", "--pack", served / "images.packed")
        images = sorted((place / "images").glob("*/*.jpg"))
        write_archives(images, [served / f"{number}.tar" for number in range(SHARDS)])
        write_archives(images, [served / "all.tar"])
        server = Server(served)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        names = {
            "packed file": f"{address}/images.packed",
            "archives": f"{address}/{{0..{SHARDS - 1}}}.tar",
            "one archive": f"{address}/all.tar",
        }
        for number in range(a.rounds):
            for (data, name), delay, (title, program) in ((n, d, q) for n in names.items() for d in DELAYS for q in programs.items()):
                cache = tempfile.TemporaryDirectory(dir=place)
                words = [name, "--cache", cache.name, "--threads", a.threads]
                server.delay = delay / 1e3
                # Archives are searched for their samples, which are known from then on.
                record = run(program, *words, "--open")
                for piece in Path(cache.name).glob("*/*.piece"):
                    piece.unlink()
                server.requests = 0
                record |= run(program, *words, "--passes", 3)
                found.setdefault((data, delay, title), []).append(record | {"requests": server.requests})
                cache.cleanup()
            print(f"round {number + 1} of {a.rounds} done", file=sys.stderr)
        size = sum(map(len, server.files.values())) / len(names) / 1e6

    median = lambda key, figure: statistics.median(record[figure] for record in found[key])
    rows = []
    for data in names:
        for delay in DELAYS:
            rows.append([data, delay, *(f"{median((data, delay, title), figure):.0f}" for title in programs for figure in FIGURES)])
    heads = [f"{head}{title and f', {title}'}" for title in programs for head in FIGURES.values()]
    samples = next(iter(found.values()))[0]["samples"]
    print(f"{datetime.date.today()}, commit {commit()}; {hardware()}; {samples} images of training, {size:.0f} MB in each form")
    table("Images per second", ["data", "delay, ms", *heads], rows)


if __name__ == "__main__":
    main()
