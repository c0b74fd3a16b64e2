"""What ``builtin:tiny-tools`` does, in figures: its conversations are played through with a calculator at hand."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from make_tiny_math import MAX_OPERAND, seen_questions
from tiny_models import Message, replies
from tiny_tools_chats import (
    CHECK,
    SUMMARISE,
    Chat,
    Question,
    Step,
    begin,
    boxed,
    calling,
    draw_done,
    draw_judged,
    evaluate,
    judging,
    right_result,
    saying,
    user,
    user_text,
)
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from reroll.tasks.calculations import CALCULATOR, Calculation, Kind

MAX_TURNS = 8
MAX_TOKENS = 80
NUMBER = 400  # questions of each kind
CALLS = re.compile(r"(?:<tool_call>\n(.+)\n</tool_call>(?:\n(?=<)|$))+")
CALL = re.compile(r"<tool_call>\n(.+)\n</tool_call>")


def rendered(tokenizer: PreTrainedTokenizerFast, chat: Chat, prompt: bool = True) -> str:
    """Return the chat as its template writes it, with what begins the model's turn if ``prompt``."""
    tools = [CALCULATOR] if chat.tool else None
    text: str = tokenizer.apply_chat_template(chat.messages, tools=tools, tokenize=False, add_generation_prompt=prompt)
    return text


def read_calls(reply: str) -> list[str] | None:
    """Return the expressions that a reply calls the calculator with; None for a malformed call."""
    if "tool_call>" not in reply:
        return []
    if CALLS.fullmatch(reply) is None:
        return None
    expressions = []
    for text in CALL.findall(reply):
        try:
            expression = json.loads(text)["arguments"]["expression"]
        except (ValueError, KeyError, TypeError):
            return None
        if evaluate(expression) is None:
            return None
        expressions.append(expression)
    return expressions


@dataclass
class Played:
    """A conversation that the model has gone on with.

    Attributes:
        steps: calls that it made, and their results.
        answer: its last turn; empty where it found no end.
    """

    messages: list[Message]
    tool: bool = True
    steps: list[Step] = field(default_factory=list)
    answer: str = ""
    malformed: bool = False
    ended: bool = False

    def take(self, reply: str) -> None:
        """Add what the model said, and the results of its calls."""
        expressions = read_calls(reply)
        if not expressions:
            self.malformed, self.ended, self.answer = expressions is None, True, reply
            self.messages.append(saying(reply))
            return
        self.messages.append(calling(expressions))
        for expression in expressions:
            self.steps.append(Step.of(expression))
            self.messages.append({"role": "tool", "content": str(self.steps[-1].result)})


