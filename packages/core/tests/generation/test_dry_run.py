"""What a dry run says of a folder that is there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generation_cases import PAIRS, finished_of, write
from results_folders import protocol_of

from reroll.generation.dry_run import _speed
from reroll.generation.store import read_journal, traces_path


def test_a_trace_that_cannot_be_read_is_told_and_no_end(tmp_path):
    write(tmp_path, [finished_of(*pair, protocol=protocol_of()) for pair in PAIRS])
    entries = list(read_journal(tmp_path, lambda text: None))
    path = traces_path(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(b"XX" + whole[2:])
    told = []
    _speed(tmp_path, entries, told.append)
    (text,) = told
    assert str(path) in text and entries[0].prepared_sample_id in text
