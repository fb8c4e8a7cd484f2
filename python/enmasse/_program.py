"""The program `enmasse` of this package."""
import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from ._error import Error


def path() -> Path:
    """Where it is: beside Python, as pip has put it there, or in `bin` beside the packages of `pip install --target`."""
    try:
        installed = [Path(str(file.locate())) for file in files("enmasse") or () if file.name == "enmasse"]
    except PackageNotFoundError:
        installed = []
    for program in [*installed, Path(__file__).parent.parent / "bin/enmasse"]:
        if program.is_file():
            return program.resolve()
    raise Error(f"{Path(__file__).parent}: the program enmasse is not installed with this package; install it again by pip")


def failure(code: int, lines: Sequence[str]) -> Error:
    """The error of a program that has ended with this code and these last lines."""
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return Error(said[-1] if said else "\n".join([f"enmasse {ended}", *lines]), code)


def run(*arguments: str) -> Mapping[str, Any]:
    """What a command prints as one JSON object."""
    ended = subprocess.run([path(), *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode != 0:
        raise failure(ended.returncode, ended.stderr.splitlines())
    found: Mapping[str, Any] = json.loads(ended.stdout)
    return found
