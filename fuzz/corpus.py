#!/usr/bin/env python3
"""Writes the first inputs of every fuzz target: valid ones, from which the fuzzer finds the others. Inputs that once broke
something lie beside them under names of their own. Images, Parquet files and weights begin with the fixtures of `data` and
`weights`.

    fuzz/corpus.py
"""
import collections
import gzip
import io
import json
import pickle
import re
import struct
import tarfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# What ranks of this version say first: others are refused before anything is parsed.
OPERATION = Path(__file__).parent.parent / "crates/cluster/comm/src/operation.rs"
PROTOCOL = int(re.search(r"PROTOCOL: u32 = (\d+);", OPERATION.read_text())[1])


def text(value, length="<H"):
    value = value.encode()
    return struct.pack(length, len(value)) + value


def cause(kind, rank, host, operation, message):
    numbers = struct.pack("<BBiQQQ", 1, kind, 9, rank, 17, 1_700_000_000_000)
    return numbers + text(host) + text(operation) + text(message)


def causes():
    yield cause(1, 2, "node1", "all_reduce(sum) of 1000 f32", "connection closed without goodbye")
    yield cause(2, 0, "", "", "")
    yield cause(8, 2**64 - 1, "node2", "step", "zwölf")


def control():
    yield b"\x01"
    yield b"\x01" + struct.pack("<Q", 31_400) + b"reading a batch"
    for kind, payload in zip([2, 3, 5], causes()):
        yield bytes([kind]) + payload


def introduction():
    for purpose in range(1, 5):
        yield struct.pack("<BIIIQII", purpose, 3, 0, 4, 7, 8, 9) + b"node1"


def header():
    for kind in range(1, 7):
        yield struct.pack("<8Q", PROTOCOL << 32 | kind << 16 | 1 << 8, 7, 0, 17, 1000, 0, 2, kind - 1)


def store():
    subject = b"address"
    yield struct.pack("<IB", 60_000, len(subject)) + subject + b"10.0.0.3:4321"
    yield struct.pack("<IB", 0, len(subject)) + subject
    yield bytes([3]) + struct.pack("<II", 2, 1) + b"a" + struct.pack("<I", 2) + b"bc" + struct.pack("<III", 0, 1, 0)
    yield b"3 10.0.0.1 29500"
    yield b"0 - 29500"
    yield b"7 fe80::1 1"


def frames():
    yield struct.pack("<IB", 5, 3) + b"hello"
    yield struct.pack("<IB", 0, 1)
    yield struct.pack("<IB", 2**32 - 1, 1) + b"short"


def collective():
    yield b"\xff\xff\0" + bytes(range(64))
    yield b"\x10\0\x80" + bytes(range(64))
    yield b"\x50\0\x01" + bytes(range(64))


def handshake():
    hello = b"enmasse" + bytes([PROTOCOL]) + bytes(32)
    yield hello
    yield hello + text("x" * 34) + bytes(32)
    yield b"enmasse\xff"
    yield b"GET / HTTP/1.1\r\n\r\n"


def agent_store():
    yield b"\0" + text("3 10.0.0.1 29500", "<Q") + struct.pack("<q", 1)
    yield b"\x01" + struct.pack("<q", -1)
    yield b"\0" + struct.pack("<Q", 2**63)


def variables(**values):
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


def environment():
    torch = {"RANK": 3, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1, "GROUP_WORLD_SIZE": 4,
             "MASTER_ADDR": "node1", "MASTER_PORT": 29500}
    yield variables(**torch)
    yield variables(**torch, TORCHELASTIC_RESTART_COUNT=2, TORCHELASTIC_MAX_RESTARTS=3, TORCHELASTIC_RUN_ID="a",
                    TORCHELASTIC_USE_AGENT_STORE="True", ENMASSE_JOIN_TIMEOUT="1.5", ENMASSE_HEARTBEAT="2")
    yield variables(RANK=0, WORLD_SIZE=1, MASTER_ADDR="::1", MASTER_PORT=1)
    yield variables(SLURM_JOB_ID=12, SLURM_PROCID=3, SLURM_NTASKS=4, SLURM_LOCALID=1, SLURM_NODEID=1, SLURM_NNODES=2,
                    SLURM_TASKS_PER_NODE="2(x2)", SLURM_STEP_NODELIST="node[1-2]", SLURM_STEP_ID=0, SLURM_RESTART_COUNT=1,
                    SLURM_STEP_NUM_TASKS=4, SLURM_STEP_TASKS_PER_NODE="2(x2)", SLURM_STEP_NUM_NODES=2)
    yield variables(OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_RANK=1,
                    OMPI_COMM_WORLD_LOCAL_SIZE=2, OMPI_MCA_orte_hnp_uri="1.0;tcp://10.0.0.1:9")
    yield variables(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2, PMI_ID=1)
    yield variables(LSB_JOBID=7, LSB_MCPU_HOSTS="node1 2 node2 2", LSF_PM_TASKID=1)
    yield variables(SLURM_JOB_ID=12, SLURM_NTASKS=4)


