"""Runs ONNX models: a JSON line names the file, an input's bytes, and how far an image's output may be from that in a batch. The answer is the
output as JSON."""
import json
import sys

import numpy
import onnx
import onnxruntime

for line in sys.stdin:
    wanted = json.loads(line)
    onnx.checker.check_model(wanted["model"], full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(wanted["model"], options, providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert taken.name == "images" and taken.shape[0] == given.shape[0] == "batch", (taken, given)
    kind = {"tensor(uint8)": numpy.uint8, "tensor(float)": numpy.float32}[taken.type]
    images = numpy.fromfile(wanted["images"], kind).reshape([-1, *taken.shape[1:]])
    (found,) = session.run(None, {"images": images})
    one = session.run(None, {"images": images[:1]})[0]
    assert numpy.allclose(one[0], found[0], rtol=1e-3, atol=wanted["atol"]), (one[0], found[0])
    print(json.dumps({"name": given.name, "shape": list(found.shape), "output": found.ravel().tolist()}), flush=True)
