"""Chat templates that write tool calls in each manner that models know, and tokenizers of each kind."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# As Qwen 2.5 and Hermes have it: JSON between tags, on lines of their own.
TAGS = """{%- if tools %}{{- '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{% endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

# As Qwen 3 has it: what was thought before the last question is left out, and an empty thought stands before the last
# answer of all.
THINKING = TAGS.replace(
    "{%- for message in messages %}\n    {%- if message.role == 'tool' %}",
    """{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}""",
    1,
).replace(
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}",
    """{{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.role == 'assistant' and loop.last and '</think>' not in message.content %}
            {{- '<think>\\n\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if loop.index0 > ns.last %}{{- message.content }}
        {%- else %}{{- message.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}""",
)

# As QwQ has it: the model's turn begins within a thought.
OPENED = THINKING.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}").replace(
    "{{- message.content }}",
    "{{- ('<think>\\n' if '</think>' in message.content else '') + message.content }}",
)

# As Llama 3.1 has it: one call, which is the whole turn.
WHOLE = """{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|im_end|>' }}
    {%- else %}
        {{- '<|head|>' + ('ipython' if message.role == 'tool' else message.role) + '<|/head|>\\n\\n' }}
        {{- (message.content | trim) + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

# As Mistral has it: a list behind a special token, identifiers, no generation prompt.
LIST = """{{- '<s>' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set written = call.function | tojson %}{{- written[:-1] }}
            {%- if call.id | length != 9 %}{{- raise_exception('identifiers have nine characters') }}{% endif %}
            {{- ', "id": "' + call.id + '"}' }}{% if not loop.last %}{{- ', ' }}{% endif %}
        {%- endfor %}
        {{- ']<|im_end|>' }}
    {%- elif message.role == 'assistant' %}{{- ' ' + (message.content | trim) + '<|im_end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""

# The same without identifiers, beside content.
PLAIN_LIST = LIST.replace(
    "{%- set written = call.function | tojson %}{{- written[:-1] }}", "{{- call.function | tojson }}"
)
PLAIN_LIST = PLAIN_LIST.replace("""{{- ', "id": "' + call.id + '"}' }}{% if""", "{% if").replace(
    "{{- '[TOOL_CALLS] [' }}", "{{- message.content + '[TOOL_CALLS][' }}"
)

# As Qwen 3 Coder has it: parameters between tags.
PARAMETERS = TAGS.replace(
    """{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}""",
    """{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}""",
)

# As Qwen 3.5 has it: the same, with a thought before every call, be it an empty one, and an empty line before calls.
ALWAYS_THINKING = PARAMETERS.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
ALWAYS_THINKING = ALWAYS_THINKING.replace(
    "{{- '<|im_start|>' + message.role + '\\n' + message.content }}",
    """{{- '<|im_start|>' + message.role + '\\n' }}
        {%- set said = message.content.split('</think>')[-1].strip() %}
        {%- if message.tool_calls %}
            {{- '<think>\\n' }}
            {%- if '</think>' in message.content %}{{- message.content.split('</think>')[0].strip() }}{% endif %}
            {{- '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said }}""",
).replace(
    "{%- if not loop.first or message.content %}{{- '\\n' }}",
    "{%- if not loop.first or said %}{{- '\\n\\n' if loop.first else '\\n' }}",
)

# As Nemotron 3 has it: every call begins on a line of its own, the first one too.
NEW_LINES = PARAMETERS.replace(
    "{%- if not loop.first or message.content %}{{- '\\n' }}{% endif %}", "{{- '\\n' }}"
).replace("{{- '</function>\\n</tool_call>' }}", "{{- '</function>\\n</tool_call>\\n' }}")

# As some Mistral templates have it: what is said to all stands before the question as long as that is the last message.
MOVING = LIST.replace("{{- '[INST] ' + message", "{{- '[INST] ' + ('Be brief. ' if loop.last else '') + message")

READABLE = {
    "tags": TAGS,
    "thinking": THINKING,
    "opened": OPENED,
    "whole": WHOLE,
    "list": LIST,
    "plain-list": PLAIN_LIST,
    "parameters": PARAMETERS,
    "always-thinking": ALWAYS_THINKING,
    "new-lines": NEW_LINES,
    "moving": MOVING,
}

WITHIN_THOUGHT = {"opened": "Hm.</think>\n", "always-thinking": "Hm.\n</think>"}
"""Templates with which a turn begins within a thought, and the content of one that ends it."""

SPECIAL = [
    "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|head|>", "<|/head|>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
]  # fmt: skip


def byte_level():
    """Every byte is a token, some pairs merge: as GPT-2 and its successors have it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("t", "o"),
        ("o", "l"),
        ("to", "ol"),
        ("n", "a"),
        ("m", "e"),
        ("na", "me"),
        ('"', ":"),
        ("<", "/"),
        ("Ġ", "{"),
    ]
    tokens = [*alphabet, *dict.fromkeys(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def sentences(prepend="first"):
    """Spaces are `▁`, put before texts as well and taken off again; what is not in the vocabulary is bytes: as
    SentencePiece models have it."""
    letters = [chr(number) for number in range(33, 127)] + ["▁", "\n"]
    merges = [
        ("▁", "t"),
        ("t", "o"),
        ("o", "l"),
        ("to", "ol"),
        ("▁", "{"),
        ('"', ":"),
        ("n", "a"),
        ("m", "e"),
        ("na", "me"),
    ]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *(left + right for left, right in merges)]
    model = models.BPE(
        {token: number for number, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


TOKENIZERS = {
    "byte-level": byte_level,
    "sentences": sentences,
    "always-prepended": lambda: sentences("always"),
}


def write_model(directory, tokenizer=None, template=TAGS):
    """The files of a model that a renderer reads."""
    import json

    directory.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level()).save(str(directory / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    (directory / "chat_template.jinja").write_text(template)
    end = (tokenizer or byte_level()).token_to_id("<|im_end|>")
    (directory / "config.json").write_text(json.dumps({"eos_token_id": end}))
    return directory
