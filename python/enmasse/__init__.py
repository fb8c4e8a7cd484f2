"""Data-parallel training of image classifiers, by the program `enmasse` that this package brings.

>>> for epoch in enmasse.train("flower_photos", pretrained=True, epochs=3):
...     print(epoch.epoch, epoch.val_accuracy)
>>> model = enmasse.load("runs/flowers")
>>> model.predict("rose.jpg").top[0]
"""
from importlib.metadata import PackageNotFoundError, version

from ._error import Error
from ._model import Guess, Model, Prediction, Predictions, load
from ._settings import Settings
from ._train import Epoch, Result, Training, train

__all__ = [
    "Epoch",
    "Error",
    "Guess",
    "Model",
    "Prediction",
    "Predictions",
    "Result",
    "Settings",
    "Training",
    "load",
    "train",
]
try:
    __version__ = version("enmasse")
except PackageNotFoundError:  # The folder of the repository.
    __version__ = "0"