def node_list():
    for nodes in ["node[1-3,7],login", "gpu08", "rack[0-1]n[08-10] x", "a[1-65536]", "[1-2]", "a[1", "a[3-1]"]:
        yield nodes.encode()


def elastic():
    agent = {"id": 7, "host": "node1", "address": "10.0.0.1", "local_world_size": 2}
    failed = {"code": 2, "report": "rank 3 failed"}
    place = {"node_rank": 0, "node_count": 2, "first_rank": 0, "world_size": 4}
    messages = [
        {"Join": {"agent": agent, "visit": 1, "port": 29500, "next_attempt": 3}}, {"Beat": {"number": 9}},
        {"Ended": {"attempt": 1, "end": "Done"}}, {"Ended": {"attempt": 1, "end": {"Failed": {"rank": 3, **failed}}}},
        {"Stopped": {"attempt": 1, "port": 29500}}, "Leave",
        {"Echo": {"number": 9}},
        {"Run": {"attempt": 1, "leader": 7, **place, "master_host": "node1", "master_port": 29500}},
        {"Stop": {"attempt": 1, "why": "a node joined"}},
        {"Over": "Done"}, {"Over": {"Failed": {"host": "node1", **failed}}}, {"Over": {"TooFew": {"here": 1, "least": 2}}},
        {"Over": {"Interrupted": {"signal": 15}}}, {"Over": {"NoLeader": {"why": "no route"}}},
    ]
    for message in messages:
        yield json.dumps(message).encode()


def error_file():
    trace = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nValueError: no\n"
    extra = {"py_callstack": trace, "timestamp": "1700000000"}
    yield json.dumps({"message": {"message": "ValueError: no", "extraInfo": extra}}).encode()
    yield json.dumps({"message": "ValueError: no"}).encode()
    yield trace.encode()
    yield "".join(f"[rank0]: {line}\n" for line in trace.splitlines()).encode()


def configuration():
    yield b"model = \"resnet18\"\nlr = 0.1\nepochs = 3\nbatch_size = 32\nmomentum = 0.9\n"
    yield b"lr = 1e-3\noptimizer = \"adamw\"\nweight_decay = 0.05\nema = 0.999\nprecision = \"bf16\"\nexact = true\n"
    yield b"mean = [0.5]\nstd = [0.25]\nsize = 28\nthreads = 2\nschedule = \"cosine\"\nlabel_smoothing = 0.1\n"
    yield b"keep = \"all\"\ndevice = \"cpu\"\nmetrics = \"top5\"\nnot_a_setting = 1\n"


def checkpoint():
    meta = {"model": "resnet18", "classes": json.dumps(["rose", "Gänse\"\n"]), "size": 64, "resize": 73,
            "mean": "[0.485, 0.456, 0.406]", "std": "[0.229, 0.224, 0.225]", "configuration": "lr = 0.1\n", "split": "abc",
            "seed": 2**64 - 1, "epoch": 3, "samples_consumed": 64, "epoch_sums": "0.30000000000000004 5 64 top5=0.1",
            "optimizer_step": 7, "best_val_accuracy": "0.6666666666666666"}
    yield "\0".join(f"{key}={value}" for key, value in meta.items()).encode()
    yield "\0".join(f"{key}={value}" for key, value in (meta | {"epoch_sums": "NaN 0 0", "mean": "[]"}).items()).encode()


def lists():
    yield b"2 chosen by measuring\nwinograd conv 3x3 64 64\ngemm conv 1x1 64 64\n"
    yield b"0 chosen by measuring\n"
    yield b"a b/c.jpg\tthe file is empty\nd.png\ttruncated\n"


def records():
    yield json.dumps({"time": "2026-01-31 23:59:59", "rank": 1, "host": "node1", "process": 11, "kind": "killed", "signal": 9,
                      "status": "signal 9", "operation": "step #3", "message": "gone", "stderr": ["a", "b"]}).encode()
    operations = [{"sequence": 7, "operation": "barrier", "queued": 10, "started": 11, "ended": None}]
    yield json.dumps({"rank": 0, "time": 20, "activity": "starting", "since": 5, "operations": operations}).encode()


