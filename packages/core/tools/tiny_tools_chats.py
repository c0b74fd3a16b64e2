"""The chats from which ``builtin:tiny-tools`` learns; ``make_tiny_tools.py`` says what they are for."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import make_tiny_math as plain
from tiny_models import Message, draw

from reroll.tasks.arithmetic import is_held_out
from reroll.tasks.calculations import Calculation

SUMMARISE = "Summarise the work so far."
CHECK = "Check your work and answer again."
JUDGE = "Was this correct? Answer yes or no."

# Shares of the chats, by their shape.
SHAPES = {
    "plain": 0.46,  # a sum or product of two numbers, without a tool
    "plain again": 0.10,  # the same, and a second look
    "calculation": 0.12,  # a calculation with the tool offered
    "again": 0.07,  # the same, and a second look
    "summary": 0.05,  # the same, stopped somewhere for a summary
    "resumed": 0.03,  # a calculation of which a part is done
    "judging": 0.16,
    "no tool": 0.01,  # a calculation without a tool
}
P_SYSTEM = 0.07  # of chats with a system message

# Habits. A first answer where the tool is offered:
APPROACHES = {"tool": 0.72, "mental": 0.19, "unsure": 0.09}
P_MISCOPY = 0.04  # of a call with a wrong digit in it
P_UNSURE_RESUMED = 0.05
# A second look, by whether the first answer was right; "redo" calls the tool where it is offered.
LOOKS = {
    True: {"repeat": 0.50, "redo": 0.35, "slip": 0.10, "unsure": 0.05},
    False: {"repeat": 0.40, "redo": 0.60},
}
P_ANOTHER_LOOK = 0.10
P_LOOK_HALFWAY = 0.05  # of second looks asked for before there was an answer
P_JUDGED_WELL = 0.85

PRODUCT_SHARE = 0.4
TERMS = {2: 0.15, 3: 0.45, 4: 0.18, 5: 0.12, 6: 0.10}

ALL_STEPS = max(TERMS)  # more than any calculation has

PAIR = re.compile(r"(\d+) ([+*]) (\d+)")


class Step(NamedTuple):
    """One call and what came of it."""

    expression: str
    result: int

    @classmethod
    def of(cls, expression: str) -> Step:
        """Return the step that calls the tool with ``expression``."""
        result = evaluate(expression)
        assert result is not None, expression
        return cls(expression, result)

    def __str__(self) -> str:
        return f"{self.expression} = {self.result}."


class Chat(NamedTuple):
    """Messages in the chat template's form, and whether the tool is offered."""

    messages: list[Message]
    tool: bool


Question = Calculation | plain.Question


# --- Questions and their work --------------------------------------------------------


def user_text(question: Question) -> str:
    """Write the question as the user puts it."""
    return f"What is {question.expression}?" if isinstance(question, Calculation) else plain.user_text(question)


def right_result(question: Question) -> int:
    """Return the true result."""
    return question.result if isinstance(question, Calculation) else plain.right_result(question)


