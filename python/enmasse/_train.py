"""Training: the program in a process of its own, whose records become objects."""
import json
import logging
import os
import signal
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, Unpack

from ._error import Error
from ._program import failure, path
from ._settings import Settings

log = logging.getLogger("enmasse")

#: Lines of the program that an error without a line of its own quotes.
QUOTED = 10

#: Codes of a program that was interrupted before its first step, and before it could say so.
INTERRUPTED = (130, -signal.SIGINT)


class Record(Mapping[str, Any]):
    """What the program prints as a JSON object. Its keys are those of docs/json.md."""

    record: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.record[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.record)

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True, eq=False)
class Epoch(Record):
    """An epoch. What a task has besides is in its keys, such as `epoch["val_map"]`."""

    #: From 0 on.
    epoch: int
    train_loss: float | None
    #: None after an epoch that `val_every` does not validate, as the figures of validation below.
    val_loss: float | None
    train_accuracy: float | None
    val_accuracy: float | None
    balanced_accuracy: float | None
    #: That of the epoch's last step.
    learning_rate: float
    images_per_second: float
    seconds: float
    #: All keys.
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Epoch":
        named = {name: record.get(name) for name in cls.__dataclass_fields__ if name != "record"}
        return cls(**named, record=record)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Result(Record):
    """How a run ended. All of it is in its keys, such as `result["best_val_accuracy"]`."""

    #: The run's folder. None for a search, which keeps nothing.
    run: Path | None
    #: The best epoch's value of what `monitor` names; None if no whole epoch has ended.
    best: float | None
    #: Whether it was asked to stop. `train(..., resume=run)` goes on with it.
    stopped: bool
    #: The `test` record of data with a test part.
    test: Mapping[str, Any] | None
    #: All keys.
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, record: Mapping[str, Any], test: Mapping[str, Any] | None) -> "Result":
        run = Path(record["run"]) if record.get("run") else None
        best = next((record[key] for key in record if key.startswith("best_")), None)
        return cls(run, best, record["event"] == "stopped", test, record)


class Training(Iterator[Epoch]):
    """A run that trains. It iterates its epochs as they end; `wait` goes to the end without them.

    A run that nothing refers to any more is stopped and saved, as by `stop`, and so is one that Python leaves behind at its end.
    """

    #: The `start` record: data, classes, model, memory. Empty for a search.
    start: Mapping[str, Any]
    #: The run's folder. None for a search, which keeps nothing.
    run: Path | None
    #: How the run ended; None before.
    result: Result | None

    def __init__(self, arguments: Sequence[str]) -> None:
        self.start, self.run, self.result = {}, None, None
        self._pending: deque[Mapping[str, Any]] = deque()
        self._test: Mapping[str, Any] | None = None
        self._ended = False
        # In a process group of its own, so that Ctrl-C reaches it once, and from here.
        self._process = subprocess.Popen(
            [path(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        assert self._process.stdout and self._process.stderr
        self._lines: deque[str] = deque(maxlen=QUOTED)
        self._reader = threading.Thread(target=report, args=(self._process.stderr, self._lines), daemon=True)
        self._reader.start()
        self._stop = weakref.finalize(self, end, self._process, self._reader)
        # Wrong settings and data end the program before its first record.
        first = self._read()
        if first is not None and first["event"] == "start":
            self.start, self.run = first, Path(first["run"]) if first.get("run") else None
        elif first is not None:
            self._pending.append(first)

    def __next__(self) -> Epoch:
        while (record := self._pending.popleft() if self._pending else self._read()) is not None:
            if record["event"] == "epoch":
                return Epoch.of(record)
        raise StopIteration

    def wait(self) -> Result | None:
        """Waits for the end, and returns how the run ended."""
        for _ in self:
            pass
        return self.result

    def stop(self) -> Result | None:
        """Has the run saved after its running step, as Ctrl-C does, waits for its end, and returns how it ended. None if it was
        stopped before its first step, which leaves nothing."""
        if not self._ended:
            self._process.send_signal(signal.SIGINT)
            self._drain()
        return self.result

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> Mapping[str, Any] | None:
        """The next record; None at the end."""
        if self._ended:
            return None
        assert self._process.stdout
        try:
            line = self._process.stdout.readline()
            if not line:
                code = self._process.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        if line:
            return self._keep(json.loads(line))
        self._close()
        if code != 0 and self.result is None:
            raise failure(code, self._lines)
        return None

    def _keep(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        match record["event"]:
            case "test":
                self._test = record
            case "done" | "stopped" | "find_lr" | "find_batch":
                self.result = Result.of(record, self._test)
            case "step":
                log.info("%s", json.dumps(record))
        return record

    def _drain(self) -> None:
        """Keeps what the program prints until it has ended. Another Ctrl-C ends it at once."""
        assert self._process.stdout
        interrupted = None
        while True:
            try:
                for line in self._process.stdout:
                    self._pending.append(self._keep(json.loads(line)))
                code = self._process.wait()
                break
            except KeyboardInterrupt as again:
                self._process.send_signal(signal.SIGINT)
                interrupted = again
        self._close()
        if interrupted:
            raise interrupted
        if self.result is None and code not in INTERRUPTED:
            raise failure(code, self._lines)

    def _close(self) -> None:
        self._ended = True
        self._stop.detach()
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()


def report(stream: TextIO, lines: deque[str]) -> None:
    """Logs what the program says, and keeps the last lines."""
    with stream:
        for line in stream:
            lines.append(line := line.rstrip("\n"))
            if line.startswith("warning: "):
                log.warning("%s", line.removeprefix("warning: "))
            elif not line.startswith("error: "):
                log.info("%s", line)


def end(process: "subprocess.Popen[str]", reader: threading.Thread) -> None:
    """Ends a run that nothing refers to, but not in a fork of the process that has it."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    assert process.stdout
    with process.stdout:
        for _ in process.stdout:
            pass
    process.wait()
    reader.join()


def words(value: object) -> str:
    """A setting's value, as the program reads it."""
    match value:
        case str():
            return value
        case os.PathLike():
            return os.fsdecode(value)
        case Mapping():
            return ",".join(f"{key}={words(item)}" for key, item in value.items())
        case Sequence():
            return ",".join(words(item) for item in value)
        case _:
            return str(value)


def train(data: str | os.PathLike[str] | None = None, **settings: Unpack[Settings]) -> Training:
    """Trains a model on images, and iterates the epochs as they end.

    `data` is a folder of class folders, or what else `enmasse train` takes; without it the run makes its own small data. Keywords are the
    settings of `enmasse train`, listed in `Settings`: `batch=32` is `--batch 32`, `pretrained=True` is `--pretrained`, `fuse=False` is
    `--fuse=false`, a list is its items between commas. One that is None has its default.

    Returns when the first step is about to begin. Settings and data that cannot be used, and whatever else the program says after
    `error:`, raise `Error`. Ctrl-C has the run saved after its running step and raises KeyboardInterrupt then; a second one ends it at
    once. What the program tells people goes to the logger `enmasse`.

    >>> for epoch in enmasse.train("flower_photos", pretrained=True, epochs=3, lr=0.01):
    ...     print(epoch.epoch, epoch.val_accuracy)
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(gpus := given.get("gpus"), Sequence) and not isinstance(gpus, str):
        # A list of one number is no count.
        given["gpus"] = words(gpus) + ","
    flags = [f"--{name.replace('_', '-')}={words(value)}" for name, value in given.items()]
    place = [] if data is None else ["--", os.fspath(data)]
    return Training(["train", *flags, "--json", *place])
