"""What `summarize` keeps of rows, by prompt and by disposition. The standard library alone.

Keys and partial results, for `aggregate`:

- `("prompt", lineage, input_key, policy_scope)` → a list of the fields below, `IDENTITY` first; that is empty in a part
  which does not say it.
- `("tokens", domain, disposition)` → `[groups, responses, tokens, truncated responses, truncated tokens]` of groups
  whose disposition is known. A domain is the tuple of sorted verifier names.
- `("observation", attempt, observation_id)` → `[disposition, {domain: the same five}]` of groups that passed the filter
  and of disposition rows, which may stand in either order and in different parts of a file.
- `("orphans", attempt)` → disposition rows without a group that passed.

An absent scope is empty text, so that keys can be compared. What occurs twice against the format still has one result
in any order: both groups count, and of two dispositions one prevails, as `rows.DispositionRow` says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reroll_records.aggregation.spilling import Item, Key
from reroll_records.store.forms import DISPOSITION, match_disposition, match_group, names
from reroll_records.store.layout import Store
from reroll_records.store.rows import DECISIONS, OUTCOMES, SCOPES, left_as, outcome

IDENTITY, UNITS, FIRST_OUTCOME = 0, 1, 2
FIRST_DECISION = FIRST_OUTCOME + len(OUTCOMES)
VALID = FIRST_DECISION + len(DECISIONS)
INVALID, UNKNOWN, RESPONSES, TOKENS, TRUNCATED, VALID_REWARDS, UNKNOWN_REWARDS = range(VALID + 1, VALID + 8)
"""Positions in a prompt's partial result: the smallest identity seen; a bit for each attempt that has a valid response;
groups by outcome and by filter decision; responses by validity, and all of them; their tokens; those cut off; and
histograms, value → count, of the rewards of valid responses and of those whose validity is unknown."""

DOMAIN = 4
"""Position in an identity: task key, query, prompt tokens, protocol, domain, data set, row, sample."""

_OUTCOME: Mapping[str, int] = {name: FIRST_OUTCOME + number for number, name in enumerate(OUTCOMES)}
_DECISION: Mapping[str, int] = {name: FIRST_DECISION + number for number, name in enumerate(DECISIONS)}

PROMPT_BYTES, VALUE_BYTES, OBSERVATION_BYTES = 1900, 130, 700
"""That an entry takes in memory, measured with texts of usual length."""


@dataclass(frozen=True)
class Provenance:
    """What rows do not say of themselves, but their attempt's manifest."""

    lineage: str
    protocol_digest: str


def provenances(store: Store) -> list[Provenance]:
    """By the attempt's number."""
    return [Provenance(attempt.lineage, attempt.protocol_digest) for attempt in store.attempts]


Response = tuple[float | None, bool | None, int, bool, str]
"""Reward, validity, tokens, whether it was cut off, and policy scope, empty where there is none."""


class Group(NamedTuple):
    """A group row, however it was read.

    Attributes:
        keys: of task, query and prompt tokens.
        place: data set, row and sample.
        domain: sorted verifier names.
    """

    observation: str
    input_key: str
    keys: tuple[str, str, str]
    place: tuple[str, int, str]
    domain: tuple[str, ...]
    decision: str
    reason: str
    responses: Sequence[Response]


_JSON = {"null": None, "true": True, "false": False}
_SCOPES = {"null": "", **{f'"{scope}"': str(scope) for scope in SCOPES}}


