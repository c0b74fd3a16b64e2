"""What results were measured with."""

import json
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reroll.generation.protocol import FILE, GenerationProtocol, ResultsError, SourceTasks, read_protocol

SOURCES = st.lists(
    st.builds(
        SourceTasks,
        name=st.sampled_from("abc"),
        task_set=st.dictionaries(st.sampled_from("xy"), st.integers()),
        size=st.integers(0, 9),
        fingerprint=st.none() | st.just("f"),
    ),
    max_size=3,
)
PROTOCOLS = st.builds(
    GenerationProtocol,
    name=st.just("n"),
    run_id=st.just("r"),
    how=st.dictionaries(st.sampled_from("xy"), st.floats(allow_nan=False, allow_infinity=False)),
    model=st.just({}),
    seed=st.integers(),
    sources=SOURCES,
    n_trials=st.integers(1, 9),
    shard=st.none() | st.tuples(st.integers(1, 3), st.integers(3, 5)),
    instances=st.none() | st.lists(st.integers(0, 9)),
)


@given(PROTOCOLS)
@example(GenerationProtocol(name="n", run_id="r", how={"x": inf}, model={}, seed=0, sources=[], n_trials=1))
def test_it_is_read_as_it_was_written(tmp_path_factory, protocol):
    folder = tmp_path_factory.mktemp("results")
    protocol.write(folder)
    assert read_protocol(folder) == protocol


@pytest.mark.parametrize("shard", [[0, 2], [3, 2], [1], [1, 2, 3], ["1", "2"], [0, 0], 1])
def test_a_shard_that_is_none_is_refused(tmp_path, shard):
    GenerationProtocol(name="n", run_id="r", how={}, model={}, seed=0, sources=[], n_trials=1).write(tmp_path)
    saved = json.loads((tmp_path / FILE).read_bytes())
    (tmp_path / FILE).write_text(json.dumps({**saved, "shard": shard}))
    with pytest.raises(ResultsError, match="generation.json: shard"):
        read_protocol(tmp_path)


def of_file(path, fingerprint="f"):
    sources = [SourceTasks(name="a", task_set={"name": "file", "path": path}, size=1, fingerprint=fingerprint)]
    return GenerationProtocol(name="n", run_id="r", how={}, model={}, seed=0, sources=sources, n_trials=1)


def test_tasks_may_lie_elsewhere_where_it_is_known_that_they_are_the_same():
    here = of_file("/here/t.jsonl")
    assert here.differences(of_file("/there/t.jsonl")) == []
    assert here.differences(of_file("/here/../here/t.jsonl")) == []
    assert here.differences(of_file("/there/t.jsonl", "g")) == ["sources.a.fingerprint: 'f' and 'g'"]
    named = "sources.a.task_set.path: '/here/t.jsonl' and "
    assert here.differences(of_file("/here/u.jsonl")) == [f"{named}'/here/u.jsonl'"]
    assert of_file("/here/t.jsonl", None).differences(of_file("/there/t.jsonl", None)) == [f"{named}'/there/t.jsonl'"]