def log():
    lines = ["rank 0 of 2, node1:11, cpu", "rank 1 of 2, node2:22, cpu (avx2, 1 thread)", "model:  mlp"]
    ends = ["done in 2.0 s: best", "stopped in epoch 1", "error: rank 1 on host node2 exited: gone"]
    for end in ends:
        yield "".join(f"20260131-2359{second:02} {line}\n" for second, line in enumerate([*lines, end])).encode()
    yield b"20260131-235900 not distributed: node1:4711, cpu\n"


def pickles():
    shared = [1, 2]
    values = [
        None, {"epoch": 3, "lr": 0.1, "name": "ä", "bytes": b"\0\xff", "big": 2**70, "minus": -2**40},
        [shared, shared, (1,), (1, 2), (1, 2, 3), (), {1, 2}, frozenset([3])],
        collections.OrderedDict(a=1, b=[True, False]), [[[[[[]]]]]],
    ]
    for value in values:
        for protocol in [0, 2, 4]:
            yield pickle.dumps(value, protocol)


def safetensors():
    entries = {"fc.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
               "fc.bias": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]}, "__metadata__": {"format": "pt"}}
    head = json.dumps(entries).encode()
    yield struct.pack("<Q", len(head)) + head + struct.pack("<2f", 0.5, -1) + b"\x80\x3f\0\0"


def legacy():
    """Written before PyTorch 1.6: magic, version, system, one tensor, its storage."""
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04Nt"
              b"QK\0(K\x02K\x02t(K\x02K\x01t\x89NtR")
    head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.}.\x80\x02}X\x01\0\0\0w"
    yield head + tensor + b"s.](X\x01\0\0\x000e." + struct.pack("<q4f", 4, 0, 1, 2, 3)


def weights():
    yield from safetensors()
    yield from legacy()


def dataset():
    def files(layout, images, labels):
        return struct.pack("<BH", layout, len(images)) + images + labels

    def idx(*dimensions):
        size = 1
        for dimension in dimensions:
            size *= dimension
        return struct.pack(f">HBB{len(dimensions)}I", 0, 8, len(dimensions), *dimensions) + bytes(size)

    class Array:
        """A pickle of an array of bytes, as NumPy writes it."""

        def __reduce__(self):
            return bytearray, (bytes(3072),)

    names = [f"class {index}" for index in range(100)]
    yield files(0, pickle.dumps({"data": Array(), "labels": [3]}, 2), pickle.dumps({"label_names": names[:10]}, 2))
    yield files(1, b"\x03" + bytes(3072), "\n".join(names[:10]).encode())
    yield files(2, pickle.dumps({"data": Array(), "fine_labels": [3]}, 2), pickle.dumps({"fine_label_names": names}, 2))
    yield files(3, b"\x01\x03" + bytes(3072), "\n".join(names).encode())
    yield files(4, idx(2, 28, 28), idx(2))
    yield files(5, gzip.compress(idx(2, 28, 28), mtime=0), gzip.compress(idx(2), mtime=0))


def packed():
    """Packed files without hashes, which the target adds: two samples for training and one for validation."""
    def file(images, parts):
        content, index, offset = b"", [[], []], 512
        for part, samples in enumerate(parts):
            index[part].append(offset)
            for image, name in samples:
                record = bytes(32) + struct.pack("<II", len(image), len(name)) + image + name
                content += record + bytes(-len(record) % 8)
                index[part].append(512 + len(content))
            offset = 512 + len(content)
        fields = b""
        for part, samples in enumerate(parts):
            begin = 512 + len(content)
            content += struct.pack(f"<{len(index[part])}Q", *index[part]) + struct.pack(f"<{len(samples)}I", *range(len(samples)))
            content += bytes(-len(content) % 8)
            fields += struct.pack("<3Q", len(samples), begin + 8 * len(index[part]), begin) + bytes(64)
        metadata = json.dumps({"kind": "folder", "images": images, "classes": ["a", "b"], "written_by": "x"}).encode()
        begin, length = 512 + len(content), 512 + len(content) + len(metadata)
        header = b"\x89enmasse" + struct.pack("<IIQQQ", 3, 0, length, begin, len(metadata)) + bytes(32) + fields
        return header + bytes(512 - len(header)) + content + metadata

    bitmap = b"BM" + struct.pack("<IIIIiiHHIIiiII", 58, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0) + bytes(4)
    yield file("files", [[(bitmap, b"a/1.bmp"), (bitmap, b"b/2.bmp")], [(bitmap, "b/ü".encode())]])
    yield file({"raw": 2}, [[(bytes(12), b""), (bytes(12), b"x")], [(bytes(12), b"y")]])


