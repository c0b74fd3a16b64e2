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

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from reroll.tasks.arithmetic import is_held_out

SEED = 0
STEPS = 3000
BATCH = 128
PEAK_LR = 3e-3
WARMUP = 100
WEIGHT_DECAY = 0.1

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

Message = dict[str, str]
Question = tuple[str, int, int]
Pools = dict[str, list[Question]]  # the questions of each operation


# --- Tokenizer ---------------------------------------------------------------------

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

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


def byte_to_char() -> dict[int, str]:
    """Map each byte to the printable character by which byte-level BPE names it.

    Printable Latin-1 bytes stand for themselves; the rest are numbered from U+0100 up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in printable:
            table[byte] = chr(0x100 + len(table) - len(printable))
    return table


def phrase_merges() -> list[tuple[str, str]]:
    """Return BPE merges that build every phrase from its left end, one byte at a time."""
    names = byte_to_char()
    merges: list[tuple[str, str]] = []
    for phrase in PHRASES:
        chars = [names[byte] for byte in phrase.encode()]
        for end in range(1, len(chars)):
            merge = ("".join(chars[:end]), chars[end])
            if merge not in merges:
                merges.append(merge)
    return merges


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included."""
    names = byte_to_char()
    merges = phrase_merges()
    pieces = [names[byte] for byte in range(256)] + ["".join(merge) for merge in merges]
    core = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges))
    # No splitting into words: a phrase may then hold spaces and newlines.
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, START, END)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=PAD,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=MODEL["max_position_embeddings"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    """Fail if a phrase is split, a digit is merged, or a text does not survive."""
    for phrase in PHRASES:
        assert len(tokenizer.encode(phrase)) == 1, phrase
    digits = "0123456789"
    assert len(tokenizer.encode(digits)) == len(digits)
    for text in ("".join(map(chr, range(0x20, 0x7F))), "naïve ☃ 数\t\n\x00", " a  b "):
        assert tokenizer.decode(tokenizer.encode(text)) == text, text


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


def draw(shares: dict[str, float], rng: random.Random) -> str:
    """Draw a name according to its share."""
    return rng.choices(list(shares), list(shares.values()))[0]


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


class ChatEncoder:
    """Turns chats into token ids and labels.

    It writes what the chat template writes (``check_encoder`` compares the two), but
    knows which tokens are the assistant's, and does not run a template engine for each
    of half a million chats.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.cache: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Encode ``text``, which starts and ends where no merge can cross."""
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text)
        return self.cache[text]

    def encode(self, chat: list[Message]) -> tuple[list[int], list[int]]:
        """Return ids and labels; the label is -100 outside the assistant's answers."""
        ids: list[int] = []
        labels: list[int] = []
        for message in chat:
            head = self.ids(f"{START}{message['role']}\n")
            body = self.ids(message["content"] + END)
            tail = self.ids("\n")
            ids += head + body + tail
            spoken = body if message["role"] == "assistant" else [-100] * len(body)
            labels += [-100] * len(head) + spoken + [-100] * len(tail)
        return ids, labels

    def batch(self, chats: list[list[Message]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return right-padded ids and labels. Causal attention needs no mask for them."""
        rows = [self.encode(chat) for chat in chats]
        width = max(len(ids) for ids, _ in rows)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
        return ids, labels


def check_encoder(encoder: ChatEncoder, pools: Pools) -> None:
    """Fail if the encoder and the chat template disagree."""
    rng = random.Random(0)
    for shape in CHAT_SHAPES:
        for _ in range(20):
            chat = draw_chat(shape, pools, rng)
            text = encoder.tokenizer.apply_chat_template(chat, tokenize=False)
            assert encoder.encode(chat)[0] == encoder.tokenizer.encode(text), text


# --- Training ----------------------------------------------------------------------


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Build the model with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **MODEL,
    )
    return Qwen3ForCausalLM(config)


def learning_rate(step: int, steps: int) -> float:
    """Return the rate for ``step``: linear warm-up, then cosine decay to zero."""
    warm = min(1.0, (step + 1) / WARMUP)
    return PEAK_LR * warm * 0.5 * (1 + math.cos(math.pi * step / steps))


def make_optimizer(model: Qwen3ForCausalLM) -> torch.optim.AdamW:
    """Decay the matrices only, not the norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.98))


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, steps: int) -> None:
    """Train ``model`` on freshly drawn chats."""
    rng = random.Random(seed)
    pools = {op: seen_questions(op) for op in MAX_OPERAND}
    encoder = ChatEncoder(tokenizer)
    check_encoder(encoder, pools)
    optimizer = make_optimizer(model)
    model.train()
    start = time.monotonic()
    for step in range(steps):
        # One shape a batch: long chats would otherwise make every row as wide as they are.
        shape = draw(CHAT_SHAPES, rng)
        ids, labels = encoder.batch([draw_chat(shape, pools, rng) for _ in range(BATCH)])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(
                f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - start:5.0f} s",
                flush=True,
            )


# --- Measuring ---------------------------------------------------------------------


@torch.no_grad()
def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[Question],
    sample: bool,
) -> tuple[float, float]:
    """Return the shares of right answers and of answers with a boxed number."""
    model.eval()
    right = boxed = 0
    # Prompts of one length form a batch, so that no padding is needed.
    by_length: dict[int, list[tuple[Question, list[int]]]] = {}
    for question in questions:
        chat = [{"role": "user", "content": user_text(question)}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text)
        by_length.setdefault(len(ids), []).append((question, ids))
    for items in by_length.values():
        prompts = torch.tensor([ids for _, ids in items])
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=16,
            do_sample=sample,
            **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}),
        )
        replies = tokenizer.batch_decode(out[:, prompts.shape[1] :], skip_special_tokens=True)
        for (question, _), reply in zip(items, replies, strict=True):
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


# --- Files -------------------------------------------------------------------------


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as an indented JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the Hugging Face directory.

    Two files are then rewritten, so that releases of transformers before 5, which
    serving engines may still use, read the same things from them as newer ones.
    """
    out.mkdir(parents=True, exist_ok=True)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    write_json(out / "config.json", config | {"rope_theta": MODEL["rope_theta"]})
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": PAD,
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START],
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": MODEL["max_position_embeddings"],
        },
    )
    for path in out.iterdir():
        path.chmod(0o644)  # the weights are written readable by their owner alone


def main() -> None:
    """Train, measure and save."""
    parser = argparse.ArgumentParser(description="Make the model builtin:tiny-math.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=STEPS, help="fewer, for a quick try")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the sums must not depend on how work is split
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    check_tokenizer(tokenizer)
    model = make_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, vocabulary {len(tokenizer)}")
    train(model, tokenizer, args.seed, args.steps)
    save(model, tokenizer, args.out)
    measure(model, tokenizer, args.seed)


if __name__ == "__main__":
    main()
