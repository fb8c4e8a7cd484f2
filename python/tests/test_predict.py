"""Predictions in this process are those of `enmasse predict --json`."""
import json
import os
import subprocess
import sys
import threading
import unittest

import enmasse
import numpy
from common import CLASSES, Case, pixels, png
from enmasse import _program


def command(run, *images):
    """What the program predicts."""
    words = [_program.path(), "predict", run, *images, "--json", "--top", "3"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def guesses(prediction):
    return [{"index": guess.index, "class": guess.class_name, "probability": guess.probability} for guess in prediction.top]


class Predict(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_folder = cls.train("run", model="resnet18-cifar", epochs=1).run
        cls.model = enmasse.load(cls.run_folder)

    def test_a_model_knows_itself(self):
        model = self.model
        self.assertEqual((model.classes, model.architecture, model.task, model.size),
                         (CLASSES, "resnet18-cifar", "classification", 12))

    def test_an_image_in_any_form(self):
        path = self.data / "red/003.png"
        [expected] = command(self.run_folder, path)
        for image in [path, str(path), path.read_bytes(), pixels(2, 3), numpy.asfortranarray(pixels(2, 3))]:
            prediction = self.model.predict(image)
            self.assertEqual(guesses(prediction), expected["top"])
        self.assertEqual(self.model.predict(path).image, expected["image"])
        self.assertEqual(prediction.probabilities.shape, (3,))
        self.assertEqual([guess.index for guess in prediction.top_k(1)], [int(prediction.probabilities.argmax())])
        self.assertEqual((prediction.labels, prediction.values), ([], {}))

    def test_another_device(self):
        image = pixels(2, 3)
        found = enmasse.load(self.run_folder, device="reference").predict(image).probabilities
        numpy.testing.assert_allclose(found, self.model.predict(image).probabilities, rtol=0, atol=1e-5)

    def test_several_images(self):
        paths = [self.data / name / "002.png" for name in CLASSES] + [self.data / "dark/004.png"]
        predictions = self.model.predict(paths)
        self.assertEqual([guesses(found) for found in predictions], [found["top"] for found in command(self.run_folder, *paths)])
        self.assertEqual(predictions.probabilities.shape, (4, 3))
        self.assertTrue((predictions.probabilities[1] == predictions[1].probabilities).all())
        mixed = self.model.predict([paths[0], pixels(1, 2), paths[2].read_bytes(), paths[3]])
        self.assertTrue((mixed.probabilities == predictions.probabilities).all())
        stacked = self.model.predict(numpy.stack([pixels(label, 2) for label in range(3)] + [pixels(0, 2)]))
        self.assertTrue((stacked.probabilities[:3] == predictions.probabilities[:3]).all())
        self.assertEqual(self.model.predict([]).probabilities.shape, (0, 3))

    def test_grey_images(self):
        grey = pixels(0, 1)[:, :, :1]
        expected = self.model.predict(png(grey)).probabilities
        for image in [grey, grey[:, :, 0], numpy.repeat(grey, 3, axis=2)]:
            self.assertTrue((self.model.predict(image).probabilities == expected).all())

    def test_what_is_no_image(self):
        for image, error, mention in [
            (pixels(0, 1) / 255, TypeError, "float64"),
            (numpy.zeros((4, 4, 4), numpy.uint8), ValueError, r"\[4, 4, 4\]"),
            (numpy.zeros((0, 4, 3), numpy.uint8), ValueError, r"\[0, 4, 3\]"),
            (self.folder / "none.png", enmasse.Error, "none.png"),
            ([pixels(0, 1)] * 70 + [b"no image"], enmasse.Error, "image 70"),
        ]:
            with self.assertRaisesRegex(error, mention):
                self.model.predict(image)
        with self.assertRaisesRegex(enmasse.Error, "nowhere"):
            enmasse.load(self.folder / "nowhere")
        with self.assertRaisesRegex(enmasse.Error, "no device of kind tpu"):
            enmasse.load(self.run_folder, device="tpu")

    def test_other_threads_run_meanwhile(self):
        # No thread is made to wait for another by time: the main one goes on only where a prediction lets it.
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        # Of an array Python's own code is asked, too, which may let others run.
        image, predicts, found = png(pixels(0, 1)), [False], threading.Event()

        def predict():
            for _ in range(200):
                predicts[0] = True
                self.model._model.outputs([image])
                predicts[0] = False
                if found.is_set():
                    return

        sys.setswitchinterval(3600)
        thread = threading.Thread(target=predict)
        thread.start()
        during = predicts[0]
        found.set()
        sys.setswitchinterval(interval)
        thread.join()
        self.assertTrue(during)

    def test_threads_share_a_model(self):
        expected = self.model.predict(pixels(1, 1)).probabilities
        different = []

        def predict():
            for _ in range(20):
                if (self.model.predict(pixels(1, 1)).probabilities != expected).any():
                    different.append(True)

        threads = [threading.Thread(target=predict) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(different, [])

    def test_a_fork_loads_its_own(self):
        script = """
import os, sys, enmasse
model = enmasse.load(sys.argv[1])
if os.fork() == 0:
    try:
        model.predict(sys.argv[2])
    except enmasse.Error as error:
        enmasse.load(sys.argv[1]).predict(sys.argv[2])
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
        image = self.data / "red/003.png"
        words = [sys.executable, "-c", script, self.run_folder, image]
        ended = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        self.assertIn("load it in this process", ended.stdout)


class OtherTasks(Case):
    def table(self, name, header, row):
        """A manifest of the images, with what `row` gives for each."""
        rows = [f"{self.data / label / path.name},{row(CLASSES.index(label), number)}"
                for label in CLASSES for number, path in enumerate(sorted((self.data / label).iterdir()))]
        file = self.folder / name
        file.write_text("\n".join([header, *rows]) + "\n")
        return file

    def test_labels(self):
        data = self.table("labels.csv", "path,labels", lambda label, number: f"{CLASSES[label]}|{'even' if number % 2 else 'odd'}")
        run = self.train("labels", data).run
        model, image = enmasse.load(run), self.data / "dark/001.png"
        [expected] = command(run, image)
        prediction = model.predict(image)
        self.assertEqual((model.task, prediction.labels), ("multi-label", expected.get("labels", [])))
        self.assertEqual(guesses(prediction)[:3], expected["top"])

    def test_numbers(self):
        data = self.table("numbers.csv", "path,size,age", lambda label, number: f"{label * 10 + number},{number}.5")
        run = self.train("numbers", data, task="regression", label_column=["size", "age"]).run
        model, images = enmasse.load(run), [self.data / "dark/001.png", self.data / "red/002.png"]
        [expected, _] = command(run, *images)
        prediction = model.predict(images[0])
        self.assertEqual(prediction.values, {found["name"]: found["value"] for found in expected["values"]})
        self.assertEqual(model.predict(images).outputs.shape, (2, 2))
        for refused in [lambda: prediction.probabilities, lambda: prediction.top, lambda: model.predict(images).probabilities]:
            with self.assertRaisesRegex(enmasse.Error, "predicts numbers"):
                refused()


if __name__ == "__main__":
    unittest.main()
