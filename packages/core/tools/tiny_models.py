"""What the recipes of the built-in models share: tokenizer, encoding of chats, training, replies and files.

A recipe says which phrases are one token, how chats are written and how often which are drawn; see
``make_tiny_math.py`` and ``make_tiny_tools.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
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

PEAK_LR = 3e-3
WARMUP = 100
WEIGHT_DECAY = 0.1

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

Message = dict[str, Any]
Batches = list[list[list[Message]]]  # the chats of one step, in parts of similar length


# --- Tokenizer ---------------------------------------------------------------------


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


def phrase_merges(phrases: Sequence[str]) -> list[tuple[str, str]]:
    """Return BPE merges that build every phrase from its left end, one byte at a time."""
    names = byte_to_char()
    merges: list[tuple[str, str]] = []
    for phrase in phrases:
        chars = [names[byte] for byte in phrase.encode()]
        for end in range(1, len(chars)):
            merge = ("".join(chars[:end]), chars[end])
            if merge not in merges:
                merges.append(merge)
    return merges


def make_tokenizer(
    phrases: Sequence[str], chat_template: str, longest: int, added: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included.

    ``phrases`` are one token each; a phrase that holds the beginning of another one stands before it. ``added`` are
    tokens as well, and stay in decoded text from which special ones are left out.
    """
    names = byte_to_char()
    merges = phrase_merges(phrases)
    pieces = [names[byte] for byte in range(256)] + ["".join(merge) for merge in merges]
    core = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges))
    # No splitting into words: a phrase may then hold spaces and newlines.
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, START, END)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=PAD,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=longest,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, phrases: Sequence[str]) -> None:
    """Fail if a phrase is split, a digit is merged, or a text does not survive."""
    for phrase in phrases:
        assert len(tokenizer.encode(phrase)) == 1, phrase
    digits = "0123456789"
    assert len(tokenizer.encode(digits)) == len(digits)
    for text in ("".join(map(chr, range(0x20, 0x7F))), "naïve ☃ 数\t\n\x00", " a  b "):
        assert tokenizer.decode(tokenizer.encode(text)) == text, text


# --- Text --------------------------------------------------------------------------


def draw(shares: dict[str, float], rng: random.Random) -> str:
    """Draw a name according to its share."""
    return rng.choices(list(shares), list(shares.values()))[0]


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


# --- Training ----------------------------------------------------------------------


def make_model(tokenizer: PreTrainedTokenizerFast, sizes: dict[str, Any]) -> Qwen3ForCausalLM:
    """Build the model with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **sizes,
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


def train(
    model: Qwen3ForCausalLM,
    encoder: ChatEncoder,
    draw_batches: Callable[[random.Random], Batches],
    seed: int,
    steps: int,
) -> None:
    """Train ``model`` on freshly drawn chats; every token of a step's parts counts alike."""
    rng = random.Random(seed)
    optimizer = make_optimizer(model)
    model.train()
    start = time.monotonic()
    for step in range(steps):
        parts = [encoder.batch(chats) for chats in draw_batches(rng)]
        spoken = [int((labels != -100).sum()) for _, labels in parts]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.zero_grad()
        total = 0.0
        for (ids, labels), tokens in zip(parts, spoken, strict=True):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss * (tokens / sum(spoken))
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(
                f"step {step:5d}  loss {total:.4f}  {time.monotonic() - start:5.0f} s",
                flush=True,
            )


# --- Measuring ---------------------------------------------------------------------


@torch.no_grad()
def replies(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    sample: bool,
    longest: int,
) -> list[str]:
    """Return what the model says after each rendered prompt, in at most ``longest`` tokens."""
    model.eval()
    found = [""] * len(texts)
    # Prompts of one length form a batch, so that no padding is needed.
    by_length: dict[int, list[tuple[int, list[int]]]] = {}
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text)
        by_length.setdefault(len(ids), []).append((index, ids))
    for items in by_length.values():
        prompts = torch.tensor([ids for _, ids in items])
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=longest,
            do_sample=sample,
            **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}),
        )
        said = tokenizer.batch_decode(out[:, prompts.shape[1] :], skip_special_tokens=True)
        for (index, _), reply in zip(items, said, strict=True):
            found[index] = reply
    return found


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
    write_json(out / "config.json", config | {"rope_theta": model.config.rope_parameters["rope_theta"]})
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
            "model_max_length": model.config.max_position_embeddings,
        },
    )
    for path in out.iterdir():
        path.chmod(0o644)  # the weights are written readable by their owner alone


def arguments(name: str, seed: int, steps: int) -> argparse.Namespace:
    """Read the command line of the recipe of ``builtin:NAME``, and make torch repeatable."""
    parser = argparse.ArgumentParser(description=f"Make the model builtin:{name}.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--steps", type=int, default=steps, help="fewer, for a quick try")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the sums must not depend on how work is split
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    return args
