import json
from collections import defaultdict
from pathlib import Path

rewards = defaultdict(list)
for path in Path("/weka/.../inference-records/<lineage>").glob("*/records-*.jsonl"):
    for row in map(json.loads, path.open()):
        if row["kind"] != "group":
            continue
        for response in row["responses"]:
            if response["validity"]["valid"] is True and response["policy_scope"] == "start_checkpoint":
                rewards[row["input_key"]].append(response["reward"])
