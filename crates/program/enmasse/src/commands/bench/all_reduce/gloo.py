"""The all-reduce and the barrier of PyTorch's Gloo over processes of this machine, in JSON lines: RANKS BYTES,... BUDGET PORT RANK OUTPUT."""
import json
import os
import subprocess
import sys
import time

ranks, sizes, budget, port, rank, output = sys.argv[1:]
ranks, rank = int(ranks), int(rank)
if rank == 0:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code = open("/proc/self/cmdline", "rb").read().split(b"\0")[2].decode()
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(ranks), sizes, budget, port, str(other), output])
        for other in range(1, ranks)
    ]
os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)


def measure(operation, size):
    def call():
        start = time.perf_counter()
        operation()
        return time.perf_counter() - start

    last = [call() for _ in range(3)][-1]
    calls = torch.tensor([max(5, min(1000, int(float(budget) / last)))])
    dist.broadcast(calls, 0)
    return {"version": torch.__version__, "bytes": size, "times": [call() for _ in range(int(calls))]}


lines = []
for size in map(int, sizes.split(",")):
    data = torch.zeros(size // 4)
    lines.append(measure(lambda: dist.all_reduce(data), size))
lines.append(measure(dist.barrier, None))
dist.destroy_process_group()
if rank == 0:
    with open(output, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    sys.exit(any([other.wait() for other in others]))
