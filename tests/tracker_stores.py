"""What each tracker's back end has of a run: metric name → (step, value) in order; words apart."""

import json
import sqlite3
import struct
from collections import defaultdict

BLOCK = 32768


def split(rows):
    """Numbers and words of (step, metrics) rows."""
    numbers, words = defaultdict(list), defaultdict(list)
    for step, metrics in rows:
        for name, value in metrics.items():
            (words if isinstance(value, str) else numbers)[name].append((step, value))
    return dict(numbers), dict(words)


def jsonl(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return split((line["step"], {k: v for k, v in line.items() if k not in ("step", "time")}) for line in lines)


def tensorboard(output):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(output / "tensorboard"), {"scalars": 0, "tensors": 0})
    found.Reload()
    numbers = {tag: [(item.step, item.value) for item in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    words = {
        tag.removesuffix("/text_summary"): [
            (item.step, item.tensor_proto.string_val[0].decode()) for item in found.Tensors(tag)
        ]
        for tag in found.Tags()["tensors"]
    }
    return numbers, words


def trackio(output):
    (path,) = (output / "trackio").glob("*.db")
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
        assert len(connection.execute("SELECT DISTINCT run_id FROM metrics").fetchall()) == 1
    return split(untabled((step, json.loads(metrics)) for step, metrics in rows))


def wandb(output):
    """All starts together, read as W&B reads them: a start that rewinds the run takes out what comes after the row."""
    rows, ids = [], set()
    for path in sorted((output / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                if record.run.HasField("branch_point"):
                    rows = [row for row in rows if row[0] <= record.run.branch_point.value]
            elif kind == "history":
                items = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
                values = {name: json.loads(value) for name, value in items.items()}
                assert not rows or record.history.step.num > rows[-1][0], "W&B drops rows that go back"
                rows.append((record.history.step.num, values))
    assert len(ids) == 1
    of_wandb = {"_step", "_timestamp", "_runtime", "step"}
    found = ((values["step"], {k: v for k, v in values.items() if k not in of_wandb}) for _, values in rows)
    return split(untabled(found))


def wandb_axes(output):
    """Metric → the metric that its chart is drawn over."""
    records = (
        record.metric
        for path in (output / "wandb").glob("offline-run-*/*.wandb")
        for record in wandb_records(path)
        if record.WhichOneof("record_type") == "metric"
    )
    return {metric.name: metric.step_metric for metric in records}


def untabled(rows):
    """Without the rows of conversations."""
    return [(step, values) for step, values in rows if not any(name.startswith("generations") for name in values)]


def wandb_records(path):
    """The messages of a file, in W&B's own classes, out of the log's blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(part)
            yield record
            part = b""
    assert not part


STORES = {"tensorboard": tensorboard, "trackio": trackio, "wandb": wandb}