def slurm():
    yield (b"#!/bin/bash\n#SBATCH --job-name=flowers\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --time=1-12:00:00\n"
           b"#SBATCH --output=logs/%j.out\n#SBATCH --signal=B:USR1@120\nexport MASTER_ADDR=$(hostname)\nrun='runs/a b'\n"
           b"srun enmasse train \"$HOME/data\" --out \"$run\" && wait\n")
    yield b"#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --output= a.out\n#SBATCH --array=0-3%2\npython train.py &\nwait\n"
    yield (b"JobId=3 ArrayJobId=1 ArrayTaskId=0 JobName=a b JobState=RUNNING Reason=None Restarts=2 ExitCode=0:0 "
           b"RunTime=00:00:04 TimeLimit=00:05:00 NodeList=node[1-2] WorkDir=/home/a StdOut=/home/a/out 3.txt Power= \n")
    yield b"welcome\n12;alpha\n"
    yield b"7\n1\nlr=0.1,0.2\nUSR1@60\n"
    yield b"--model=a,b\n1-12:30\nUNLIMITED\nTERM@65535\n"


def card():
    yield b"node1\n8f2c\npid:[4026531836] 0\nnet:[4026531840] \nauto"


def classifier():
    metadata = {
        "model": "lenet", "classes": '["a", "b"]', "size": "28", "resize": "28", "mean": "[0.5]", "std": "[0.25]",
        "configuration": 'model = "lenet"\nmetrics = "top5"\n', "split": "0", "seed": "1", "epoch": "0", "samples_consumed": "0",
        "epoch_sums": "0 0 0", "optimizer_step": "3", "best_val_accuracy": "0.5",
    }
    for change in [{}, {"model": "resnet18", "size": "224", "resize": "256", "mean": "[0.5, 0.5, 0.5]", "std": "[1, 1, 1]"},
                   {"size": "0"}, {"size": "18446744073709551615"}, {"resize": "18446744073709551615"}]:
        yield "\0".join(f"{key}={value}" for key, value in (metadata | change).items()).encode()


def resize():
    for numbers in [(9, 7, 0, 8, 0, 6, 223, 223, 0, 200, 0, 200), (299, 0, 5, 200, 0, 0, 7, 99_999, 0, 6, 50_000, 2)]:
        yield struct.pack("<12I", *numbers) + bytes(range(256))


def http():
    part = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\nETag: \"1\"\r\nContent-Length: 10\r\n\r\n0123456789"
    yield part
    yield part.replace(b"Content-Length: 10\r\n\r\n0123456789", b"Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n")
    yield b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/other\r\nContent-Length: 0\r\n\r\n"
    yield b"HTTP/1.1 503 Slow Down\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy"


def profile():
    credentials = b"[default]\naws_access_key_id = A\naws_secret_access_key=B=\naws_session_token = C\n"
    yield b"s3://bucket/key\0" + credentials + b"\0[default]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9000\n"
    yield b"https://host/path\0\0"


def cache():
    about = b"http://host/object\nhttp://host\n10 bytes, version \"1\"\n"
    for which in range(3):
        yield bytes([which]) + about


def archive():
    for labels in ["cls", "json"]:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(4):
                label = str(index % 2) if labels == "cls" else json.dumps({"label": index % 2})
                for name, content in [(f"{index}.png", b"png"), (f"{index}.{labels}", label.encode())]:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        yield file.getvalue()[:7168]


def table():
    yield b"\0path,label,split\na.png,cat,train\na.png,dog,train\n\"a.png\",cat,val\n"
    yield b"\1file\tclass\na.png\t1\na.png\t0\n"
    yield b'\2{"image": "a.png", "label": "cat"}\n{"image": "a.png", "label": 1}\n'


TARGETS = {
    "archive": archive, "cache": cache, "card": card, "classifier": classifier, "http": http, "profile": profile,
    "resize": resize, "table": table,
    "agent_store": agent_store, "cause": causes, "checkpoint": checkpoint, "collective": collective,
    "configuration": configuration, "control": control, "dataset": dataset, "elastic": elastic, "environment": environment,
    "error_file": error_file, "frames": frames, "handshake": handshake, "header": header, "introduction": introduction,
    "lists": lists, "log": log, "node_list": node_list, "packed": packed, "pickle": pickles, "records": records, "slurm": slurm, "store": store,
    "weights": weights,
}


def main():
    for target, inputs in TARGETS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for index, content in enumerate(inputs()):
            (folder / f"valid-{index:02}").write_bytes(content)


main()
