"""Data sets are prepared whole or not at all, alike every time, and never over one another."""

import json
import multiprocessing
import os
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reroll.api import DatasetConfig, PluginError, TaskError
from reroll.rollouts.verifiers import ExactMatch
from reroll.tasks.catalog import prepare as preparing
from reroll.tasks.catalog.holding_out import held_out_option
from reroll.tasks.catalog.manifest import read_manifest
from reroll.tasks.catalog.multiplication import MultiplicationConfig, MultiplicationDataset
from reroll.tasks.catalog.prepare import prepare
from reroll.tasks.catalog.prompts import filled
from reroll.tasks.catalog.rows import How
from reroll.tasks.catalog.sources import SourceError

sys.path.insert(0, str(Path(__file__).parent))

from catalog_cases import PACKAGE, Questions, asked, prepared, read, rows_of, write_lines

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_rows_become_tasks_with_prompt_target_and_identity(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [{"question": "two {question}?", "answer": "2", "mark": 1}])
    done = prepared(source, tmp_path / "out")
    (row,) = read(tmp_path / "out", "train")
    assert row["messages"] == [{"role": "user", "content": "Q: two {question}? {kept}"}]
    assert row["targets"] == {"exact_match": "2"}
    assert row["metadata"] == {"mark": 1, "source": {"file": "in.jsonl", "row": 1}}
    assert len(row["prepared_sample_id"]) == 32
    assert done.anew and names(tmp_path / "out") == ["manifest.json", "train.jsonl"]
    assert not (tmp_path / "out" / "train.jsonl").stat().st_mode & 0o222
    (file,) = done.manifest.facts.source["files"]
    assert (file["name"], file["rows"], file["bytes"]) == ("in.jsonl", 1, source.stat().st_size)


def test_two_preparations_of_one_source_are_equal_to_the_byte(tmp_path):
    rows = rows_of(*map(str, range(30)))
    for folder in ("here", "elsewhere"):
        source = write_lines(tmp_path / folder / "in.jsonl", rows)
        prepared(source, tmp_path / folder / "out", How(held_out=5))
    for name in ("manifest.json", "test.jsonl", "train.jsonl"):
        one, other = (tmp_path / folder / "out" / name for folder in ("here", "elsewhere"))
        assert one.read_bytes() == other.read_bytes()


