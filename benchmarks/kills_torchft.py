"""Training under torchft, for kills.py: a lighthouse, a replica group of one process for each rank, and the same kills.

The settings are those of torchft's README: its lighthouse with a tick of 100 ms, a replica that is enough, and 10 seconds to join. Each process
has the model from torchvision in torchft's DistributedDataParallel over Gloo, a thread, and a batch of random images that stays, so it reads no data.
A process that was killed is started again at once, and gets the weights from another one.
"""
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

STEPS = 5
# In which both replicas must be at work again.
DEADLINE = 300


def replica(model, size, batch, number):
    """One process of training, which prints a line of JSON after each step."""
    from datetime import timedelta

    import torch
    import torchvision
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = torchvision.models.get_model(model, num_classes=10)
    momentum = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def load(state):
        net.load_state_dict(state["model"])
        momentum.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": momentum.state_dict()},
        replica_id=f"replica_{number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
        hostname="127.0.0.1",
    )
    parallel, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, momentum)
    images, labels = torch.rand(batch, 3, size, size), torch.randint(10, (batch,))
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        step = manager.current_step()
        print(json.dumps({"step": step, "counts": step > before, "replicas": manager.num_participants()}), flush=True)


def lighthouse():
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, quorum_tick_ms=100)
    print(server.address(), flush=True)
    signal.pause()


class Job:
    """A lighthouse, and the replicas."""

    def __init__(self, python, model, size, batch):
        self.python, self.model = python, [model, str(size), str(batch)]
        self.lines = queue.Queue()
        self.replicas = {}
        self.lighthouse = subprocess.Popen([python, __file__, "lighthouse"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.lighthouse.stdout.readline().strip()

    def start(self, number):
        """Starts a replica, whose lines come into the queue with its number and the time."""
        environment = {**os.environ, "TORCHFT_LIGHTHOUSE": self.address}
        command = [self.python, __file__, "replica", *self.model, str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)

        def read():
            for line in process.stdout:
                self.lines.put((time.monotonic(), number, json.loads(line)))

        threading.Thread(target=read, daemon=True).start()
        self.replicas[number] = process

    def next(self):
        try:
            return self.lines.get(timeout=DEADLINE)
        except queue.Empty:
            raise SystemExit(f"torchft: no step for {DEADLINE} s") from None

    def end(self):
        for process in [*self.replicas.values(), self.lighthouse]:
            process.kill()
            process.wait()


def once(python, model, size, batch, ranks, victim):
    """Kills one of the replicas after some steps of all together."""
    job = Job(python, model, size, batch)
    try:
        for number in range(ranks):
            job.start(number)
        together = []
        while len(together) < STEPS + 1:
            now, number, line = job.next()
            if number == victim and line["counts"] and line["replicas"] == ranks:
                together.append(now)
        killed = time.monotonic()
        job.replicas[victim].send_signal(signal.SIGKILL)
        job.replicas[victim].wait()
        job.start(victim)
        # The step in which the killed one was, of which its batch is lost.
        alone, lost = None, 1
        while True:
            now, number, line = job.next()
            if now < killed:
                continue
            if not line["counts"]:
                lost += 1
            elif line["replicas"] < ranks:
                alone = alone or now
            elif alone or number == victim:
                break
        return {
            "step": statistics.median(later - earlier for earlier, later in zip(together, together[1:])),
            "alone": (alone or now) - killed,
            "together": now - killed,
            "lost": lost * batch,
        }
    finally:
        job.end()


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    if role == "lighthouse":
        lighthouse()
    else:
        model, size, batch, number = words
        replica(model, int(size), int(batch), number)