class Player:
    """Plays conversations with one model, greedily or sampled."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, sample: bool) -> None:
        self.model, self.tokenizer, self.sample = model, tokenizer, sample

    def play(self, chats: Sequence[Chat], turns: int = MAX_TURNS) -> list[Played]:
        """Let every chat go on to its answer, over at most so many turns of the model."""
        played = [Played(list(chat.messages), chat.tool) for chat in chats]
        for _ in range(turns):
            going = [one for one in played if not one.ended]
            texts = [rendered(self.tokenizer, Chat(one.messages, one.tool)) for one in going]
            said = replies(self.model, self.tokenizer, texts, self.sample, MAX_TOKENS)
            for one, reply in zip(going, said, strict=True):
                one.take(reply)
        return played

    def show(self, name: str, **shares: tuple[int, int]) -> None:
        """Print counted shares in one line."""
        figures = [f"{key.replace('_', ' ')} {part / max(1, of):6.1%} of {of:4d}" for key, (part, of) in shares.items()]
        print(f"{name:28s} {'sampled' if self.sample else 'greedy':7s} {'  '.join(figures)}", flush=True)

    def calculations(self, name: str, questions: Sequence[Calculation]) -> None:
        """Print how calculations with the tool end."""
        played = self.play([Chat([begin(question, [])], tool=True) for question in questions])
        right = sum(one.answer == boxed(question.result) for one, question in zip(played, questions, strict=True))
        number = len(questions)
        self.show(
            name,
            right=(right, number),
            calls=(sum(bool(one.steps) for one in played), number),
            malformed=(sum(one.malformed for one in played), number),
            unended=(sum(not one.ended for one in played), number),
        )

    def second_looks(self, name: str, questions: Sequence[Question], tool: bool) -> None:
        """Print how right answers are after a second look. The first answers are sampled, as in a run."""
        first = Player(self.model, self.tokenizer, sample=True).play(
            [Chat([user(user_text(question))], tool) for question in questions]
        )
        looks = self.play([Chat([*one.messages, user(CHECK)], tool) for one in first])
        after: dict[bool, list[bool]] = {True: [], False: []}
        for before, look, question in zip(first, looks, questions, strict=True):
            right = boxed(right_result(question))
            after[before.answer == right].append(look.answer == right)
        number = len(questions)
        self.show(
            name,
            right_before=(len(after[True]), number),
            right_after=(sum(after[True]) + sum(after[False]), number),
            after_right=(sum(after[True]), len(after[True])),
            after_wrong=(sum(after[False]), len(after[False])),
        )

    def summaries(self, name: str, questions: Sequence[Calculation], rng: random.Random) -> None:
        """Print how many summaries are exact, and how often the right answer follows from one."""
        sampled = Player(self.model, self.tokenizer, sample=True)
        begun: list[Played] = []
        for turns in (1, 2):
            begun += sampled.play([Chat([begin(q, [])], tool=True) for q in questions[turns - 1 :: 2]], turns)
        begun = [one for one in begun if one.steps and not one.malformed]
        said = self.play([Chat([*one.messages, user(SUMMARISE)], tool=True) for one in begun], turns=1)
        exact = [look.answer == " ".join(map(str, one.steps)) for look, one in zip(said, begun, strict=True)]
        parts = [draw_done(question, rng, miscopy=0.0) for question in questions]
        resumed = self.play([Chat([begin(q, part)], tool=True) for q, part in zip(questions, parts, strict=True)])
        right = [one.answer == boxed(q.result) for one, q in zip(resumed, questions, strict=True)]
        self.show(name, exact=(sum(exact), len(exact)), right_from_summary=(sum(right), len(right)))

    def verdicts(self, name: str, questions: Sequence[Question], rng: random.Random) -> None:
        """Print how many answers are judged rightly."""
        answers = [draw_judged(question, rng) for question in questions]
        chats = [Chat([judging(q, answer)], tool=False) for q, answer in zip(questions, answers, strict=True)]
        wanted = [
            "yes" if answer == boxed(right_result(q)) else "no" for q, answer in zip(questions, answers, strict=True)
        ]
        said = [one.answer for one in self.play(chats, turns=1)]
        hits = {word: [w == s for w, s in zip(wanted, said, strict=True) if w == word] for word in ("yes", "no")}
        self.show(
            name,
            right=(sum(map(sum, hits.values())), len(questions)),
            of_right_answers=(sum(hits["yes"]), len(hits["yes"])),
            of_wrong_answers=(sum(hits["no"]), len(hits["no"])),
        )


def draw_calculations(kind: Kind, terms: int, held_out: bool, rng: random.Random) -> list[Calculation]:
    """Draw calculations of one split."""
    found: list[Calculation] = []
    while len(found) < NUMBER:
        calculation = Calculation(kind, tuple(rng.randint(0, 99) for _ in range(terms)))
        if calculation.held_out == held_out:
            found.append(calculation)
    return found


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Print what the model does, greedily and sampled."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    sums = [question for op in MAX_OPERAND for question in seen_questions(op)]
    for sample in (False, True):
        player = Player(model, tokenizer, sample)
        for held_out in (False, True):
            split = "held-out" if held_out else "seen"
            for terms in (2, 3, 4, 6):
                player.calculations(f"sums of {terms}, {split}", draw_calculations("sum", terms, held_out, rng))
            player.calculations(f"products, {split}", draw_calculations("product", 4, held_out, rng))
        mixed = draw_calculations("sum", 3, True, rng) + draw_calculations("product", 4, True, rng)
        player.second_looks("second look, tool", mixed, tool=True)
        player.second_looks("second look, plain", rng.sample(sums, NUMBER), tool=False)
        player.summaries("summary", mixed, rng)
        player.verdicts("judging calculations", mixed, rng)
        player.verdicts("judging plain sums", rng.sample(sums, NUMBER), rng)
