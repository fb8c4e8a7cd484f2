#!/usr/bin/env python3
"""What the page of a run costs training: a small net trains with and without `--dashboard` and clients that read it, in turns.

    python benchmarks/view.py [--enmasse target/release/enmasse] [--rounds 3] [--clients 10] [--epochs 9] [--size 32]
        [--model mobilenet_v3_small] [--results FILE]

The net trains on the embedded images, with all cores of the machine. Each client does what a browser with the page open does: it loads the
page, reads its stream of events, and after each event loads the images that have changed. The clients run on this machine, where they
have the lowest priority, so a part of what they take counts too. A round is one run of each kind, and the next one has them in the
other order. Its ratio is that of the time of all epochs but the first. With `--results` a file keeps the rounds of earlier calls, so
that several short ones count together. Nothing else may run.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading


class Client(threading.Thread):
    """A browser with the page of the run open."""

    def __init__(self, host, token):
        super().__init__(daemon=True)
        self.host, self.token, self.shown, self.events = host, token, set(), 0

    def get(self, path):
        connection = http.client.HTTPConnection(self.host)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        return connection.getresponse()

    def run(self):
        try:
            for path in ("/run/0", "/style.css", "/view.js"):
                self.get(path).read()
            for line in self.get("/run/0/events"):
                for image in re.findall(rb'src="([^"]+)"', line):
                    if image not in self.shown:
                        self.shown.add(image)
                        self.get(image.decode().replace("&amp;", "&")).read()
                self.events += line == b"\n"
        except (OSError, http.client.HTTPException):
            pass  # The run has ended.


def clients(count):
    """Takes the link from standard input, reads until the run ends, and prints how many events came."""
    os.nice(19)
    link = sys.stdin.readline()
    host, token = re.search(r"http://([^/]+)/\?token=(\w+)", link).groups()
    own = [Client(host, token) for _ in range(count)]
    for client in own:
        client.start()
    for client in own:
        client.join()
    print(sum(client.events for client in own))


def train(arguments, watched):
    """The seconds of all epochs but the first, and how many events clients had."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        words = [arguments.enmasse, "train", "--model", arguments.model, "--size", str(arguments.size), "--out", str(run)]
        words += ["--epochs", str(arguments.epochs), *(["--dashboard", "0"] if watched else [])]
        # Python starts before the run, not beside it.
        reading = [sys.executable, __file__, "--reads", "--clients", str(arguments.clients)]
        readers = subprocess.Popen(reading, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) if watched else None
        training = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in training.stderr:
            if readers and "as a page" in line:
                readers.stdin.write(line)
                readers.stdin.flush()
        if training.wait() != 0:
            raise SystemExit("the run failed")
        events = int(readers.communicate()[0]) if readers else 0
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return sum(epoch["seconds"] for epoch in epochs[1:]), events


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enmasse", default="target/release/enmasse")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--model", default="mobilenet_v3_small")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--reads", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reads:
        return clients(arguments.clients)
    kept = arguments.results
    rounds = json.loads(kept.read_text()) if kept and kept.exists() else []
    for _ in range(arguments.rounds):
        order = [False, True] if len(rounds) % 2 == 0 else [True, False]
        found = {watched: train(arguments, watched) for watched in order}
        (without, _), (seconds, events) = found[False], found[True]
        rounds.append([without, seconds, events])
        if kept:
            kept.write_text(json.dumps(rounds))
    without, watched, events = (sorted(column) for column in zip(*rounds))
    ratios = sorted(round[1] / round[0] for round in rounds)
    print(f"{len(rounds)} rounds of {arguments.epochs} epochs, {arguments.clients} clients, {events[0]} to {events[-1]} events each round\n")
    print("| | median | least | greatest |\n|---|---|---|---|")
    rows = [("seconds without a page", without), ("seconds with the page and clients", watched), ("ratio", ratios)]
    for name, values in rows:
        print(f"| {name} | {statistics.median(values):.3f} | {values[0]:.3f} | {values[-1]:.3f} |")


if __name__ == "__main__":
    main()
