#!/usr/bin/env python3
"""All-reduce of f32 sums and barrier over two processes of one machine, compared with PyTorch's Gloo, in turns.

    cargo build --release -p enmasse-comm --example all_reduce
    python benchmarks/all_reduce.py [--rounds 3] [--program target/release/examples/all_reduce]

Prints the median time of one call by size, the median over rounds. Needs PyTorch. Nothing else should run.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = [4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20]


def gloo(rank, port):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

    def measure(call, count):
        call()
        times = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    found = {}
    for size in SIZES:
        data = torch.ones(size // 4)
        found[str(size)] = measure(lambda: dist.all_reduce(data), max(10, min(200, (200 << 20) // size)))
    found["barrier"] = measure(dist.barrier, 200)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def run_gloo():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, "--gloo", str(rank), port], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in (0, 1)
    ]
    text = [rank.communicate()[0] for rank in ranks][0]
    if any(rank.returncode for rank in ranks):
        sys.exit("gloo failed")
    return json.loads(text.splitlines()[-1])


def run_own(program):
    done = subprocess.run([program, "processes", "2", "shared"], stdout=subprocess.PIPE, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {"barrier" if r["op"] == "barrier" else str(r["bytes"]): r["median_ms"] for r in records}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--program", default="target/release/examples/all_reduce")
    p.add_argument("--gloo", nargs=2, metavar=("RANK", "PORT"), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.gloo:
        return gloo(int(a.gloo[0]), a.gloo[1])
    own, peer = [], []
    for _ in range(a.rounds):
        own.append(run_own(a.program))
        peer.append(run_gloo())
    print("| bytes | enmasse, ms | Gloo, ms | Gloo / enmasse |\n|---|---|---|---|")
    for key in [*map(str, SIZES), "barrier"]:
        ours = statistics.median(round_[key] for round_ in own)
        theirs = statistics.median(round_[key] for round_ in peer)
        print(f"| {key} | {ours:.4f} | {theirs:.3f} | {theirs / ours:.0f} |")


main()
