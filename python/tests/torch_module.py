"""PyTorch's module of a run gives the logits behind its predictions. Needs torch, torchvision and Pillow."""
import unittest

import enmasse
import numpy
import torch
from common import CLASSES, Case, pixels
from PIL import Image


class Module(Case):
    def check(self, name, **settings):
        model = enmasse.load(self.train(name, model=name, size=64, epochs=1, lr=1e-4, **settings).run)
        module, transform = model.to_torch(), model.torch_transform()
        self.assertFalse(module.training)
        # Larger ones than the model sees, so that they are resized and cropped.
        images = [numpy.kron(pixels(label, 2), numpy.ones((9, 9, 1), numpy.uint8)) for label in range(3)]
        with torch.no_grad():
            inputs = torch.stack([transform(Image.fromarray(image)) for image in images])
            found = module(inputs).softmax(1).double().numpy()
        expected = model.predict(images).probabilities
        self.assertEqual(found.shape, (3, len(CLASSES)))
        # A softmax changes by at most a quarter of what a logit does.
        numpy.testing.assert_allclose(numpy.log(found), numpy.log(expected), rtol=0, atol=1e-4)
        predicted = model.predict(Image.fromarray(images[0]).convert("P"))
        self.assertEqual(predicted.probabilities.shape, (3,))

    def test_torchvisions(self):
        self.check("resnet18")
        self.check("mobilenet_v3_small", interpolation="bicubic", ema=0.9)

    def test_models_without_a_module(self):
        for name, settings, mention in [("mlp", {}, "for mlp"), ("resnet18", {"channels": 1}, "grey")]:
            model = enmasse.load(self.train(f"{name}-other", model=name, epochs=1, **settings).run)
            with self.assertRaisesRegex(enmasse.Error, mention):
                model.to_torch()


if __name__ == "__main__":
    unittest.main()