def test_the_same_again_is_told_and_anything_else_is_refused(tmp_path):
    output = tmp_path / "out"
    source = write_lines(tmp_path / "in.jsonl", rows_of("a", "b"))
    first = prepared(source, output)
    before = (output / "train.jsonl").stat().st_mtime_ns
    again = prepared(source, output)
    assert not again.anew and again.manifest.sha256 == first.manifest.sha256
    assert (output / "train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(SourceError, match=r"another way or from something else \(options, prompt, splits differ\)"):
        prepared(source, output, dataset=Questions(DatasetConfig(template="{question}")))
    write_lines(source, rows_of("a", "c"))
    with pytest.raises(SourceError, match=r"\(source, splits differ\)"):
        prepared(source, output)
    write_lines(source, rows_of("a", "b"))
    (output / "train.jsonl").chmod(0o644)
    (output / "train.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match=r"train.jsonl: .* bytes expected, found 3; the file is not what"):
        prepared(source, output)
    assert names(tmp_path) == ["in.jsonl", "out"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", rows_of("a"))
    write_lines(tmp_path / "out" / "mine.txt", [])
    with pytest.raises(SourceError, match=r"holds other files, and no manifest.json"):
        prepared(source, tmp_path / "out")
    with pytest.raises(SourceError, match="is a file; give a folder"):
        prepared(source, source)
    (tmp_path / "empty").mkdir()
    assert prepared(source, tmp_path / "empty").anew


@pytest.mark.parametrize("point", ["row", "write_whole", "publish", "held_manifest"])
def test_a_preparation_that_is_killed_leaves_nothing_that_counts(tmp_path, monkeypatch, point):
    source, output = write_lines(tmp_path / "in.jsonl", rows_of(*map(str, range(9)))), tmp_path / "out"

    class Dies(Questions):
        def row(self, raw):
            if raw["question"] == "5":
                os._exit(9)
            return super().row(raw)

    def die():
        if point != "row":
            calls = Counter()

            def dying(*arguments):
                calls[point] += 1
                if point != "held_manifest" or calls[point] == 1:
                    os._exit(9)

            setattr(preparing, point, dying)
        prepared(source, output, dataset=Dies() if point == "row" else None)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert not output.exists()
    assert prepared(source, output).anew
    assert len(read(output, "train")) == 9
    assert names(tmp_path) == ["in.jsonl", "out"]


def test_every_fault_is_named_and_nothing_is_written(tmp_path):
    rows = [*rows_of("a"), {"question": "b"}, 3, {"question": "", "answer": "x"}, {"question": "c", "answer": 1.5}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    with source.open("a") as file:
        file.write('{"question": "torn"')
    with pytest.raises(TaskError) as told:
        prepared(source, tmp_path / "out", judge=ExactMatch())
    lines = str(told.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:-1]] == [f"in.jsonl:{row}" for row in (2, 3, 4, 5, 6)]
    assert "has no answer" in lines[0] and "not a table" in lines[1] and "is no text" in lines[2]
    assert "can never be judged" in lines[3] and "is no JSON" in lines[4]
    assert "--skip-invalid" in lines[-1]
    assert names(tmp_path) == ["in.jsonl"]
    done = prepared(source, tmp_path / "out", How(skip_invalid=True), judge=ExactMatch())
    assert done.manifest.facts.splits["train"].left_out == {"unreadable": 5}
    assert asked(tmp_path / "out", "train") == ["Q: a {kept}"] and len(done.skipped) == 5


def test_what_is_left_out_on_purpose_and_what_comes_twice_is_counted(tmp_path):
    twice = {"question": "a", "answer": "a0"}
    rows = [twice, {**twice, "hard": True}, twice, {**twice, "answer": "other"}, *rows_of("b")]
    prepared(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out")
    split = read_manifest(tmp_path / "out" / "manifest.json").facts.splits["train"]
    assert split.left_out == {"hard": 1}
    assert split.duplicates == {"same target": 1, "another target": 1}
    assert split.rows == 2
    only_hard = write_lines(tmp_path / "hard.jsonl", [{**twice, "hard": True}])
    with pytest.raises(SourceError, match=r"'train' is left without rows \(hard: 1\)"):
        prepared(only_hard, tmp_path / "none")


def test_what_stands_in_two_splits_leaves_the_one_that_is_trained_on(tmp_path):
    write_lines(tmp_path / "in" / "train.jsonl", rows_of("a", "b", "c"))
    write_lines(tmp_path / "in" / "test.jsonl", rows_of("b", "d"))
    with pytest.raises(SourceError, match=r"ask the same \(1 rows of train in test\)"):
        prepared(tmp_path / "in", tmp_path / "out", How(refuse_overlaps=True))
    facts = prepared(tmp_path / "in", tmp_path / "out").manifest.facts
    assert facts.overlaps == {"train in test": 1}
    assert asked(tmp_path / "out", "train") == ["Q: a {kept}", "Q: c {kept}"]
    assert asked(tmp_path / "out", "test") == ["Q: b {kept}", "Q: d {kept}"]
    assert list(facts.splits) == ["train", "test"]
    with pytest.raises(SourceError, match=r"splits of its own \(test, train\)"):
        prepared(tmp_path / "in", tmp_path / "other", How(held_out=1))


@settings(max_examples=30)
@given(st.lists(TEXT, min_size=3, max_size=30), st.data())
def test_held_out_rows_follow_from_what_is_asked(tmp_path_factory, questions, data):
    folder = tmp_path_factory.mktemp("held-out")
    different = len(set(questions))
    count = data.draw(st.integers(1, 20))
    source = write_lines(folder / "in.jsonl", [{"question": question, "answer": "x"} for question in questions])
    if count >= different:
        with pytest.raises(SourceError, match="some have to be left to train on"):
            prepared(source, folder / "out", How(held_out=count))
        return
    prepared(source, folder / "out", How(held_out=count))
    test, train = asked(folder / "out", "test"), asked(folder / "out", "train")
    assert len(test) == count and len(train) == different - count
    assert not set(test) & set(train)
    shuffled = data.draw(st.permutations(questions))
    other = write_lines(folder / "other.jsonl", [{"question": question, "answer": "x"} for question in shuffled])
    prepared(other, folder / "again", How(held_out=count), dataset=Questions(DatasetConfig(template="{question}")))
    assert sorted(f"Q: {text} {{kept}}" for text in asked(folder / "again", "test")) == sorted(test)


def test_a_share_stays_what_it_is_when_the_source_grows(tmp_path):
    def test_of(size):
        source = write_lines(tmp_path / f"{size}.jsonl", rows_of(*map(str, range(size))))
        prepared(source, tmp_path / f"out-{size}", How(held_out=0.25))
        return set(asked(tmp_path / f"out-{size}", "test"))

    few, many = test_of(100), test_of(400)
    assert few < many
    assert 60 < len(many) < 140


@pytest.mark.parametrize(("text", "value"), [("500", 500), ("0.05", 0.05)])
def test_held_out_is_a_number_of_rows_or_a_share(text, value):
    assert held_out_option(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "0.0", "nan.", "many", "1e3"])
def test_any_other_held_out_is_refused(text):
    with pytest.raises(SourceError, match="give a number of rows such as 500, or a share such as 0.05"):
        held_out_option(text)


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=20), min_size=2), st.text(max_size=10))
def test_braces_in_texts_and_templates_stand_for_themselves(values, between):
    between = between.replace("{a}", "").replace("{b}", "")
    template = "{a}" + between + "\\boxed{}{c}{b}"
    assert filled(template, ("a", "b"), values) == f"{values['a']}{between}\\boxed{{}}{{c}}{values['b']}"


