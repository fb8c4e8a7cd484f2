from collections.abc import Sequence
from os import PathLike

import numpy
from numpy.typing import NDArray

class Model:
    classes: list[str]
    architecture: str
    task: str
    size: int
    thresholds: list[float]
    def __new__(cls, run: str | PathLike[str], device: str | None) -> Model: ...
    def outputs(self, images: Sequence[bytes | str | PathLike[str] | NDArray[numpy.uint8]]) -> bytes: ...
