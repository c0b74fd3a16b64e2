"""A small data set, sources for it, and what was prepared of them."""

import json

from reroll.api import Dataset, DatasetRow, TaskError, given_messages, text_field
from reroll.tasks.catalog.prepare import Package, prepare
from reroll.tasks.catalog.rows import How
from reroll.tasks.catalog.sources import file_source

PACKAGE = Package("reroll", "0.1.0")


class Questions(Dataset):
    """Rows of `question` and `answer`; one without an answer cannot be read, one that is hard is left out."""

    name = "questions"
    verifier = "exact_match"
    template = "Q: {question} {kept}"
    places = ("question",)

    def row(self, raw):
        if raw.get("hard"):
            return "hard"
        if raw.get("answer") is None:
            raise TaskError("has no answer")
        messages = given_messages(raw)
        if messages is not None:
            return DatasetRow(raw["answer"], messages=messages)
        return DatasetRow(raw["answer"], {"question": text_field(raw, "question")}, metadata={"mark": raw.get("mark")})


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(*questions):
    return [{"question": question, "answer": f"a{number}"} for number, question in enumerate(questions)]


def prepared(source, output, how=None, dataset=None, judge=None):
    return prepare(dataset or Questions(), PACKAGE, file_source(source), output, how or How(), judge)


def read(output, split):
    return [json.loads(line) for line in (output / f"{split}.jsonl").read_bytes().splitlines()]


def asked(output, split):
    return [row["messages"][-1]["content"] for row in read(output, split)]
