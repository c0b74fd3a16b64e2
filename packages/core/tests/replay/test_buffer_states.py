"""Whatever happens to the steps of a run, an online buffer offers what is there."""

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule
from replay_forests import FILE, MARKER, answered, record_of, write_step

from reroll.api import Derivation
from reroll.replay.buffer import ReplayBuffer, balanced

CAPACITY = 7
STEPS = st.integers(0, 3)


class Halves(Derivation):
    name = "halves"

    def prompt(self, record, anchor):
        raise NotImplementedError

    def label(self, reward):
        return "high" if reward >= 0.5 else "low"


class Steps(RuleBasedStateMachine):
    """The folder as it is, what was last scanned of it, and what was discarded from which version of a file."""

    handles = Bundle("handles")

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.buffer = ReplayBuffer(
            self.folder, Halves(), source_envs=None, capacity=CAPACITY, online=True, seed=0, warn=lambda text: None
        )
        self.clock = 0
        self.lines, self.marked, self.version = {}, set(), {}
        self.scanned, self.discarded = {}, set()

    def teardown(self):
        shutil.rmtree(self.folder)

    def tick(self, step):
        """A new version, of a length that no other has: a test is quicker than the clock of a file system."""
        self.clock += 1
        self.version[step] = self.clock
        return "x" * self.clock

    @rule(step=STEPS, rewards=st.lists(st.sampled_from([0.0, 1.0]), max_size=4))
    def write(self, step, rewards):
        padding = self.tick(step)
        found = [
            record_of(answered(padding), f"{self.clock}-{number}", reward=reward)
            for number, reward in enumerate(rewards)
        ]
        write_step(self.folder, step, found, marker=False)
        self.lines[step] = [record["id"] for record in found]

    @precondition(lambda self: self.lines)
    @rule(step=STEPS)
    def mark(self, step):
        if step in self.lines:
            (self.folder / f"step_{step}" / MARKER).write_text(self.tick(step))
            self.marked.add(step)

    @rule(step=STEPS, kept=st.floats(0, 1))
    def truncate(self, step, kept):
        path = self.folder / f"step_{step}" / FILE
        content = path.read_bytes() if path.exists() else b""
        cut = content[: int(kept * len(content))]
        if len(cut) < len(content):
            path.write_bytes(cut)
            self.tick(step)
            self.lines[step] = [json.loads(line)["id"] for line in cut.split(b"\n") if line.endswith(b"}}}")]

    @rule(step=STEPS)
    def delete(self, step):
        shutil.rmtree(self.folder / f"step_{step}", ignore_errors=True)
        self.lines.pop(step, None)
        self.marked.discard(step)

    @rule()
    def refresh(self):
        self.buffer.refresh(force=True)
        expected = self.scan()
        held = {handle.source_id for handle in self.offered()}
        description = self.buffer.describe()
        assert description.candidates == len(expected)
        assert held <= set(expected)
        if description.offered == len(expected):
            assert sorted(held) == sorted(expected)

    def scan(self):
        """The candidates by the specification, newest step first."""
        room, found = CAPACITY, []
        for step in sorted(self.marked, reverse=True):
            if room:
                self.scanned[step] = self.version[step]
                usable = [name for name in self.lines[step] if (self.version[step], name) not in self.discarded]
                found += usable[:room]
                room -= len(usable[:room])
        return found

    @rule(target=handles, request=st.integers(0, 1000))
    def draw(self, request):
        handle = self.buffer.draw(request)
        return multiple() if handle is None else handle

    @rule(handle=handles)
    def discard(self, handle):
        self.buffer.discard(handle)
        self.discarded.add((self.scanned[handle.step], handle.source_id))
        assert handle not in self.offered()

    @rule(handle=handles)
    def read(self, handle):
        there = handle.source_id in self.lines.get(handle.step, [])
        out = (self.scanned[handle.step], handle.source_id) in self.discarded
        record = self.buffer.read(handle)
        if there and not out:
            assert record["id"] == handle.source_id
        else:
            assert record is None
            assert handle not in self.offered()
            self.discarded.add((self.scanned[handle.step], handle.source_id))

    def offered(self):
        return [self.buffer.pick(index) for index in range(len(self.buffer))]

    @invariant()
    def labels_are_balanced_or_one(self):
        rewards = [handle.reward for handle in self.offered()]
        assert rewards.count(0.0) == rewards.count(1.0) or len(set(rewards)) == 1
        assert balanced(self.offered(), Halves().label)[0] == self.offered()


Steps.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase
