"""Prints what TensorBoard and MLflow's client read of a run, as JSON: loggers.py RUN STORE."""
import io
import json
import os
import sys

from google.protobuf import json_format
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

run, store = sys.argv[1:]


def tensorboard():
    events = EventAccumulator(run, size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    content = events.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    images = {tag: [image(event) for event in events.Images(tag)] for tag in tags["images"]}
    histograms = {tag: [histogram(event) for event in events.Histograms(tag)] for tag in tags["histograms"]}
    scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags["scalars"]}
    hparams = {name: json_format.MessageToDict(value) for name, value in start.hparams.items()}
    return {"scalars": scalars, "images": images, "histograms": histograms, "hparams": hparams, "status": end.status,
            "seconds": end.end_time_secs - start.start_time_secs}


def image(event):
    decoded = Image.open(io.BytesIO(event.encoded_image_string))
    decoded.load()
    return {"step": event.step, "stated": [event.width, event.height], "decoded": list(decoded.size)}


def histogram(event):
    value = event.histogram_value
    return {"step": event.step, "min": value.min, "max": value.max, "num": value.num, "sum": value.sum,
            "counts": list(value.bucket), "limits": list(value.bucket_limit)}


def mlflow():
    # The client refuses stores of files otherwise, but goes on to read them.
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"file://{store}")
    [found] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    history = {name: [[value.step, value.value] for value in client.get_metric_history(found.info.run_id, name)]
               for name in found.data.metrics}
    return {"params": found.data.params, "metrics": history, "status": found.info.status, "name": found.info.run_name}


print(json.dumps({"tensorboard": tensorboard(), "mlflow": mlflow()}))
