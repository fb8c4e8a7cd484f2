#!/usr/bin/env python3
"""What `bench scaling --simulate` predicts, compared with training steps of ResNet-18 on several hosts.

    cargo build --release
    python benchmarks/scaling.py --host "COMMAND" --host "COMMAND" --address ADDRESS --link 1Gbit [--ranks 1] [--batch 4,16]

A host is the command that runs a program there, such as `ip netns exec a`; ADDRESS is the first host's. Prints the milliseconds
of a step, the median over rounds. Nothing else should run, and the hosts together need a core for each rank.
"""
import argparse
import json
import statistics
import subprocess

import all_reduce


def predict(program, batch, nodes, ranks, link, bus):
    """Milliseconds of a step: on one device, and on the cluster."""
    cluster = f"nodes={nodes},gpus={ranks},link={link},bus={bus}"
    words = [program, "bench", "scaling", "--model", "resnet18", "--size", str(all_reduce.SIZE), "--batch", str(batch)]
    words += ["--devices", "cpu:1", "--threads", "1", "--steps", "20", "--json", "--simulate", cluster]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    rows = [row for row in map(json.loads, output.splitlines()) if not row["sync_bn"]]
    times = [row["devices"] * batch / row["images_per_second"] * 1e3 for row in rows]
    return times[0], times[-1]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--program", default="target/release/enmasse")
    p.add_argument("--host", action="append", metavar="COMMAND", required=True)
    p.add_argument("--ranks", type=int, default=1, help="of each host")
    p.add_argument("--address", required=True)
    p.add_argument("--link", required=True)
    p.add_argument("--bus", default="5GB", help="between the ranks of a host")
    p.add_argument("--batch", default="4,16", help="of a rank; a list")
    a = p.parse_args()
    place = all_reduce.Place(a.host, a.ranks, a.address, None)
    print("| batch | one rank, ms | predicted, ms | measured, ms | predicted / measured |\n|---|---|---|---|---|")
    for batch in map(int, a.batch.split(",")):
        rounds = []
        for _ in range(a.rounds):
            one, predicted = predict(a.program, batch, len(a.host), a.ranks, a.link, a.bus)
            rounds.append((one, predicted, place.step(a.program, batch)["step"]))
        one, predicted, measured = map(statistics.median, zip(*rounds))
        print(f"| {batch} | {one:.4g} | {predicted:.4g} | {measured:.4g} | {predicted / measured:.2f} |")


main()
