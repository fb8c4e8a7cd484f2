"""Trained models, which predict in this process."""
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy
from numpy.typing import NDArray

from . import _native
from ._error import Error

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Guess:
    """A class or a label with its probability."""

    #: The label.
    index: int
    class_name: str
    probability: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of an image."""

    #: Its path, if it was given as one.
    image: str | None
    #: `classification`, `multi-label` or `regression`.
    task: str
    #: Names of the classes, of the labels or of the numbers.
    classes: Sequence[str] = field(repr=False)
    #: The probability of each of the classes, or the numbers, in their order.
    outputs: NDArray[numpy.float64] = field(repr=False)
    thresholds: Sequence[float] = field(repr=False)

    @property
    def probabilities(self) -> NDArray[numpy.float64]:
        """The probability of each class or label, in the order of `classes`."""
        if self.task == "regression":
            raise Error("the run predicts numbers: use `values`")
        return self.outputs

    @property
    def top(self) -> list[Guess]:
        """The likeliest classes or labels, at most five."""
        return self.top_k(5)

    def top_k(self, k: int) -> list[Guess]:
        """The `k` likeliest classes or labels, the likeliest first."""
        order = numpy.argsort(-self.probabilities, kind="stable")[:k]
        return [Guess(int(index), self.classes[index], float(self.outputs[index])) for index in order]

    @property
    def labels(self) -> list[str]:
        """The labels that are predicted, of a run that predicts labels."""
        if self.task != "multi-label":
            return []
        return [name for name, found, least in zip(self.classes, self.outputs, self.thresholds) if found >= least]

    @property
    def values(self) -> dict[str, float]:
        """The numbers by name, of a run that predicts numbers."""
        return dict(zip(self.classes, self.outputs.tolist())) if self.task == "regression" else {}

    def __str__(self) -> str:
        found = self.values or {guess.class_name: guess.probability for guess in self.top}
        return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


class Predictions(Sequence[Prediction]):
    """The predictions of several images, in their order."""

    #: A row for each image: the probability of each class or label, or the numbers.
    outputs: NDArray[numpy.float64]

    def __init__(self, predictions: Sequence[Prediction], outputs: NDArray[numpy.float64]) -> None:
        self._predictions = predictions
        self.outputs = outputs

    @property
    def probabilities(self) -> NDArray[numpy.float64]:
        """The probabilities of each image, a row each, in the order of the model's `classes`."""
        if any(prediction.task == "regression" for prediction in self._predictions[:1]):
            raise Error("the run predicts numbers: use `outputs`")
        return self.outputs

    @overload
    def __getitem__(self, place: int) -> Prediction: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Prediction]: ...
    def __getitem__(self, place: int | slice) -> Prediction | Sequence[Prediction]:
        return self._predictions[place]

    def __len__(self) -> int:
        return len(self._predictions)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self._predictions)

    def __repr__(self) -> str:
        return f"Predictions({list(self._predictions)!r})"


class Model:
    """The best weights of a run on a device. Threads may share it; they wait for each other. A process that was forked from this one
    loads its own."""

    #: The run folder, or the checkpoint.
    run: Path
    #: The model's name, such as `resnet18`.
    architecture: str
    #: Names of the classes, by label, of the labels or of the numbers.
    classes: list[str]
    #: `classification`, `multi-label` or `regression`.
    task: str
    #: Height and width of the images that the model sees. Others are resized.
    size: int

    def __init__(self, run: str | os.PathLike[str], device: str | None = None) -> None:
        self._model = _native.Model(run, device)
        self.run = Path(run)
        self.architecture, self.classes = self._model.architecture, self._model.classes
        self.task, self.size = self._model.task, self._model.size

    def __repr__(self) -> str:
        return f"Model({str(self.run)!r}: {self.architecture}, {self.task}, {len(self.classes)} classes)"

    @overload
    def predict(self, images: str | os.PathLike[str] | bytes) -> Prediction: ...
    @overload
    def predict(self, images: list[Any] | tuple[Any, ...]) -> Predictions: ...
    @overload
    def predict(self, images: Any) -> Any: ...
    def predict(self, images: Any) -> Prediction | Predictions:
        """What the model says of an image, or of several.

        An image is a path, the bytes of a JPEG, PNG, WebP, BMP or GIF file, an array of bytes (uint8) `[height, width, 3]`, or of grey
        `[height, width]` or `[height, width, 1]`, or an image of Pillow. A list of these, or an array `[images, height, width, channels]`,
        gives a list. Images are prepared as those of validation were. The numbers of one image are those of `enmasse predict RUN --json`, to
        the last bit; in a list the size of the batch may change the last bits.

        Other threads of Python run meanwhile. An image that cannot be read raises `Error`.
        """
        several = isinstance(images, (list, tuple)) or isinstance(images, numpy.ndarray) and images.ndim == 4
        given = [readable(image) for image in images] if several else [readable(images)]
        outputs = numpy.frombuffer(self._model.outputs(given), dtype=numpy.float64).reshape(-1, len(self.classes))
        thresholds = self._model.thresholds
        paths = [None if isinstance(image, (bytes, numpy.ndarray)) else os.fspath(image) for image in given]
        found = [Prediction(path, self.task, self.classes, row, thresholds) for path, row in zip(paths, outputs)]
        return Predictions(found, outputs) if several else found[0]

    def to_torch(self) -> "torch.nn.Module":
        """torchvision's or timm's module with these weights, in evaluation mode. It gives logits."""
        from ._torch import module

        return module(self.run)

    def torch_transform(self) -> Any:
        """torchvision's transform that makes the input of `to_torch` of an image of Pillow."""
        from ._torch import transform

        return transform(self.run)


def readable(image: Any) -> str | os.PathLike[str] | bytes | NDArray[numpy.uint8]:
    """An image as the extension takes it."""
    if isinstance(image, (str, os.PathLike, bytes)):
        return image
    # Pillow's: an array of it may have indices of a palette, or four channels.
    array = numpy.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    if array.dtype != numpy.uint8:
        raise TypeError(f"an image is an array of uint8, not of {array.dtype}")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or array.size == 0:
        raise ValueError(f"an image has the shape [height, width, 3], or 1 for grey, not {list(array.shape)}")
    return numpy.ascontiguousarray(numpy.broadcast_to(array, (*array.shape[:2], 3)))


def load(run: str | os.PathLike[str], device: str | None = None) -> Model:
    """Loads the best weights of a run folder, or a checkpoint, on the kind of device that trained them, or on `device`: `cpu` where there
    is no GPU, or `gpu`.

    >>> model = enmasse.load("runs/flowers")
    >>> model.predict("rose.jpg").top[0].class_name
    """
    return Model(run, device)