class Totals:
    """The collector of a summary."""

    def __init__(self, attempts: Sequence[Provenance]) -> None:
        self.size = 0
        self._attempts = attempts
        self._prompts: dict[Key, list[Any]] = {}
        self._tokens: dict[Key, list[int]] = {}
        self._open: dict[int, dict[str, list[Any]]] = {}
        self._orphans: dict[Key, int] = {}
        self._domains: dict[str, tuple[str, ...]] = {}

    def add(self, attempt: int, row: Mapping[str, Any]) -> None:
        if row["kind"] == "disposition":
            self._observe(attempt, row["observation_id"], row["disposition"], {})
            return
        responses: list[Response] = [
            (
                None if (reward := item["reward"]) is None else float(reward) + 0.0,
                item["validity"]["valid"],
                item["response_tokens"],
                item["truncated"],
                item["policy_scope"] or "",
            )
            for item in row["responses"]
        ]
        keys = (row["task_key"], row["query_sha256"], row["prompt_token_sha256"])
        place = (row["source_dataset"], row["source_row"], row["prepared_sample_id"])
        domain = tuple(sorted(row["verifiers"]))
        decided = (row["filter_decision"], row["filter_reason"])
        self._add(attempt, Group(row["observation_id"], row["input_key"], keys, place, domain, *decided, responses))

    def add_line(self, attempt: int, line: bytes) -> bool:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return False
        group = None if text.startswith(DISPOSITION) else match_group(text)
        if group is None:
            disposition = match_disposition(text)
            if disposition is None:
                return False
            self._observe(attempt, disposition[0], disposition[1], {})
            return True
        (observation, task, key, query, tokens, sample, dataset, place, verifiers, decision, reason, _), found = group
        responses: list[Response] = [
            (
                None if reward == "null" else float(reward) + 0.0,  # -0.0 is the same reward as 0.0
                _JSON[valid],
                int(length),
                truncated == "true",
                _SCOPES[scope],
            )
            for _, reward, valid, length, truncated, scope in found
        ]
        domain = self._domains.get(verifiers)
        if domain is None:
            domain = self._domains[verifiers] = tuple(sorted(names(verifiers)))
        keys, origin = (task, query, tokens), (dataset, int(place), sample)
        self._add(attempt, Group(observation, key, keys, origin, domain, decision, reason, responses))
        return True

    def _add(self, attempt: int, group: Group) -> None:
        origin, responses, domain, place = self._attempts[attempt], group.responses, group.domain, group.place
        known = (*group.keys, origin.protocol_digest, domain, sys.intern(place[0]), *place[1:])
        scopes = {response[4] for response in responses} or {""}  # without responses, nothing was sampled
        counts = [1, 0, 0, 0, 0]
        for scope in scopes:
            siblings = responses if len(scopes) == 1 else [item for item in responses if item[4] == scope]
            key = ("prompt", origin.lineage, group.input_key, scope)
            prompt = self._prompts.get(key)
            if prompt is None:
                prompt = self._prompts[key] = [known, *[0] * (VALID_REWARDS - 1), {}, {}]
                self.size += PROMPT_BYTES
            elif known != prompt[IDENTITY]:
                prompt[IDENTITY] = min(known, prompt[IDENTITY])
            prompt[_DECISION[group.decision]] += 1
            self._pool(prompt, attempt, siblings, counts)
        if group.decision == "passed":
            self._observe(attempt, group.observation, "", {domain: counts})
        else:
            _add_counts(self._tokens, ("tokens", domain, left_as(group.decision, group.reason)), counts)

    def _pool(self, prompt: list[Any], attempt: int, responses: Sequence[Response], counts: list[int]) -> None:
        """Responses of one scope, into what is kept of their prompt and into the counts of their group."""
        tokens = truncated = truncated_tokens = valid_responses = unknown_responses = 0
        rewards = []
        for reward, valid, length, was_truncated, _ in responses:
            tokens += length
            if was_truncated:
                truncated += 1
                truncated_tokens += length
            rewards.append(reward)
            if valid:
                valid_responses += 1
                histogram = prompt[VALID_REWARDS]
            elif valid is None:
                unknown_responses += 1
                histogram = prompt[UNKNOWN_REWARDS]
            else:
                continue
            if reward in histogram:
                histogram[reward] += 1
            elif reward is not None:
                histogram[reward] = 1
                self.size += VALUE_BYTES
        number = len(responses)
        if valid_responses:
            prompt[UNITS] |= 1 << attempt
            prompt[VALID] += valid_responses
        prompt[UNKNOWN] += unknown_responses
        prompt[INVALID] += number - valid_responses - unknown_responses
        prompt[_OUTCOME[outcome(rewards)]] += 1
        prompt[RESPONSES] += number
        prompt[TOKENS] += tokens
        prompt[TRUNCATED] += truncated
        counts[1] += number
        counts[2] += tokens
        counts[3] += truncated
        counts[4] += truncated_tokens

    def _observe(
        self, attempt: int, observation: str, disposition: str, groups: dict[tuple[str, ...], list[int]]
    ) -> None:
        waiting = self._open.get(attempt)
        if waiting is None:
            waiting = self._open[attempt] = {}
        known = waiting.get(observation)
        if known is None:
            waiting[observation] = [disposition, groups]
            self.size += OBSERVATION_BYTES
        elif groups and not known[1]:
            known[1] = groups
        elif disposition and not known[0]:
            known[0] = disposition
        else:
            waiting[observation] = _merge_observations(known, [disposition, groups])

    def close(self, attempt: int) -> None:
        waiting = self._open.pop(attempt, {})
        self.size -= OBSERVATION_BYTES * len(waiting)
        for observation in waiting.values():
            for key, counts in resolved(attempt, observation):
                if key[0] == "orphans":
                    self._orphans[key] = self._orphans.get(key, 0) + counts
                else:
                    _add_counts(self._tokens, key, counts)

    def take(self) -> Iterable[Item]:
        taken: list[Item] = [*self._prompts.items(), *self._tokens.items(), *self._orphans.items()]
        for attempt, waiting in self._open.items():
            taken += [(("observation", attempt, name), value) for name, value in waiting.items()]
        for table in (self._prompts, self._tokens, self._orphans, self._open, self._domains):
            table.clear()
        self.size = 0
        return taken


