#!/usr/bin/env python3
"""What the death of a rank costs: seconds from kill -9 until the next attempt begins its first step, and steps that run twice.

    python benchmarks/kills.py --data DIR [--enmasse target/release/enmasse] [--model resnet34] [--size 224] [--batch 16] [--runs 5] [--torchft PYTHON]

Ranks of `enmasse launch --max-restarts` train. One of them is killed after some steps, each rank in turn. Times are those at which lines
arrive here: that of the attempt's beginning, and that of its first step, which comes while the second one is computed. The figures are
medians, with the least and the greatest. --torchft runs the same model under torchft (kills_torchft.py) after that, by a Python with PyTorch,
torchvision and torchft. There, the ranks that are left go on alone until the killed one is back.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import kills_torchft

# Steps before the kill.
STEPS = 5


def rank_process(launcher, rank):
    """The process of a rank that this launcher has started."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise SystemExit(f"the launcher has no rank {rank}")


def once(arguments, rank):
    with tempfile.TemporaryDirectory() as folder:
        train = [arguments.enmasse, "train", arguments.data, "--out", f"{folder}/run", "--model", arguments.model]
        train += ["--size", str(arguments.size), "--batch", str(arguments.batch), "--epochs", "1000", "--log-every", "1"]
        train += ["--save-every", str(arguments.save_every), "--lr", "1e-3", "--json", "--resume"]
        launch = [arguments.enmasse, "launch", "-n", str(arguments.ranks), "--max-restarts", "1"]
        process = subprocess.Popen([*launch, *train], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # The time of each line of a step, by attempt.
        steps, killed, begun = [[]], None, None
        try:
            for line in process.stdout:
                now, event = time.monotonic(), json.loads(line)
                if event["event"] == "start" and steps[-1]:
                    steps.append([])
                    begun = now
                if event["event"] != "step":
                    continue
                steps[-1].append((event["step"], now))
                if killed is None and len(steps[0]) == STEPS:
                    killed = time.monotonic()
                    os.kill(rank_process(process.pid, rank), signal.SIGKILL)
                if len(steps) == 2:
                    break
        finally:
            process.terminate()
            process.communicate()
        if len(steps) < 2:
            raise SystemExit("the ranks did not start again")
        times = [time for _, time in steps[0]]
        return {
            "step": statistics.median(later - earlier for earlier, later in zip(times, times[1:])),
            "begun": begun - killed,
            "first": steps[1][0][1] - killed,
            "twice": sum(step >= steps[1][0][0] for step, _ in steps[0]),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--enmasse", default="target/release/enmasse")
    parser.add_argument("--model", default="resnet34")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kill", type=int, action="append", help="a rank to kill, instead of each in turn")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torchft", metavar="PYTHON", help="an interpreter that has torchft")
    arguments = parser.parse_args()
    # The end of this program is the end of the ranks, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    victims = arguments.kill or range(arguments.ranks)

    def table(heads, run, figures):
        print(f"\n| killed | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}", flush=True)
        for rank in victims:
            found = [run(rank) for _ in range(arguments.runs)]
            cells = []
            for figure in figures:
                values = [one[figure] for one in found]
                cells.append(f"{statistics.median(values):.3g} ({min(values):.3g} - {max(values):.3g})")
            print(f"| rank {rank} | {' | '.join(cells)} |", flush=True)

    heads = ["a step, s", "from the kill to the next attempt's beginning, s", "to the line of its first step, s", "steps run twice"]
    table(heads, lambda rank: once(arguments, rank), ["step", "begun", "first", "twice"])
    if arguments.torchft:
        heads = ["torchft: a step, s", "from the kill to the next step of those left, s", "to the next step of all, s", "samples lost"]
        same = arguments.model, arguments.size, arguments.batch, arguments.ranks
        table(heads, lambda rank: kills_torchft.once(arguments.torchft, *same, rank), ["step", "alone", "together", "lost"])


if __name__ == "__main__":
    main()
