"""A data set with ImageNet's names, counts and layouts, whose images are drawn: folders, Kaggle's layout, and WebDataset's archives.

A JPEG image here is a pile of strips, each 96 pixels wide and 16 high, with restart markers between them. A class has a few strips of its
own, in its colour and with its pattern, which are drawn and coded once. An image is another pile of them, so making its file
is joining bytes. No two images are the same. Those for validation are piles of strips that training does not have.

Of ImageNet these are the numbers of images of both parts and of most classes, the names of files, and where they lie. WordNet's numbers are
invented.
"""
import os
import random
import struct
from pathlib import Path

CLASSES = 1000
TRAIN, VALIDATION = 1_281_167, 50_000
# Of ImageNet's classes 895 have 1,300 training images each. The others have 732 or more; here they have the rest in equal parts.
FULL, FULL_CLASSES = 1300, 895
# The strips of a class for each part, and the strips of an image: from 64 to 112 pixels.
STRIPS = {"train": 24, "val": 8}
HEIGHTS = range(4, 8)
# Minimum coded units of 16 x 16 pixels in a row.
UNITS = 6
SHARD = 10_000

# Codes of a fixed length: every size of a DC difference in 4 bits; in 7 bits the end of a block, and the pairs of a run of zeros and a size.
DC_SIZES = range(12)
AC_SYMBOLS = [0] + [run << 4 | size for run in range(15) for size in range(1, 6)]
AC_CODES = {symbol: f"{code:07b}" for code, symbol in enumerate(AC_SYMBOLS)}
END_OF_BLOCK = AC_CODES[0]


def counts(share):
    """Training images by class, which add up to ImageNet's, and validation images of each class; a share of both."""
    each, more = divmod(TRAIN - FULL_CLASSES * FULL, CLASSES - FULL_CLASSES)
    every = [FULL] * FULL_CLASSES + [each + (number < more) for number in range(CLASSES - FULL_CLASSES)]
    random.Random(0).shuffle(every)
    return [max(1, round(count * share)) for count in every], max(1, round(VALIDATION // CLASSES * share))


def wordnet(label):
    return f"n{1_440_764 + 13_337 * label:08}"


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def header(rows):
    """All before the coded data."""

    def codes(kind, length, symbols):
        lengths = bytes(len(symbols) if bits == length else 0 for bits in range(1, 17))
        return segment(0xC4, bytes([kind]) + lengths + bytes(symbols))

    components = bytes([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])
    frame = struct.pack(">BHHB", 8, rows * 16, UNITS * 16, 3) + components
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xDB, bytes([0] + [16] * 64)),
            segment(0xC0, frame),
            codes(0x00, 4, DC_SIZES),
            codes(0x10, 7, AC_SYMBOLS),
            segment(0xDD, struct.pack(">H", UNITS)),
            segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])),
        ]
    )