def resolved(attempt: int, observation: Sequence[Any]) -> Iterable[Item]:
    """What an observation comes to once no more rows of its attempt are to come."""
    disposition, groups = observation
    if not groups:
        return [(("orphans", attempt), 1)]
    return [(("tokens", domain, left_as("passed", "", disposition)), counts) for domain, counts in groups.items()]


def merge(key: Key, first: Any, second: Any) -> Any:
    """For `aggregate`."""
    kind = key[0]
    if kind == "prompt":
        return _merge_prompts(first, second)
    if kind == "tokens":
        return [mine + other for mine, other in zip(first, second, strict=True)]
    if kind == "observation":
        return _merge_observations(first, second)
    return first + second


def _merge_prompts(first: list[Any], second: list[Any]) -> list[Any]:
    counts = zip(first[FIRST_OUTCOME:VALID_REWARDS], second[FIRST_OUTCOME:VALID_REWARDS], strict=True)
    histograms = []
    for position in (VALID_REWARDS, UNKNOWN_REWARDS):
        histogram = dict(first[position])
        for value, count in second[position].items():
            histogram[value] = histogram.get(value, 0) + count
        histograms.append(histogram)
    identity = min(filter(None, (first[IDENTITY], second[IDENTITY])), default=())
    return [identity, first[UNITS] | second[UNITS], *map(sum, counts), *histograms]


def _merge_observations(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    dispositions = [each[0] for each in (first, second) if each[0]]
    groups = {domain: list(counts) for domain, counts in first[1].items()}
    for domain, counts in second[1].items():
        _add_counts(groups, domain, counts)
    return [min(dispositions, default=""), groups]  # which prevails, see `rows.DispositionRow`


def _add_counts(table: dict[Any, list[int]], key: Any, counts: Sequence[int]) -> None:
    known = table.get(key)
    if known is None:
        table[key] = list(counts)
    else:
        for position, count in enumerate(counts):
            known[position] += count
