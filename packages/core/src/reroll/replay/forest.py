"""The graph of a saved rollout's messages: which conversation is the main one, and where it can be taken up again.

A record's `nodes` form trees. A path from a root to a node is what a model saw there. The first tree is the main
conversation; what else belongs to it, and where a compaction began it anew, is marked by reroll's harnesses: `origin`
is `compaction` at the first node of a restart, and `rendering` at the root of a branch that repeats the whole
conversation because the chat template renders an earlier turn differently. In a record where no node is marked, as in
another product's files, the shape decides:

- A fork is a restart where its later child was neither sampled, which is a second try of an answer, nor is a tool
  result, which was given twice; in the main conversation only.
- A new root is a restart where the main conversation is not extended after it, its last leaf leaves no call unanswered
  (else the root is a sub-agent's, and its tree the work on that call), the root was not sampled and is no answer
  itself, and it equals the main conversation's first message if it is a system message.

Nothing here recurses: conversations of 100,000 messages are walked in loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from reroll.api import Message
from reroll.replay.calls import OpenCalls, Taken, dangling, normalised

COMPACTION = "compaction"
RENDERING = "rendering"


class Turn(NamedTuple):
    """A message that is no result, and its calls that are open; `settled` if no call before it was left open."""

    node: int
    calls: OpenCalls
    settled: bool


class Forest:
    """The trees of a record's nodes, which are read and never changed.

    Args:
        nodes: mappings with `message`, `sampled`, and `parent`, an index below the node's own; null or absent for a
            root. ValueError names a node of which that is not true.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.nodes = nodes
        self.parents: list[int | None] = [node.get("parent") for node in nodes]
        self.children: list[list[int]] = [[] for _ in nodes]
        self.roots: list[int] = []
        self.trees: list[int] = []
        """The root of each node's tree."""
        for index, parent in enumerate(self.parents):
            if parent is None:
                self.roots.append(index)
                self.trees.append(index)
            elif type(parent) is not int or not 0 <= parent < index:
                raise ValueError(f"node {index} has the parent {parent!r}, which is no node before it")
            else:
                self.children[parent].append(index)
                self.trees.append(self.trees[parent])

    def message(self, node: int) -> Mapping[str, Any]:
        message: Mapping[str, Any] = self.nodes[node]["message"]
        return message

    def role(self, node: int) -> str:
        return str(self.message(node).get("role"))

    def sampled(self, node: int) -> bool:
        return bool(self.nodes[node].get("sampled"))

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`."""
        found, index = [node], self.parents[node]
        while index is not None:
            found.append(index)
            index = self.parents[index]
        return found[::-1]

    @cached_property
    def marked(self) -> bool:
        """Whether the harness said why branches begin."""
        return any(node.get("origin") is not None for node in self.nodes)

    @cached_property
    def main_roots(self) -> list[int]:
        """Roots of the main conversation: the first, and those that take it up again."""
        if self.marked:
            return [
                root
                for root in self.roots
                if root == self.roots[0] or self.nodes[root].get("origin") in (COMPACTION, RENDERING)
            ]
        last = dict(zip(self.trees, range(len(self.trees)), strict=True))
        found, leaf = self.roots[:1], last[self.roots[0]] if self.roots else 0
        waits: dict[int, bool] = {}
        for root in self.roots[1:]:
            if leaf > root or not self._may_restart(root):
                continue
            if leaf not in waits:
                waits[leaf] = bool(dangling([self.message(node) for node in self.path(leaf)]))
            if not waits[leaf]:
                found.append(root)
                leaf = last[root]
        return found

    def _may_restart(self, root: int) -> bool:
        if self.sampled(root) or self.role(root) in ("assistant", "tool"):
            return False
        first, own = self.message(self.roots[0]), self.message(root)
        instructed = self.role(root) in ("system", "developer")
        return not instructed or all(first.get(name) == own.get(name) for name in ("role", "content"))

    @cached_property
    def main(self) -> list[int]:
        """The nodes of the main conversation, in order."""
        roots = set(self.main_roots)
        return [node for node, root in enumerate(self.trees) if root in roots]

    @cached_property
    def restarts(self) -> list[int]:
        """First nodes of what a compaction began anew in the main conversation."""
        if self.marked:
            return [node for node in self.main if self.nodes[node].get("origin") == COMPACTION]
        forks = (child for node in self.main for child in self.children[node][1:])
        found = [child for child in forks if not self.sampled(child) and self.role(child) != "tool"]
        return sorted(self.main_roots[1:] + found)

    def compaction_anchors(self) -> list[int]:
        """Where the model goes on after each restart: the last node that was given to it before it speaks."""
        starts = set(self.restarts)
        ends = (self._prompt_end(start, starts) for start in self.restarts)
        return [end for end in ends if end is not None]

    def _prompt_end(self, start: int, starts: set[int]) -> int | None:
        """The last node of the prompt that begins at `start`; None where there is nothing to answer in it."""
        node = start
        while not self.sampled(node):
            following = [child for child in self.children[node] if child not in starts]
            if any(self.sampled(child) for child in following):
                return node
            if not following:
                return node if self.role(node) in ("user", "tool") else None
            node = max(following, key=lambda child: (bool(self.children[child]), -child))
        return None

    def tool_anchors(self) -> list[int]:
        """Results of the main conversation that leave no call open, one for each turn that the model made calls in. Of
        a result that was given twice it is the one after which the conversation went on."""
        best: dict[int, int] = {}
        for node, turn in self._settling():
            turn = self._originals.get(turn, turn)
            if self.sampled(turn):
                best[turn] = max(node, best.get(turn, node), key=self._continued)
        return sorted(best.values())

    def _continued(self, node: int) -> tuple[bool, bool, int]:
        children = self.children[node]
        return any(self.role(child) != "tool" for child in children), bool(children), -node

    def _settling(self) -> Iterator[tuple[int, int]]:
        """Results after which no call of their path is open, each with the turn that made the calls."""
        waiting: list[tuple[int, Turn | None, Taken | None]] = [(root, None, None) for root in self.main_roots]
        while waiting:
            node, turn, taken = waiting.pop()
            if turn is not None and taken is not None:
                turn.calls.reopen(taken)  # the node's subtree is done: its siblings find the call open
                continue
            if self.role(node) != "tool":
                settled = turn is None or (turn.settled and not turn.calls.count)
                turn = Turn(node, OpenCalls(self.message(node)), settled)
            elif turn is not None and (taken := turn.calls.answer(self.message(node))) is not None:
                waiting.append((node, turn, taken))
                if turn.settled and not turn.calls.count:
                    yield node, turn.node
            waiting.extend((child, turn, None) for child in self.children[node])

    @cached_property
    def _originals(self) -> dict[int, int]:
        """The nodes of branches that repeat the conversation → the nodes that they repeat."""
        found: dict[int, int] = {}
        before = dict(zip(self.main[1:], self.main, strict=False))
        for root in self.main_roots[1:]:
            if self.nodes[root].get("origin") != RENDERING or root not in before:
                continue
            copies = [root]
            for original in self.path(before[root]):
                copies = [node for node in copies if not self.sampled(node) and self.role(node) == self.role(original)]
                found |= dict.fromkeys(copies, found.get(original, original))
                copies = [child for node in copies for child in self.children[node]]
        return found

    @cached_property
    def final_leaf(self) -> int:
        """The last leaf of the main conversation that is no result which came late; IndexError without nodes."""
        leaves = [node for node in self.main if not self.children[node]]
        return next((node for node in reversed(leaves) if not self._came_late(node)), leaves[-1])

    def _came_late(self, leaf: int) -> bool:
        """Whether it is a tool result, and the conversation had gone on without it from the message before."""
        parent = self.parents[leaf]
        if parent is None or self.role(leaf) != "tool":
            return False
        return any(
            self.sampled(twin) or (bool(self.children[twin]) and self._same_answer(leaf, twin))
            for twin in self.children[parent]
        )

    def _same_answer(self, leaf: int, twin: int) -> bool:
        identities = [self.message(node).get("tool_call_id") for node in (leaf, twin)]
        return self.role(twin) == "tool" and identities[0] == identities[1]


def conversation(record: Mapping[str, Any], node: int | None = None) -> list[Message]:
    """The messages from the root to `node`, by default to the final leaf of the main conversation, as new messages with
    their calls in the chat template's form."""
    forest = Forest(record["nodes"])
    leaf = forest.final_leaf if node is None else node
    return [normalised(forest.message(index)) for index in forest.path(leaf)]