class Strips:
    """The coded strips of a class for a part."""

    def __init__(self, label, part):
        # Python keeps what a text seeds from one version to the next.
        self.random = random.Random(f"{part} {label}")
        self.base = [(label % 10) * 7 - 31, (label // 10 % 10) * 5 - 22, (label // 100) * 5 - 22]
        # The pattern: which two coefficients of a block, in the order of the zigzag.
        self.pattern = 1 + label * 7 % 9, 10 + label * 11 % 5
        self.coded = [self.strip() for _ in range(STRIPS[part])]

    def strip(self):
        noise = self.random.gauss
        levels = [round(base + noise(0, 4)) for base in self.base]
        strength = self.random.choice([-1, 1]) * self.random.randint(2, 9)
        bits, last = [], [0, 0, 0]
        for _ in range(UNITS):
            for component in (0, 0, 0, 0, 1, 2):
                level = round(levels[component] + noise(0, 3))
                self.block(bits, level - last[component], strength if component == 0 else 0)
                last[component] = level
        text = "".join(bits)
        text += "1" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")

    def block(self, bits, step, strength):
        def value(number):
            size = abs(number).bit_length()
            return size, f"{number if number > 0 else number + (1 << size) - 1:0{size}b}" if size else ""

        size, text = value(step)
        bits.append(f"{size:04b}{text}")
        place = 0
        for coefficient in self.pattern:
            level = strength + self.random.randint(-2, 2) if strength else 0
            if level:
                size, text = value(level)
                bits.append(AC_CODES[(coefficient - place - 1) << 4 | size] + text)
                place = coefficient
        bits.append(END_OF_BLOCK)


class Images:
    """The files of a part, by class and number."""

    def __init__(self, part):
        self.strips = [Strips(label, part).coded for label in range(CLASSES)]
        self.headers = {rows: header(rows) for rows in HEIGHTS}
        self.markers = [bytes([0xFF, 0xD0 + number]) for number in range(8)]

    def file(self, label, number):
        """Each number has digits of its own, whose base is the number of strips, so each is another pile."""
        strips = self.strips[label]
        rows = HEIGHTS[number % len(HEIGHTS)]
        # Odd, and no multiple of 3: numbers stay apart, and neighbours have little in common.
        digits = (number * 7_919 + label) % len(strips) ** 4
        parts = [self.headers[rows]]
        for row in range(rows):
            digits, digit = (digits // len(strips), digits % len(strips)) if row < 4 else (digits, (number + row) % len(strips))
            parts.append(strips[digit])
            parts.append(self.markers[row % 8])
        parts[-1] = b"\xff\xd9"
        return b"".join(parts)


def names(share):
    """Class, number, name of each image of both parts, class after class."""
    train, validation = counts(share)
    return {
        "train": [(label, number, f"{wordnet(label)}_{number}.JPEG") for label, count in enumerate(train) for number in range(count)],
        # Validation images are numbered in an order that has nothing to do with their classes.
        "val": [
            (place % CLASSES, place // CLASSES, f"ILSVRC2012_val_{number + 1:08}.JPEG")
            for number, place in enumerate(random.Random(1).sample(range(validation * CLASSES), validation * CLASSES))
        ],
    }


def draw(folder, share):
    """Writes all layouts into a new folder."""
    entries = names(share)
    drawn = {part: Images(part) for part in entries}
    write_folders(folder / "folders", entries, drawn)
    write_kaggle(folder / "kaggle", folder / "folders", entries["val"])
    write_shards(folder / "shards", entries, drawn)


def write_folders(folder, entries, drawn):
    """torchvision's layout."""
    for part, images in entries.items():
        for label in range(CLASSES):
            (folder / part / wordnet(label)).mkdir(parents=True)
        for label, number, name in images:
            with open(f"{folder}/{part}/{wordnet(label)}/{name}", "wb", buffering=0) as file:
                file.write(drawn[part].file(label, number))


def write_kaggle(folder, folders, validation):
    """Kaggle's layout. Its training part is the same as torchvision's, and its files for validation are other names of the same ones."""
    data = folder / "ILSVRC/Data/CLS-LOC"
    (data / "val").mkdir(parents=True)
    (data / "train").symlink_to(os.path.relpath(folders / "train", data))
    rows = ["ImageId,PredictionString"]
    for label, _, name in validation:
        os.link(folders / "val" / wordnet(label) / name, data / "val" / name)
        rows.append(f"{name.removesuffix('.JPEG')},{wordnet(label)} 1 1 90 60 ")
    (folder / "LOC_val_solution.csv").write_text("\n".join(rows) + "\n")
    classes = [f"{wordnet(label)} drawn class {label}, invented" for label in range(CLASSES)]
    (folder / "LOC_synset_mapping.txt").write_text("\n".join(classes) + "\n")


def member(name, content):
    """A file in an archive, with its header."""
    fields = struct.pack("100s8s8s8s12s12s8s1s100s6s2s", name.encode(), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % len(content), b"00000000000\0", b" " * 8, b"0", b"", b"ustar", b"00")
    head = bytearray(fields.ljust(512, b"\0"))
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content + bytes(-len(content) % 512)


def write_shards(folder, entries, drawn):
    """WebDataset's archives, as those of ImageNet: the images in random order, each with a file that has its class."""
    folder.mkdir()
    for part, images in entries.items():
        images = random.Random(2).sample(images, len(images))
        for shard, first in enumerate(range(0, len(images), SHARD)):
            with open(folder / f"imagenet-{part}-{shard:06}.tar", "wb", buffering=1 << 20) as archive:
                for label, number, name in images[first : first + SHARD]:
                    archive.write(member(name, drawn[part].file(label, number)))
                    archive.write(member(name.removesuffix(".JPEG") + ".cls", wordnet(label).encode()))
                archive.write(bytes(1024))
