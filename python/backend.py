"""Builds the wheel: maturin's own backend, which packs the extension and the package, after the program was built for it to pack.

maturin gives a wheel either a program or an extension. What lies in `python/enmasse.data/scripts` becomes a program of the wheel too.
"""
import argparse
import json
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import build_sdist, get_requires_for_build_sdist, get_requires_for_build_wheel, prepare_metadata_for_build_wheel

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_sdist", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"]

SCRIPTS = Path(__file__).resolve().parent / "enmasse.data/scripts"
# maturin wants the folder from its first step on.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_program(profile):
    # With the extension, whose features decide how the library under both is compiled.
    command = ["cargo", "build", "--locked", "--profile", profile, "--package", "enmasse", "--package", "enmasse-python",
               "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    [program] = [message["executable"] for message in messages if message.get("executable")]
    shutil.copy2(program, SCRIPTS / "enmasse")
    if profile == "release":
        subprocess.run(["strip", SCRIPTS / "enmasse"], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    arguments = maturin.get_maturin_pep517_args(config_settings)
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="release")
    build_program(parser.parse_known_args(arguments)[0].profile)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