def slip_result(question: Question) -> int:
    """Return what mental work makes of it: a sum without its carries, of a product the first sum alone."""
    if not isinstance(question, Calculation):
        return plain.slip_result(question)
    numbers = question.operands if question.kind == "sum" else question.operands[:2]
    return 10 * (sum(n // 10 for n in numbers) % 10) + sum(n % 10 for n in numbers) % 10


def evaluate(expression: str) -> int | None:
    """Return the value of a sum or product of two numbers; None for any other text."""
    found = PAIR.fullmatch(expression)
    if found is None:
        return None
    return right_result((found[2], int(found[1]), int(found[3])))


def next_calls(question: Calculation, done: Sequence[Step]) -> list[str]:
    """Return the expressions to call next; none when the last result is the answer."""
    if question.kind == "sum":
        if len(done) == len(question.operands) - 1:
            return []
        left = done[-1].result if done else question.operands[0]
        return [f"{left} + {question.operands[len(done) + 1]}"]
    a, b, c, d = question.operands
    if not done:
        return [f"{a} + {b}", f"{c} + {d}"]
    return [f"{done[0].result} * {done[1].result}"] if len(done) == 2 else []


def miscopied(expression: str, rng: random.Random) -> str:
    """Return the expression with one digit changed, and no zero put in front."""
    places = [place for place, char in enumerate(expression) if char.isdigit()]
    place = rng.choice(places)
    leads = place + 1 in places and place - 1 not in places
    digit = rng.choice([d for d in "0123456789"[leads:] if d != expression[place]])
    return expression[:place] + digit + expression[place + 1 :]


def work(
    question: Calculation, done: list[Step], rng: random.Random, miscopy: float, until: int = ALL_STEPS
) -> list[Message]:
    """Write the turns of calls and results that follow ``done``, to which their steps are added.

    Args:
        miscopy: probability that a call has a wrong digit.
        until: stop where so many steps are done.
    """
    messages: list[Message] = []
    while len(done) < until and (expressions := next_calls(question, done)):
        expressions = [miscopied(e, rng) if rng.random() < miscopy else e for e in expressions]
        steps = [Step.of(expression) for expression in expressions]
        messages.append(calling(expressions))
        messages += [{"role": "tool", "content": str(step.result)} for step in steps]
        done += steps
    return messages


def all_steps(question: Calculation) -> list[Step]:
    """Return the steps of faultless work."""
    done: list[Step] = []
    work(question, done, random.Random(0), miscopy=0.0)
    return done


# --- Messages ------------------------------------------------------------------------


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def saying(text: str) -> Message:
    return {"role": "assistant", "content": text}


def boxed(number: int) -> str:
    return f"\\boxed{{{number}}}"


def calling(expressions: Sequence[str]) -> Message:
    """Return a turn that calls the tool once for each expression."""
    calls = [
        {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
        for expression in expressions
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


# --- Answers -------------------------------------------------------------------------


def solve(question: Calculation, done: list[Step], rng: random.Random, miscopy: float) -> list[Message]:
    """Write the calls that are still to make, and the answer."""
    messages = work(question, done, rng, miscopy)
    return [*messages, saying(boxed(done[-1].result))]


def first_answer(question: Question, tool: bool, rng: random.Random) -> list[Message]:
    """Write the turns up to the first answer."""
    if not isinstance(question, Calculation):
        return [saying(plain.draw_answer(question, rng))]
    approach = draw(APPROACHES, rng)
    if approach == "unsure":
        return [saying(plain.UNSURE)]
    if approach == "mental" or not tool:
        return [saying(boxed(slip_result(question)))]
    return solve(question, [], rng, P_MISCOPY)


def second_look(question: Question, answer: str, tool: bool, rng: random.Random) -> list[Message]:
    """Write the turns up to the answer that a second look gives."""
    right = boxed(right_result(question))
    look = draw(LOOKS[answer == right], rng)
    if look == "redo" and tool and isinstance(question, Calculation):
        return solve(question, [], rng, miscopy=0.0)
    texts = {"repeat": answer, "redo": right, "slip": boxed(slip_result(question)), "unsure": plain.UNSURE}
    return [saying(texts[look])]


# --- Chats ---------------------------------------------------------------------------


def draw_question(kind: str, rng: random.Random) -> Question:
    """Draw a question of which no part is held out: a plain one, or a calculation."""
    if kind == "plain":
        op = "+" if rng.random() < plain.ADDITION_SHARE else "*"
        return rng.choice(POOLS[op])
    while True:
        if rng.random() < PRODUCT_SHARE:
            question = Calculation("product", tuple(rng.randint(0, 99) for _ in range(4)))
        else:
            terms = rng.choices(list(TERMS), list(TERMS.values()))[0]
            question = Calculation("sum", tuple(rng.randint(0, 99) for _ in range(terms)))
        texts = [question.expression, *(step.expression for step in all_steps(question))]
        if not question.held_out and not any(map(holds_held_out, texts)):
            return question


POOLS = {op: plain.seen_questions(op) for op in plain.MAX_OPERAND}


def holds_held_out(text: str) -> bool:
    """Whether a sum or product of two numbers is held out."""
    return any(is_held_out(op, int(a), int(b)) for a, op, b in PAIR.findall(text))


def draw_again(question: Question, tool: bool, rng: random.Random) -> list[Message]:
    """Write a question, its answer and one or two second looks."""
    messages = first_answer(question, tool, rng)
    if messages[1:] and rng.random() < P_LOOK_HALFWAY:
        done: list[Step] = []
        assert isinstance(question, Calculation)
        begun = work(question, done, rng, P_MISCOPY, until=rng.randint(1, len(all_steps(question))))
        return [*begun, user(CHECK), *solve(question, done, rng, P_MISCOPY)]
    for _ in range(2 if rng.random() < P_ANOTHER_LOOK else 1):
        messages += [user(CHECK), *second_look(question, str(messages[-1]["content"]), tool, rng)]
    return messages


def begin(question: Calculation, done: Sequence[Step]) -> Message:
    """Return the first turn of a conversation of which a part is done."""
    return user(f"{user_text(question)}\n\nWork so far: {' '.join(map(str, done))}" if done else user_text(question))


def draw_done(question: Calculation, rng: random.Random, miscopy: float = P_MISCOPY) -> list[Step]:
    """Draw how much of the work is done: at least one turn of calls."""
    done: list[Step] = []
    work(question, done, rng, miscopy, until=rng.randint(1, len(all_steps(question))))
    return done


def draw_summary(question: Calculation, rng: random.Random) -> list[Message]:
    """Write work, perhaps begun in an earlier conversation, and its summary."""
    done = draw_done(question, rng) if rng.random() < 0.25 else []
    first = begin(question, done)
    messages = work(question, done, rng, P_MISCOPY, until=max(1, rng.randint(len(done), len(all_steps(question)))))
    if not next_calls(question, done) and rng.random() < 0.5:
        messages.append(saying(boxed(done[-1].result)))
    return [first, *messages, user(SUMMARISE), saying(" ".join(map(str, done)))]


def draw_judged(question: Question, rng: random.Random) -> str:
    """Write an answer that is to be judged."""
    right = right_result(question)
    slip = slip_result(question) if rng.random() < 0.6 else int(miscopied(str(right), rng))
    answer = boxed(right if rng.random() < 0.5 else slip)
    return plain.UNSURE if rng.random() < 0.05 else answer


def judging(question: Question, answer: str) -> Message:
    """Return the turn that asks for a verdict."""
    return user(f"{user_text(question)}\n\nAnswer: {answer}\n\n{JUDGE}")


def draw_judging(question: Question, rng: random.Random) -> list[Message]:
    """Write an answer to be judged, and a verdict that is often right."""
    answer = draw_judged(question, rng)
    verdict = (answer == boxed(right_result(question))) == (rng.random() < P_JUDGED_WELL)
    return [judging(question, answer), saying("yes" if verdict else "no")]


def draw_turns(shape: str, rng: random.Random) -> list[Message]:
    """Write the turns of one chat of the given shape."""
    if shape == "judging":
        return draw_judging(draw_question("plain" if rng.random() < 0.5 else "calculation", rng), rng)
    tool = shape not in ("plain", "plain again", "no tool")
    question = draw_question("plain" if shape.startswith("plain") else "calculation", rng)
    if shape.endswith("again"):
        return [user(user_text(question)), *draw_again(question, tool, rng)]
    if not isinstance(question, Calculation) or shape in ("calculation", "no tool"):
        return [user(user_text(question)), *first_answer(question, tool, rng)]
    if shape == "summary":
        return draw_summary(question, rng)
    done = draw_done(question, rng)
    first = begin(question, done)
    unsure = rng.random() < P_UNSURE_RESUMED
    return [first, *([saying(plain.UNSURE)] if unsure else solve(question, done, rng, P_MISCOPY))]


def draw_chat(shape: str, rng: random.Random) -> Chat:
    """Write one chat of the given shape, without anything that is held out."""
    while True:
        turns = draw_turns(shape, rng)
        # Questions are clean; a miscopied call may have led to a sum that is held out.
        if not any(holds_held_out(text) for text in map(said, turns)):
            break
    if rng.random() < P_SYSTEM:
        turns.insert(0, {"role": "system", "content": rng.choice(plain.SYSTEM_MESSAGES)})
    return Chat(turns, shape in ("calculation", "again", "summary", "resumed"))


# --- As the chat template writes them ------------------------------------------------


def call_text(call: dict[str, Any]) -> str:
    """Write one call."""
    expression = call["function"]["arguments"]["expression"]
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def said(message: Message) -> str:
    """Write what a message says, calls included."""
    return str(message["content"]) + "\n".join(map(call_text, message.get("tool_calls", [])))


def written(chat: Chat) -> list[Message]:
    """Return messages of plain content that a template without tools renders as the model's own renders ``chat``."""
    turns = [{"role": message["role"], "content": said(message)} for message in chat.messages]
    if chat.tool:
        system = turns.pop(0)["content"] + "\n" if turns[0]["role"] == "system" else ""
        turns.insert(0, {"role": "system", "content": f"{system}Tools: calculator"})
    return turns
