"""Training: records as objects, errors, and every way in which a run is left."""
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import unittest

import enmasse
from common import CLASSES, SMALL, Case

#: More than end before a signal comes.
MANY = 100_000

#: Trains until it is told to stop.
SCRIPT = f"""
import sys, enmasse
training = enmasse.train(sys.argv[1], out=sys.argv[2], epochs={MANY}, **{SMALL!r})
next(training)
"""


def is_running(pid):
    return os.path.exists(f"/proc/{pid}")


class Train(Case):
    def test_epochs_are_objects(self):
        training = enmasse.train(self.data, out=self.folder / "epochs", epochs=3, metrics=["top2"], fuse=False, **SMALL)
        self.assertEqual((training.run, training.start["classes"]), (self.folder / "epochs", CLASSES))
        self.assertIsNone(training.result)
        epochs = list(training)
        lines = (training.run / "metrics.jsonl").read_text().splitlines()
        self.assertEqual([dict(epoch) for epoch in epochs], [json.loads(line) for line in lines])
        self.assertEqual([epoch.epoch for epoch in epochs], [0, 1, 2])
        last = epochs[-1]
        self.assertEqual((last.val_loss, last.train_accuracy), (last["val_loss"], last["train_accuracy"]))
        self.assertIn("val_top2", last)
        result = training.result
        self.assertEqual((result.run, result.stopped, result.test), (training.run, False, None))
        self.assertEqual(result.best, max(epoch.val_accuracy for epoch in epochs))
        self.assertEqual(result["event"], "done")
        self.assertEqual((next(training, None), training.stop()), (None, result))
        settings = (training.run / "config.toml").read_text()
        self.assertIn("fuse = false", settings)

    def test_settings_are_python_values(self):
        training = self.train("values", epochs=1, mean=[0.5, 0.4, 0.3], opt_arg={"betas": [0.8, 0.9]}, optimizer="adamw",
                              lr=None, limit_train_batches=0.5, config=None)
        settings = (training.run / "config.toml").read_text()
        for line in ["mean = [0.5, 0.4, 0.3]", 'opt_arg = ["betas=0.8,0.9"]', "limit_train_batches = 0.5"]:
            self.assertIn(line, settings)

    def test_the_module_is_the_program(self):
        said = subprocess.run([sys.executable, "-m", "enmasse", "--version"], check=True, capture_output=True, text=True).stdout
        self.assertRegex(said, r"^enmasse \d")

    def test_an_epoch_without_validation_has_no_figures(self):
        epochs = list(enmasse.train(self.data, out=self.folder / "rare", epochs=2, val_every=2, **SMALL))
        self.assertEqual([epoch.val_accuracy is None for epoch in epochs], [True, False])

    def test_a_search_keeps_nothing(self):
        # It draws its chart where it is started.
        self.enterContext(contextlib.chdir(self.folder))
        training = enmasse.train(self.data, find_lr=True, out=self.folder / "search", **SMALL)
        self.assertEqual((list(training), training.run, training.result.run), ([], None, None))
        self.assertIn("suggestion", training.result)

    def test_errors_are_the_programs(self):
        for settings, mention in [
            ({"optimizer": "adamx"}, "--optimizer adamx: must be sgd or"),
            ({"epoch": 3}, "did you mean --epochs?"),
            ({"batch": 0}, "--batch 0: must be 1 or more"),
        ]:
            with self.assertRaises(enmasse.Error) as caught:
                enmasse.train(self.data, **settings)
            self.assertIn(mention, str(caught.exception))
            self.assertEqual((caught.exception.code, str(caught.exception).count("\n")), (2, 0))
        with self.assertRaisesRegex(enmasse.Error, "nowhere") as caught:
            enmasse.train(self.folder / "nowhere")
        self.assertIsNotNone(caught.exception.code)

    def test_an_error_within_an_epoch_is_raised(self):
        with self.assertRaisesRegex(enmasse.Error, "loss|finite") as caught:
            enmasse.train(self.data, out=self.folder / "diverged", epochs=MANY, lr=1e30, **SMALL).wait()
        self.assertIsNotNone(caught.exception.code)

    def test_a_killed_program_is_an_error(self):
        training = enmasse.train(self.data, out=self.folder / "killed", epochs=MANY, **SMALL)
        next(training)
        training._process.kill()
        with self.assertRaisesRegex(enmasse.Error, "killed by signal 9"):
            training.wait()
        self.assertIsNone(next(training, None))

    def test_what_the_program_says_is_logged(self):
        with self.assertLogs("enmasse", "INFO") as logged:
            self.train("logged", epochs=1, log_every=1)
        self.assertTrue(any("30 images found in 3 classes" in line for line in logged.output))
        self.assertTrue(any('"event": "step"' in line for line in logged.output))

    def test_stopped_runs_go_on(self):
        with enmasse.train(self.data, out=self.folder / "stopped", epochs=MANY, **SMALL) as training:
            first = next(training)
        self.assertTrue(training.result.stopped)
        later = list(training)
        self.assertEqual([epoch.epoch for epoch in [first, *later]], list(range(len(later) + 1)))
        done = training.result["epoch"]
        resumed = enmasse.train(resume=training.run, epochs=done + 1)
        self.assertEqual(resumed.start["resumed"]["epoch"], done)
        self.assertFalse(resumed.wait().stopped)

    def test_a_loop_that_is_left_ends_the_run(self):
        for epoch in (training := enmasse.train(self.data, out=self.folder / "left", epochs=MANY, **SMALL)):
            break
        process = training._process
        self.assertIsNone(process.returncode)
        del training
        gc.collect()
        # 130 is that of a run that was saved. It has been waited for, so no zombie is left.
        self.assertEqual((process.returncode, is_running(process.pid)), (130, False))

    def test_python_ends_the_runs_that_it_leaves_behind(self):
        script = SCRIPT + "print(training._process.pid, flush=True)"
        command = [sys.executable, "-c", script, self.data, self.folder / "behind"]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertFalse(is_running(int(ended.stdout)))
        self.assertTrue((self.folder / "behind/checkpoints/last.safetensors").exists())

    def test_ctrl_c_saves(self):
        # A shell without a terminal has what it starts in the background ignore the signal.
        script = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + SCRIPT + """
output = training._process.stdout
def readline(read=output.readline):
    # The signal is sent while Python waits: by what is printed earlier it could come before.
    output.readline = read
    print(training._process.pid, flush=True)
    return read()
output.readline = readline
try:
    training.wait()
except KeyboardInterrupt:
    print(training.result.stopped, flush=True)
    raise
"""
        command = [sys.executable, "-c", script, self.data, self.folder / "interrupted"]
        # A terminal sends the signal to all of a group. The program would end at once by two of them.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, process_group=0, **pipes) as process:
            pid = int(process.stdout.readline())
            group = os.getpgid(pid)
            os.killpg(process.pid, signal.SIGINT)
            said, errors = process.communicate()
        self.assertNotEqual(group, process.pid)
        self.assertEqual((process.returncode, said), (-signal.SIGINT, "True\n"))
        self.assertIn("KeyboardInterrupt", errors)
        self.assertFalse(is_running(pid))
        resumed = enmasse.train(resume=self.folder / "interrupted", max_steps=1)
        self.assertIsNotNone(resumed.wait())


if __name__ == "__main__":
    unittest.main()
