#!/usr/bin/env python3
"""How long many ranks take to form a group and to train ten steps of a small net, and what each of them holds.

    cargo build --release
    python benchmarks/ranks.py --host "ip netns exec h{}" --address ADDRESS [--nodes 8,16,32] [--ranks 8]

A host is the command that runs a program there, with {} for its number from 1; ADDRESS is the first host's. Each rank is a process.
Prints the seconds from the first process until the group is formed and until the first step is done, those of ten more steps, and
file descriptors and memory (PSS) of rank 0 and, in the median, of the others. Nothing else should run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import all_reduce

STEPS = 10
# Ranks that share a core with a hundred others may not run for a while.
PATIENCE = ["--heartbeat", "60", "--timeout", "300"]


def held(process):
    """File descriptors and KiB of a rank."""
    with open(f"/proc/{process.pid}/smaps_rollup") as rollup:
        pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return len(os.listdir(f"/proc/{process.pid}/fd")), pss


def measure(program, place):
    with tempfile.TemporaryDirectory() as out:
        words = [os.path.abspath(program), "train", "--model", "mlp", "--size", "8", "--batch", "1", "--threads", "1", "--epochs", "1000"]
        words += ["--json", "--log-every", "1", "--out", f"{out}/run", *PATIENCE]
        said = open(f"{out}/said", "w+")
        began, ranks = time.perf_counter(), []
        for prefix, variables in zip(place.prefixes, place.variables()):
            output = subprocess.DEVNULL if ranks else subprocess.PIPE
            environment = {**os.environ, **variables}
            ranks.append(subprocess.Popen([*prefix, *words], stdout=output, stderr=said, text=True, env=environment))
        times = {}
        for line in ranks[0].stdout:
            event = json.loads(line)
            times[event.get("step", event["event"])] = time.perf_counter() - began
            if event.get("step") == 1 + STEPS:
                break
        if 1 + STEPS not in times:
            said.seek(0)
            sys.exit(said.read())
        found = [held(rank) for rank in ranks]
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait()
    return times["start"], times[1], times[1 + STEPS] - times[1], found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="target/release/enmasse")
    p.add_argument("--host", metavar="COMMAND", required=True)
    p.add_argument("--address", required=True)
    p.add_argument("--nodes", default="8,16,32", help="a list")
    p.add_argument("--ranks", type=int, default=8, help="of each node")
    a = p.parse_args()
    print("| ranks | nodes | formed, s | first step, s | ten steps, s | files: rank 0 | others | PSS: rank 0, MiB | others |")
    print("|" + "---|" * 9, flush=True)
    for nodes in map(int, a.nodes.split(",")):
        place = all_reduce.Place([a.host.format(node + 1) for node in range(nodes)], a.ranks, a.address, None)
        formed, first, steps, (zero, *others) = measure(a.program, place)
        files, pss = (statistics.median(values) for values in zip(*others))
        sizes = f"{zero[0]} | {files:.0f} | {zero[1] / 1024:.1f} | {pss / 1024:.1f}"
        print(f"| {place.world} | {nodes} | {formed:.1f} | {first:.1f} | {steps:.1f} | {sizes} |", flush=True)


main()
