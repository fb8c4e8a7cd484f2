#!/usr/bin/env python3
"""All-reduce of f32 sums and barrier, compared with PyTorch's Gloo, in turns: over two processes of one machine, or over
several ranks on each of several hosts.

    cargo build --release -p enmasse-comm --example all_reduce
    python benchmarks/all_reduce.py [--rounds 3] [--program target/release/examples/all_reduce]
    python benchmarks/all_reduce.py --host "COMMAND" --host "COMMAND" --address ADDRESS --interface eth0 [--ranks 2]

A host is the command that runs a program there, such as `ip netns exec a`; ADDRESS is the first host's. With
`--before PROGRAM` an earlier build takes its turn too, over TCP. With `--step PROGRAM` (enmasse itself) training steps of
ResNet-18 are compared instead, with PyTorch's DistributedDataParallel.

Prints the median time of one call by size, the median over rounds. Needs PyTorch. Nothing else should run.
"""
import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = [4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20]
HOST_SIZES = [1 << 20, 16 << 20, 64 << 20]
TOKEN = "a secret of the benchmark's ranks"
# Steps of training, the first of which are not counted.
STEPS, WARM = 24, 4
BATCH, SIZE = 4, 64


def gloo(rank, world, address, port, what):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world)
    if what == "step":
        return ddp(rank)

    def measure(call, count):
        call()
        times = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    found = {}
    for size in map(int, what.split(",")):
        data = torch.ones(size // 4)
        found[str(size)] = measure(lambda: dist.all_reduce(data), max(10, min(200, (200 << 20) // size)))
    found["barrier"] = measure(dist.barrier, 200)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def ddp(rank):
    """Milliseconds of a step of ResNet-18 under DistributedDataParallel, with its usual buckets."""
    import torch
    import torchvision

    model = torchvision.models.resnet18(num_classes=10).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,))
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        print(json.dumps({"step": statistics.median(times[WARM:])}))
    torch.distributed.destroy_process_group()


def run_all(commands, environments):
    """Runs a command for each rank, and returns the first one's lines, each with the time in seconds when it came."""
    ranks = []
    for rank, (command, environment) in enumerate(zip(commands, environments)):
        output = subprocess.DEVNULL if rank else subprocess.PIPE
        ranks.append(subprocess.Popen(command, stdout=output, text=True, env={**os.environ, **environment}))
    lines = [(time.perf_counter(), line) for line in ranks[0].stdout]
    if any([rank.wait() for rank in ranks]):
        sys.exit(f"{shlex.join(commands[0])} failed")
    return lines


class Place:
    """The ranks of a measurement: the command that runs a program for each, and where they meet."""

    def __init__(self, hosts, ranks, address, interface):
        self.prefixes = [shlex.split(host) for host in hosts for _ in range(ranks)]
        self.nodes = [node for node in range(len(hosts)) for _ in range(ranks)]
        self.locals = [local for _ in hosts for local in range(ranks)]
        self.ranks, self.address, self.interface = ranks, address, interface
        self.world = len(self.prefixes)

    def port(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return str(s.getsockname()[1])

    def gloo(self, what):
        port, script = self.port(), os.path.abspath(__file__)
        words = [sys.executable, script, "--gloo"]
        commands = [[*prefix, *words, str(rank), str(self.world), self.address, port, what] for rank, prefix in enumerate(self.prefixes)]
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.interface}
        return json.loads(run_all(commands, [environment] * self.world)[-1][1])

    def variables(self):
        common = {"WORLD_SIZE": str(self.world), "MASTER_ADDR": self.address, "MASTER_PORT": self.port(), "ENMASSE_TOKEN": TOKEN}
        common |= {"LOCAL_WORLD_SIZE": str(self.ranks), "GROUP_WORLD_SIZE": str(self.world // self.ranks)}
        places = zip(range(self.world), self.nodes, self.locals)
        return [{**common, "RANK": str(rank), "GROUP_RANK": str(node), "LOCAL_RANK": str(local)} for rank, node, local in places]

    def sums(self, program, transport, sizes):
        words = [os.path.abspath(program), "processes", str(self.world), transport, ",".join(map(str, sizes))]
        lines = run_all([[*prefix, *words] for prefix in self.prefixes], self.variables())
        records = [json.loads(line) for _, line in lines]
        return {"barrier" if r["op"] == "barrier" else str(r["bytes"]): r["median_ms"] for r in records}

    def step(self, program, batch=BATCH):
        """Milliseconds between two steps' lines."""
        with tempfile.TemporaryDirectory() as out:
            words = [os.path.abspath(program), "train", "--model", "resnet18", "--size", str(SIZE), "--batch", str(batch)]
            words += ["--threads", "1", "--epochs", "9", "--max-steps", str(STEPS), "--json", "--log-every", "1", "--out", f"{out}/run"]
            lines = run_all([[*prefix, *words] for prefix in self.prefixes], self.variables())
        times = [when for when, line in lines if json.loads(line)["event"] == "step"]
        return {"step": statistics.median((b - a) * 1e3 for a, b in zip(times[WARM:], times[WARM + 1 :]))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--program", default="target/release/examples/all_reduce")
    p.add_argument("--before", metavar="PROGRAM")
    p.add_argument("--step", metavar="PROGRAM")
    p.add_argument("--host", action="append", metavar="COMMAND")
    p.add_argument("--ranks", type=int, default=2, help="of each host")
    p.add_argument("--address", default="127.0.0.1")
    p.add_argument("--interface", default="lo")
    p.add_argument("--gloo", nargs=5, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.gloo:
        rank, world, *rest = a.gloo
        return gloo(int(rank), int(world), *rest)
    place = Place(a.host or [""], a.ranks, a.address, a.interface)
    if a.step:
        keys, what = ["step"], "step"
        own, before = lambda: place.step(a.step), lambda: place.step(a.before)
    else:
        sizes = HOST_SIZES if a.host else SIZES
        keys, what = [*map(str, sizes), "barrier"], ",".join(map(str, sizes))
        own = lambda: place.sums(a.program, "auto", sizes)
        before = lambda: place.sums(a.before, "tcp", sizes)
    programs = {"enmasse": own, **({"before": before} if a.before else {}), "Gloo": lambda: place.gloo(what)}
    found = {name: [] for name in programs}
    for _ in range(a.rounds):
        for name, run in programs.items():
            found[name].append(run())
    names = list(programs)
    print("| bytes | " + " | ".join(f"{name}, ms" for name in names) + " | Gloo / enmasse |\n|" + "---|" * (len(names) + 2))
    for key in keys:
        times = {name: statistics.median(round_[key] for round_ in rounds) for name, rounds in found.items()}
        print(f"| {key} | " + " | ".join(f"{times[name]:.4g}" for name in names) + f" | {times['Gloo'] / times['enmasse']:.2g} |")


if __name__ == "__main__":
    main()
