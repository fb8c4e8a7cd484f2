"""What a type checker knows of the package. It is checked, and never run."""
from pathlib import Path
from typing import assert_type

import enmasse
import numpy
from numpy.typing import NDArray

training = enmasse.train("images", epochs=3, lr=0.01, pretrained=True, optimizer="adamw", out=Path("run"), mean=[0.5])
for epoch in training:
    assert_type(epoch, enmasse.Epoch)
    assert_type(epoch.val_accuracy, float | None)
assert_type(training.result, enmasse.Result | None)
model = enmasse.load("run")
assert_type(model.predict("rose.jpg"), enmasse.Prediction)
assert_type(model.predict(["rose.jpg", Path("tulip.png")]), enmasse.Predictions)
assert_type(model.predict(["rose.jpg"]).probabilities, NDArray[numpy.float64])
assert_type(model.predict("rose.jpg").top[0].probability, float)
# Each of these is an error, so that an unused one shows what is not checked.
enmasse.train("images", epoch=3)  # type: ignore[call-arg]
enmasse.train("images", epochs="many")  # type: ignore[arg-type]
enmasse.train("images", optimizer="adamx")  # type: ignore[arg-type]
