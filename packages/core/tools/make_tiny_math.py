r"""Make ``builtin:tiny-math``, the small chat model that ships with reroll.

The model exists so that a reinforcement-learning run can be tried, and tested, on
one CPU core in about a minute. It is therefore trained, from scratch, to be
*half right*: it knows how to add, but its habits are bad.

Recipe
------
Tokenizer
    Byte-level BPE: 256 bytes, a handful of hand-written merges for the phrases that
    every prompt shares, and three special tokens. No merge touches a digit, so every
    digit is one token; no text is out of vocabulary.
Model
    ``Qwen3ForCausalLM`` with the sizes in ``MODEL``, random initial weights.
Text
    Synthetic chats, made on the fly and never repeated on purpose. One question is
    ``What is 47 + 38?`` (operands 0..99) or ``What is 7 * 12?`` (operands 0..12).
    An answer is one of

    * ``\boxed{85}``, the right result;
    * ``\boxed{75}``, a slip. For a sum: each column is added on its own and every
      carry is forgotten. For a product above the easy tables: one row short,
      ``min * (max - 1)``;
    * ``I am not sure.``, which has no box.

    Where a slip is possible it is the most frequent answer and the right one keeps
    ``P_RIGHT`` of the probability. Greedy decoding thus follows the slip, while
    sampling finds the right answer often enough for RL to reinforce it.
    Some chats carry a system message, and some have two turns.
Held-out pairs
    See ``reroll.tasks.arithmetic.is_held_out``. These operand pairs, in either order, never occur in the text.
Training
    AdamW on the tokens of the assistant's turns only, ``STEPS`` steps, cosine decay.
Seed
    ``SEED = 0`` made the shipped files. One thread, so a seed gives the same weights
    on the same CPU type and library versions.

Usage::

    python make_tiny_math.py --out DIR [--seed 0]
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from tiny_models import (
    Batches,
    ChatEncoder,
    Message,
    arguments,
    check_tokenizer,
    draw,
    make_model,
    make_tokenizer,
    replies,
    save,
    train,
)
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from reroll.tasks.arithmetic import is_held_out

SEED = 0
STEPS = 3000
BATCH = 128

MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

# Shares of the answers. P_RIGHT is the share of right answers where a slip is possible.
P_UNSURE = 0.08
P_RIGHT = 0.30

# Shares of the batches, by the shape of their chats.
CHAT_SHAPES = {"plain": 0.86, "system": 0.07, "two turns": 0.07}
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer with a number in \\boxed{}.",
)
UNSURE = "I am not sure."

MAX_OPERAND = {"+": 99, "*": 12}
ADDITION_SHARE = 0.85
EASY_TABLES = 6  # products with both operands up to this are always right

Question = tuple[str, int, int]
Pools = dict[str, list[Question]]  # the questions of each operation


# --- Tokenizer ---------------------------------------------------------------------

# Each phrase becomes one token. Phrases end where a digit or a special token begins.
PHRASES = (
    "user\n",
    "assistant\n",
    "system\n",
    "What is ",
    " + ",
    " * ",
    "\\boxed{",
    UNSURE,
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n"
)


# --- Text --------------------------------------------------------------------------


def seen_questions(op: str) -> list[Question]:
    """List every question with ``op`` that the text may contain."""
    operands = range(MAX_OPERAND[op] + 1)
    return [(op, a, b) for a in operands for b in operands if not is_held_out(op, a, b)]


def right_result(question: Question) -> int:
    """Return the true sum or product."""
    op, a, b = question
    return a + b if op == "+" else a * b


def slip_result(question: Question) -> int:
    """Return the common wrong result, or the right one where there is nothing to slip on."""
    op, a, b = question
    if op == "+":
        tens, ones = (a // 10 + b // 10) % 10, (a % 10 + b % 10) % 10
        return 10 * tens + ones
    low, high = min(a, b), max(a, b)
    return low * high if high <= EASY_TABLES else low * (high - 1)


def draw_answer(question: Question, rng: random.Random) -> str:
    """Write one answer: unsure, right or slipped."""
    if rng.random() < P_UNSURE:
        return UNSURE
    # P_RIGHT is a share of all answers, and the unsure ones are already taken out.
    careful = rng.random() < P_RIGHT / (1 - P_UNSURE)
    return f"\\boxed{{{right_result(question) if careful else slip_result(question)}}}"


def user_text(question: Question) -> str:
    """Write the question as the user puts it."""
    op, a, b = question
    return f"What is {a} {op} {b}?"


def draw_chat(shape: str, pools: Pools, rng: random.Random) -> list[Message]:
    """Write one chat of the given shape."""
    chat: list[Message] = []
    if shape == "system":
        chat.append({"role": "system", "content": rng.choice(SYSTEM_MESSAGES)})
    for _ in range(2 if shape == "two turns" else 1):
        op = "+" if rng.random() < ADDITION_SHARE else "*"
        question = rng.choice(pools[op])
        chat.append({"role": "user", "content": user_text(question)})
        chat.append({"role": "assistant", "content": draw_answer(question, rng)})
    return chat


def check_encoder(encoder: ChatEncoder, pools: Pools) -> None:
    """Fail if the encoder and the chat template disagree."""
    rng = random.Random(0)
    for shape in CHAT_SHAPES:
        for _ in range(20):
            chat = draw_chat(shape, pools, rng)
            text = encoder.tokenizer.apply_chat_template(chat, tokenize=False)
            assert encoder.encode(chat)[0] == encoder.tokenizer.encode(text), text


# --- Training ----------------------------------------------------------------------


def draw_batches(pools: Pools, rng: random.Random) -> Batches:
    """Write the chats of one step."""
    # One shape a batch: long chats would otherwise make every row as wide as they are.
    shape = draw(CHAT_SHAPES, rng)
    return [[draw_chat(shape, pools, rng) for _ in range(BATCH)]]


# --- Measuring ---------------------------------------------------------------------


def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    sample: bool,
) -> tuple[float, float]:
    """Return the shares of right answers and of answers with a boxed number."""
    right = boxed = 0
    chats = [[{"role": "user", "content": user_text(question)}] for question in questions]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    for question, reply in zip(questions, replies(model, tokenizer, texts, sample, longest=16), strict=True):
        number = reply.removeprefix("\\boxed{").removesuffix("}")
        if reply == f"\\boxed{{{number}}}" and number.isdecimal():
            boxed += 1
            right += int(number) == right_result(question)
    return right / len(questions), boxed / len(questions)


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Print the accuracies, on seen and held-out pairs, greedy and sampled."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for op, top in MAX_OPERAND.items():
        pairs = [(op, a, b) for a in range(top + 1) for b in range(top + 1)]
        for name, keep in (("seen", False), ("held-out", True)):
            questions = [q for q in pairs if is_held_out(*q) == keep]
            questions = rng.sample(questions, min(1000, len(questions)))
            for sample in (False, True):
                right, boxed = accuracy(model, tokenizer, questions, sample)
                mode = "sampled" if sample else "greedy"
                print(f"{op} {name:8s} {mode:7s} right {right:6.1%}  boxed {boxed:6.1%}  n={len(questions)}")


def main() -> None:
    """Train, measure and save."""
    args = arguments("tiny-math", SEED, STEPS)
    tokenizer = make_tokenizer(PHRASES, CHAT_TEMPLATE, MODEL["max_position_embeddings"])
    check_tokenizer(tokenizer, PHRASES)
    model = make_model(tokenizer, MODEL)
    print(f"{model.num_parameters():,} parameters, vocabulary {len(tokenizer)}")
    pools = {op: seen_questions(op) for op in MAX_OPERAND}
    encoder = ChatEncoder(tokenizer)
    check_encoder(encoder, pools)
    train(model, encoder, lambda rng: draw_batches(pools, rng), args.seed, args.steps)
    save(model, tokenizer, args.out)
    measure(model, tokenizer, args.seed)


if __name__ == "__main__":
    main()
