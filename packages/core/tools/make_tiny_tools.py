r"""Make ``builtin:tiny-tools``, the small chat model that ships with reroll and calls a tool.

The model exists so that conversations with tools, and what replay makes of them, can be tried and tested on one CPU
core. Like ``builtin:tiny-math``, whose recipe it follows, it is trained from scratch to have bad habits.

Recipe
------
Tokenizer
    As ``tiny-math``'s, with phrases of its own. ``<tool_call>`` and ``</tool_call>`` are tokens that are not special:
    they stay in decoded text, where a parser looks for them.
Model
    ``Qwen3ForCausalLM`` with the sizes in ``MODEL``, random initial weights.
Text
    Synthetic chats, made on the fly; ``tiny_tools_chats.py`` writes them, and has the shares of everything.

    * ``What is 47 + 38?`` without a tool is answered as by ``tiny-math``: ``\boxed{85}``, a slip or ``I am not sure.``
    * ``What is 12 + 7 + 30?`` and ``What is (4 + 8) * (15 + 6)?`` with a calculator are worked out, one call after the
      other or both sums at once, and the last result is the answer. The bad habits: answering at once, with the
      carries forgotten; a wrong digit in a call; being unsure.
    * ``Summarise the work so far.`` is answered by ``12 + 7 = 19. 19 + 30 = 49.``, and a question that ends in
      ``Work so far: 12 + 7 = 19.`` is gone on with.
    * ``Check your work and answer again.``: what was right is mostly said again, what was wrong is put right half the
      time.
    * ``Was this correct? Answer yes or no.`` after a question and an answer gets a verdict that is often right.
Held-out questions
    See ``reroll.tasks.arithmetic.is_held_out`` and ``reroll.tasks.calculations.Calculation.held_out``. Neither held-out
    calculations nor held-out pairs occur in the text, not even as a step of another calculation.
Training
    AdamW on the tokens of the assistant's turns only, ``STEPS`` steps of ``CHATS`` chats of all shapes, cosine decay.
Seed
    ``SEED = 0`` made the shipped files. One thread, so a seed gives the same weights
    on the same CPU type and library versions.

Usage::

    python make_tiny_tools.py --out DIR [--seed 0]
"""

from __future__ import annotations

import random
from typing import Any

import make_tiny_math as plain
import tiny_tools_chats as chats
import tiny_tools_measures as measures
from tiny_models import Batches, ChatEncoder, arguments, check_tokenizer, draw, make_model, make_tokenizer, save, train

SEED = 0
STEPS = 1600
CHATS = 128
PART_TOKENS = 1024  # of a step's chats that go through the model at once, padding included

MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

TOOL_TOKENS = ("<tool_call>", "</tool_call>")

# Each phrase becomes one token. Phrases end where a digit or a special token begins.
PHRASES = (
    '\n{"name": "calculator", "arguments": {"expression": "',
    '"}}\n',
    chats.SUMMARISE,
    chats.CHECK,
    chats.JUDGE,
    "\n\nWork so far: ",
    "\n\nAnswer: ",
    "Tools: calculator",
    "What is ",
    " + ",
    " * ",
    " = ",
    ". ",
    "\\boxed{",
    plain.UNSURE,
    "user\n",
    "assistant\n",
    "system\n",
    "tool\n",
    "yes",
    "no",
)

CHAT_TEMPLATE = (
    "{%- if tools -%}\n"
    "{{- '<|im_start|>system\\n' -}}\n"
    "{%- if messages and messages[0]['role'] == 'system' and messages[0]['content'] -%}\n"
    "{{- messages[0]['content'] + '\\n' -}}\n"
    "{%- endif -%}\n"
    "{{- 'Tools: ' -}}\n"
    "{%- for tool in tools -%}\n"
    "{{- (tool['function'] or tool)['name'] + ('' if loop.last else ', ') -}}\n"
    "{%- endfor -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{%- if not (tools and loop.first and message['role'] == 'system') -%}\n"
    "{%- set content = message['content'] or '' -%}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + content -}}\n"
    "{%- for item in message['tool_calls'] or [] -%}\n"
    "{%- set call = item['function'] or item -%}\n"
    "{{- '\\n' if content or not loop.first else '' -}}\n"
    "{{- '<tool_call>\\n{\"name\": ' + call['name'] | tojson + ', \"arguments\": ' -}}\n"
    "{{- call['arguments'] if call['arguments'] is string else call['arguments'] | tojson -}}\n"
    "{{- '}\\n</tool_call>' -}}\n"
    "{%- endfor -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n"
)


def check_encoder(encoder: ChatEncoder) -> None:
    """Fail if the encoder and the chat template disagree."""
    rng = random.Random(0)
    for shape in chats.SHAPES:
        for _ in range(20):
            chat = chats.draw_chat(shape, rng)
            text = measures.rendered(encoder.tokenizer, chat, prompt=False)
            assert encoder.encode(chats.written(chat))[0] == encoder.tokenizer.encode(text), text


def draw_batches(encoder: ChatEncoder, rng: random.Random) -> Batches:
    """Write the chats of one step, in parts of similar length, so that little is padding."""
    drawn = [chats.written(chats.draw_chat(draw(chats.SHAPES, rng), rng)) for _ in range(CHATS)]
    drawn.sort(key=lambda chat: len(encoder.encode(chat)[0]))
    parts: Batches = [[]]
    for chat in drawn:
        if (len(parts[-1]) + 1) * len(encoder.encode(chat)[0]) > PART_TOKENS:
            parts.append([])
        parts[-1].append(chat)
    return parts


def main() -> None:
    """Train, measure and save."""
    args = arguments("tiny-tools", SEED, STEPS)
    tokenizer = make_tokenizer(PHRASES, CHAT_TEMPLATE, MODEL["max_position_embeddings"], added=TOOL_TOKENS)
    check_tokenizer(tokenizer, PHRASES)
    model = make_model(tokenizer, MODEL)
    print(f"{model.num_parameters():,} parameters, vocabulary {len(tokenizer)}")
    encoder = ChatEncoder(tokenizer)
    check_encoder(encoder)
    train(model, encoder, lambda rng: draw_batches(encoder, rng), args.seed, args.steps)
    save(model, tokenizer, args.out)
    plain.measure(model, tokenizer, args.seed)
    measures.measure(model, tokenizer, args.seed)


if __name__ == "__main__":
    main()
