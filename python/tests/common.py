"""Small images and runs for the tests. A test that hangs ends with a traceback."""
import faulthandler
import struct
import tempfile
import unittest
import zlib
from pathlib import Path

import enmasse
import numpy

faulthandler.dump_traceback_later(600, exit=True)

CLASSES = ["dark", "light", "red"]
SMALL = {"model": "mlp", "size": 12, "batch": 4, "devices": "cpu:1", "threads": 1}


def pixels(label, number, height=14):
    """An image of a class, whose colour tells the class."""
    shades = (numpy.arange(height * (12 + number % 5)) * 31 + number * 17) % 60
    image = numpy.repeat(shades.reshape(height, -1, 1), 3, axis=2).astype(numpy.uint8)
    if label == 1:
        image += 190
    if label == 2:
        image[:, :, 0] = 200
    return image


def png(image):
    """The content of a PNG file."""
    height, width, channels = image.shape

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_images(folder, each=10):
    """A folder of class folders."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            (folder / name / f"{number:03}.png").write_bytes(png(pixels(label, number)))
    return folder


class Case(unittest.TestCase):
    """A class of tests with images in `data`, in a folder that is removed."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        cls.data = write_images(cls.folder / "images")

    @classmethod
    def train(cls, name, data=None, **settings):
        """A finished run."""
        training = enmasse.train(data or cls.data, out=cls.folder / name, **{**SMALL, "epochs": 2, **settings})
        training.wait()
        return training