def test_a_template_without_its_place_is_refused(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", rows_of("a"))
    with pytest.raises(TaskError, match=r"template = 'Q: \{qestion\}' has no \{question\}"):
        prepared(source, tmp_path / "out", dataset=Questions(DatasetConfig(template="Q: {qestion}")))


def test_a_chat_of_the_source_is_the_prompt_as_it_is(tmp_path):
    chat = [{"role": "system", "content": "Be brief.", "name": None}, {"role": "user", "content": "{question}"}]
    source = write_lines(tmp_path / "in.jsonl", [{"messages": chat, "answer": "x"}, *rows_of("a", "b", "c")])
    dataset = Questions(DatasetConfig(system="Think."))
    facts = prepared(source, tmp_path / "out", How(held_out=1), dataset).manifest.facts
    rows = [*read(tmp_path / "out", "train"), *read(tmp_path / "out", "test")]
    (given_chat,) = [row["messages"] for row in rows if row["messages"][-1]["content"] == "{question}"]
    assert given_chat == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{question}"}]
    assert {"role": "system", "content": "Think."} in rows[-1]["messages"] + rows[0]["messages"]
    assert sum(split.given_prompts for split in facts.splits.values()) == 1
    ends = write_lines(tmp_path / "ends.jsonl", [{"messages": [{"role": "assistant", "content": "x"}], "answer": "x"}])
    with pytest.raises(TaskError, match="ends with the role 'assistant'"):
        prepared(ends, tmp_path / "none")


@settings(max_examples=40)
@given(st.data())
def test_a_torn_file_is_a_fault_or_a_whole_data_set(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("torn")
    source = write_lines(folder / "in.jsonl", rows_of("a", "b {", "ü}"))
    content = source.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    source.write_bytes(content[:cut])
    lines = [line for line in content[:cut].split(b"\n") if line]
    whole = all(line in content.split(b"\n") for line in lines)
    if whole and lines:
        assert len(read(prepared(source, folder / "out").manifest.path.parent, "train")) == len(lines)
    else:
        with pytest.raises((TaskError, SourceError), match=rf"in.jsonl:{len(lines)}: is no JSON|without rows"):
            prepared(source, folder / "out")
        assert names(folder) == ["in.jsonl"]


def test_text_that_cannot_be_written_is_a_fault_of_its_row(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"question": "\\ud800", "answer": "x"}\n{"question": "a", "answer": NaN}\n')
    with pytest.raises(TaskError, match=r"(?s)in.jsonl:1: holds half of a surrogate pair.*in.jsonl:2: is no JSON: NaN"):
        prepared(source, tmp_path / "out")


def test_multiplication_is_generated_with_splits_that_share_no_pair(tmp_path):
    dataset = MultiplicationDataset(MultiplicationConfig(high=12, test_size=5))
    done = prepare(dataset, PACKAGE, None, tmp_path / "out", How())
    pairs = {}
    for split in ("train", "test"):
        rows = read(tmp_path / "out", split)
        pairs[split] = set()
        for row in rows:
            a, b = map(int, row["messages"][0]["content"].removeprefix("What is ").removesuffix("?").split(" * "))
            assert row["targets"] == {"math": str(a * b)}
            pairs[split].add((min(a, b), max(a, b)))
    assert len(read(tmp_path / "out", "test")) == 5
    assert not pairs["train"] & pairs["test"]
    assert done.manifest.facts.source["kind"] == "generated"
    assert json.loads(done.manifest.path.read_text())["options"]["high"] == 12


def test_a_data_set_that_fails_is_named_with_the_row(tmp_path):
    class Fails(Questions):
        def row(self, raw):
            return raw["nothing"]

    class Strange(Questions):
        def row(self, raw):
            return 3

    source = write_lines(tmp_path / "in.jsonl", rows_of("a"))
    with pytest.raises(PluginError, match=r"'questions' raised KeyError: 'nothing' of the row \{'question': 'a'"):
        prepared(source, tmp_path / "out", dataset=Fails())
    with pytest.raises(PluginError, match="made 3 of a row; it must be a DatasetRow"):
        prepared(source, tmp_path / "out", dataset=Strange())


@pytest.mark.parametrize("output", [".", ".."])
def test_the_working_directory_is_not_replaced(tmp_path, monkeypatch, output):
    source = write_lines(tmp_path / "in.jsonl", rows_of("a"))
    (tmp_path / "here" / "within").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "within")
    with pytest.raises(SourceError, match="holds the working directory"):
        prepared(source, Path(output))
    prepared(source, Path("out"))
    assert names(Path("out")) == ["manifest.json", "train.jsonl"]


def test_memory_does_not_grow_with_the_source(tmp_path):
    rows = [{"question": f"{number} {'x' * 5000}", "answer": "x"} for number in range(1000)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    del rows
    tracemalloc.start()
    prepared(source, tmp_path / "out", How(held_out=10))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < source.stat().st_size / 4


def test_a_second_preparation_waits_for_nobody(tmp_path):
    source, output = write_lines(tmp_path / "in.jsonl", rows_of("a", "b")), tmp_path / "out"

    class Meanwhile(Questions):
        def row(self, raw):
            with pytest.raises(SourceError, match="another preparation is writing it"):
                prepared(source, output)
            return super().row(raw)

    assert prepared(source, output, dataset=Meanwhile()).anew
    assert len(read(output, "train")) == 2
