#!/usr/bin/env python3
"""Times of the launcher, compared with torchrun's: until all ranks run, from a rank's death to SIGTERM at the others, and to the
launcher's end.

    python benchmarks/launch.py --enmasse target/release/enmasse --torchrun /path/to/torchrun [--ranks 2] [--runs 7]

Both launchers run this file as their ranks, under the same interpreter, in turns. The ranks themselves take the times, with a clock
that all processes of a machine share (CLOCK_MONOTONIC). The figures are medians, with the least and the greatest.
"""
import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

CASES = {
    "start": "from the command to the last rank's first line",
    "term": "from the death of rank 1 to SIGTERM at the others",
    "end": "from the death of rank 1 to the launcher's end",
    "quit": "from the last rank's success to the launcher's end",
}


def rank(folder, kind):
    """One rank: notes when it starts, when it dies, and when it is asked to stop."""
    number = os.environ["RANK"]

    def note(event):
        (folder / f"{event}.{number}").write_text(str(time.monotonic()))

    def asked(*_):
        note("term")
        os._exit(0)

    signal.signal(signal.SIGTERM, asked)
    note("start")
    # All ranks run before one dies.
    ready = {f"start.{other}" for other in range(int(os.environ["WORLD_SIZE"]))}
    while not ready <= {path.name for path in folder.iterdir()}:
        time.sleep(0.001)
    if kind == "fail" and number != "1":
        signal.pause()
    note("died")
    os._exit(3 if kind == "fail" else 0)


def noted(folder, event):
    return [float(path.read_text()) for path in folder.glob(f"{event}.*")]


def once(command, ranks, kind):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = [*command, f"--nproc-per-node={ranks}", __file__, "--rank", name, kind]
        began = time.monotonic()
        environment = {**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=kind != "fail")
        ended = time.monotonic()
        times = {"start": max(noted(folder, "start")) - began}
        died = max(noted(folder, "died"))
        if kind == "fail":
            times |= {"term": max(noted(folder, "term")) - died, "end": ended - died}
        else:
            times |= {"quit": ended - died}
        return times


def main():
    if sys.argv[1:2] == ["--rank"]:
        return rank(pathlib.Path(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enmasse", default="target/release/enmasse")
    parser.add_argument("--torchrun", default="torchrun")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    launchers = {"enmasse launch": [arguments.enmasse, "launch"], "torchrun": [arguments.torchrun, "--standalone"]}
    found = {name: {case: [] for case in CASES} for name in launchers}
    for _ in range(arguments.runs):
        for kind in ["fail", "succeed"]:
            for name, command in launchers.items():
                for case, seconds in once(command, arguments.ranks, kind).items():
                    found[name][case].append(1000 * seconds)
    print(f"{arguments.ranks} ranks, {arguments.runs} runs in turns, milliseconds: median (least - greatest)\n")
    print("| | " + " | ".join(launchers) + " | ratio |\n|---|" + "---|" * (len(launchers) + 1))
    for case, words in CASES.items():
        medians = {name: statistics.median(times[case]) for name, times in found.items()}
        cells = [f"{medians[name]:.1f} ({min(found[name][case]):.1f} - {max(found[name][case]):.1f})" for name in launchers]
        ours, theirs = medians.values()
        print(f"| {words} | " + " | ".join(cells) + f" | {theirs / ours:.0f} |")


if __name__ == "__main__":
    main()
