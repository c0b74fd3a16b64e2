"""Whether two answers that were read say the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from reroll_verifiers_math.exact import exact
from reroll_verifiers_math.identity import proportion
from reroll_verifiers_math.nodes import (
    Call,
    Cases,
    Group,
    Listing,
    Matrix,
    Node,
    Product,
    Quotient,
    Ratio,
    Relation,
    SetOperation,
    Sum,
    Symbol,
    Words,
    both_signs,
    children,
    negated,
    renamed,
    symbols,
)
from reroll_verifiers_math.numeric import CONSTANTS, constant, is_value
from reroll_verifiers_math.quantities import Policy, equal_quantities, equal_ratios, equal_times, on_clock
from reroll_verifiers_math.real_sets import INEQUALITIES, equal_sets, looks_like_set, real_set
from reroll_verifiers_math.text import folded
from reroll_verifiers_math.words import equal_words

ITEMS = 200
"""Answers with more parts are compared in order only: matching them takes the square of their number."""


def equal(gold: Node, answer: Node, policy: Policy) -> bool:
    if gold == answer:
        return True
    gold, answer = _settled(gold), _settled(answer)
    if gold == answer:
        return True
    if isinstance(gold, Words) or isinstance(answer, Words):
        return equal_words(gold, answer)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _equal_relations(gold, answer, policy)
    if looks_like_set(gold) or looks_like_set(answer):
        return _equal_sets(gold, answer, policy)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _equal_matrices(gold, answer, policy)
    if isinstance(gold, Listing | Group) or isinstance(answer, Listing | Group):
        return _equal_collections(gold, answer, policy)
    if isinstance(gold, Cases) or isinstance(answer, Cases):
        return (
            isinstance(gold, Cases) and isinstance(answer, Cases) and _matched(_pieces(gold), _pieces(answer), policy)
        )
    if on_clock(gold) and on_clock(answer):
        return equal_times(gold, answer)
    if isinstance(gold, Ratio) or isinstance(answer, Ratio):
        return equal_ratios(gold, answer, policy)
    return equal_quantities(gold, answer, policy)


def _settled(node: Node) -> Node:
    """Without what was said for approximation beside the answer, and with `±` as its two values."""
    if isinstance(node, Relation) and "~" in node.operators:
        exactly = node.operators.index("~")
        node = node.parts[0] if exactly == 0 else Relation(node.parts[: exactly + 1], node.operators[:exactly])
    if isinstance(node, Relation) and "->" in node.operators and len(node.parts) > 2:
        last = len(node.operators) - node.operators[::-1].index("->")  # what the work leads to
        node = Relation(node.parts[last:], node.operators[last:]) if last < len(node.operators) else node.parts[-1]
    if isinstance(node, Relation) and node.operators == ("in",):
        return node
    if isinstance(node, Listing):
        kept = tuple(item for item in node.items if not _says_whole(item))
        if kept and len(kept) < len(node.items):
            return _settled(kept[0] if len(kept) == 1 else replace(node, items=kept))
        items = tuple(sign for item in node.items for sign in both_signs(item))
        node = replace(node, items=items) if len(items) > len(node.items) else node
    elif len(signs := both_signs(node)) == 2:
        return Listing(signs)
    if isinstance(node, Listing) and len(node.items) == 1 and not _is_set(node.items[0]):
        return _settled(node.items[0])
    if isinstance(node, Listing) and not node.braced:
        return _unlabelled(node)
    if isinstance(node, Product):
        return _scaled(node)
    return node


def _is_set(node: Node) -> bool:
    return node == Symbol("emptyset") or (isinstance(node, Listing) and node.braced)


def _says_whole(node: Node) -> bool:
    """`k \\in \\mathbb{Z}` behind a solution with a `k` in it."""
    return (
        isinstance(node, Relation)
        and node.operators == ("in",)
        and isinstance(node.parts[0], Symbol)
        and node.parts[1] in (Symbol("mathbbZ"), Symbol("mathbbN"))
    )


def _scaled(node: Product) -> Node:
    """A matrix times numbers as one matrix."""
    matrices = [item for item in node.factors if isinstance(item, Matrix)]
    if len(matrices) != 1:
        return node
    others = tuple(item for item in node.factors if not isinstance(item, Matrix))
    return Matrix(tuple(tuple(Product((*others, cell)) for cell in row) for row in matrices[0].rows))


def _unlabelled(node: Listing) -> Node:
    """`n = 1, 2, 3`: a label before the first of several values is one for all."""
    first = node.items[0]
    if not (isinstance(first, Relation) and set(first.operators) == {"="} and is_label(first.parts[0])):
        return node
    if any(isinstance(item, Relation) for item in node.items[1:]):
        return node
    return Listing((first.parts[-1], *node.items[1:]))


def _pieces(cases: Cases) -> list[Node]:
    return [Group("<", row, ">") for row in cases.rows]


# Relations


def is_label(node: Node) -> bool:
    """Whether it names what is asked for, so that `label = value` says no more than the value."""
    if isinstance(node, Symbol):
        return node.name not in CONSTANTS
    if isinstance(node, Words):
        return True
    if isinstance(node, Call):
        return node.name.startswith("of ") or (node.name == "abs" and is_label(node.arguments[0]))
    if isinstance(node, Product):
        return all(isinstance(item, Symbol) and item.name[:1].isupper() for item in node.factors)
    if isinstance(node, Group):
        return all(is_label(item) for item in node.items)
    if isinstance(node, Quotient | SetOperation):  # `m/n = 17/32`, `A ∩ B = {2, 4}`
        return all(is_label(item) for item in children(node))
    return False


def value_of(relation: Relation, gold: bool) -> Node | None:
    """The value that an equation gives to what is on its other side; None if it does not."""
    if relation.operators == ("in",):
        return relation.parts[1]
    if set(relation.operators) != {"="}:
        return None
    first, last = relation.parts[0], relation.parts[-1]
    if is_label(first):
        return last
    if is_label(last):
        return first
    if isinstance(first, Call) or not symbols(first) - CONSTANTS:
        return last
    # An equation is no value; but who is asked for x + y may answer with `x + y = 5`.
    return last if not gold and constant(last) is not None and exact(last) != 0 else None


def _equal_relations(gold: Node, answer: Node, policy: Policy) -> bool:
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        if looks_like_set(relation):
            return _equal_sets(gold, answer, policy)
        value = value_of(relation, relation is gold)  # type: ignore[arg-type]
        if value is None:
            return False
        return equal(value, other, policy) if relation is gold else equal(other, value, policy)
    if looks_like_set(gold) or looks_like_set(answer) or "in" in (*gold.operators, *answer.operators):
        first, second = real_set(gold), real_set(answer)
        if first is not None and second is not None:
            return equal_sets(first, second)
    if gold.operators == answer.operators == ("in",):
        return gold.parts[0] == answer.parts[0] and equal(gold.parts[1], answer.parts[1], policy)
    if set(gold.operators) == set(answer.operators) == {"="}:
        return _equal_equations(gold, answer, policy)
    return _equal_inequalities(gold, answer)


def _equal_equations(gold: Relation, answer: Relation, policy: Policy) -> bool:
    answer = _same_argument(gold, answer)
    if is_label(gold.parts[0]) and is_label(answer.parts[0]) and _same_label(gold.parts[0], answer.parts[0]):
        if equal(gold.parts[-1], answer.parts[-1], policy):
            return True
        if len(gold.parts) == len(answer.parts) == 2 and not isinstance(gold.parts[0], Symbol):
            return False
    if len(gold.parts) == len(answer.parts) == 2 and all(is_value(part) for part in (*gold.parts, *answer.parts)):
        return proportion(_difference(gold), _difference(answer)) != 0
    if not symbols(gold.parts[0]) - CONSTANTS and not symbols(answer.parts[0]) - CONSTANTS:
        return equal(gold.parts[-1], answer.parts[-1], policy)
    if len(gold.parts) == len(answer.parts):
        return all(equal(a, b, policy) for a, b in zip(gold.parts, answer.parts, strict=True))
    return False


_OF_ONE = re.compile(r"of (\w+'*)\((\w+)\)")


def _same_argument(gold: Relation, answer: Relation) -> Relation:
    """`f(t) = t^2` with the argument of `f(x) = x^2`."""
    labels = [part.name if isinstance(part, Call) else "" for part in (gold.parts[0], answer.parts[0])]
    ours, theirs = (_OF_ONE.fullmatch(label) for label in labels)
    if ours is None or theirs is None or ours[1] != theirs[1] or ours[2] == theirs[2]:
        return answer
    if ours[2].isdigit() or theirs[2].isdigit() or ours[2] in symbols(answer):
        return answer
    values = tuple(renamed(part, theirs[2], ours[2]) for part in answer.parts[1:])
    return Relation((gold.parts[0], *values), answer.operators)


def _same_label(first: Node, second: Node) -> bool:
    if first == second:
        return True
    if isinstance(first, Words) and isinstance(second, Words):
        return folded(first.text) == folded(second.text)
    of = [isinstance(item, Call) and item.name.startswith("of ") for item in (first, second)]
    return any(of) and (Symbol("y") in (first, second))


def _difference(relation: Relation) -> Node:
    return Sum((relation.parts[0], negated(relation.parts[1])))


def _equal_inequalities(gold: Relation, answer: Relation) -> bool:
    """Of several variables: the same up to a positive factor, or a negative one with the sign turned."""
    if len(gold.operators) != 1 or len(answer.operators) != 1 or gold.operators[0] not in INEQUALITIES | {"!="}:
        return False
    if not all(is_value(part) for part in (*gold.parts, *answer.parts)):
        return False
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    sign = proportion(_difference(gold), _difference(answer))
    if gold.operators == ("!=",):
        return answer.operators == ("!=",) and sign != 0
    if sign > 0:
        return gold.operators == answer.operators
    return sign < 0 and turned.get(answer.operators[0]) == gold.operators[0]


# Sets


def _equal_sets(gold: Node, answer: Node, policy: Policy) -> bool:
    if isinstance(answer, Relation) and answer.operators == ("=",) and is_label(answer.parts[0]):
        answer = answer.parts[1]
    if isinstance(gold, Relation) and gold.operators == ("=",) and is_label(gold.parts[0]):
        gold = gold.parts[1]
    first, second = real_set(gold), real_set(answer)
    if first is not None and second is not None:
        return equal_sets(first, second)
    if (first is None) != (second is None):
        return False
    if isinstance(gold, Group) and isinstance(answer, Group):
        return (
            gold.opening == answer.opening
            and gold.closing == answer.closing
            and _in_order(gold.items, answer.items, policy)
        )
    if isinstance(gold, SetOperation) and isinstance(answer, SetOperation):
        return gold.operator == answer.operator and (
            _matched(_operands(gold), _operands(answer), policy)
            if gold.operator != "setminus"
            else equal(gold.first, answer.first, policy) and equal(gold.second, answer.second, policy)
        )
    if isinstance(gold, Listing) and isinstance(answer, Listing):
        return _matched(gold.items, answer.items, policy)
    return False


def _operands(node: Node, operator: str = "") -> list[Node]:
    if isinstance(node, SetOperation) and node.operator == (operator or node.operator):
        return [*_operands(node.first, node.operator), *_operands(node.second, node.operator)]
    return [node]


# Collections


def _equal_matrices(gold: Node, answer: Node, policy: Policy) -> bool:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return len(gold.rows) == len(answer.rows) and all(
            _in_order(a, b, policy) for a, b in zip(gold.rows, answer.rows, strict=True)
        )
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    assert isinstance(matrix, Matrix)
    if len(matrix.rows) == 1 or len(matrix.rows[0]) == 1:
        cells = tuple(cell for row in matrix.rows for cell in row)
        if isinstance(other, Group):
            return _in_order(other.items, cells, policy)
        return len(cells) == 1 and equal(cells[0], other, policy)
    if isinstance(other, Group):  # rows in brackets, as programs write matrices
        rows = [row.items if isinstance(row, Group) else (row,) for row in other.items]
        return len(rows) == len(matrix.rows) and all(
            _in_order(a, b, policy) for a, b in zip(matrix.rows, rows, strict=True)
        )
    return False


def _equal_collections(gold: Node, answer: Node, policy: Policy) -> bool:
    if not (isinstance(gold, Listing | Group) and isinstance(answer, Listing | Group)):
        return False
    if isinstance(gold, Group) and isinstance(answer, Group):
        intervals = [item.opening + item.closing for item in (gold, answer)]
        if len(gold.items) == 2 and set(intervals) == {"()", "[]"}:
            return False
        return _in_order(gold.items, answer.items, policy)
    if isinstance(gold, Listing) and isinstance(answer, Listing):
        if {gold.joined, answer.joined} == {"and", "or"} and all(isinstance(item, Symbol) for item in gold.items):
            return False  # propositions, not values
        if any(item == Symbol("dots") for item in (*gold.items, *answer.items)):
            return _in_order(gold.items, answer.items, policy)
        if _distinctly_labelled(gold) != _distinctly_labelled(answer):
            return _in_order(gold.items, answer.items, policy)
        if gold.braced or answer.braced:
            return _matched(_distinct(gold.items, policy), _distinct(answer.items, policy), policy)
        return _matched(gold.items, answer.items, policy)
    listing, group = (gold, answer) if isinstance(gold, Listing) else (answer, gold)
    assert isinstance(listing, Listing) and isinstance(group, Group)
    if listing.braced and group.opening != "[":
        return False
    if _distinctly_labelled(listing):  # which is which goes by the names, `y = 2, x = 1` for (1, 2)
        ordered = sorted(listing.items, key=lambda item: _name(item))
        return _in_order(group.items, ordered, policy) if listing is answer else _in_order(ordered, group.items, policy)
    if listing.braced and len(group.items) == 2:  # an interval is not the set of its ends
        return False
    if group.opening == "[" and group.closing == "]" and len(group.items) != 2:
        return _matched(gold.items, answer.items, policy)
    return _in_order(gold.items, answer.items, policy)


def _distinctly_labelled(node: Listing) -> bool:
    """Whether each value has another name, so that which is which matters."""
    labels = [item.parts[0] for item in node.items if isinstance(item, Relation) and is_label(item.parts[0])]
    return len(labels) == len(node.items) and len(set(labels)) == len(labels) and not _one_name(labels)


def _name(item: Node) -> str:
    label = item.parts[0] if isinstance(item, Relation) else item
    return label.name if isinstance(label, Symbol) else ""


def _one_name(labels: Sequence[Node]) -> bool:
    """Names that an index alone tells apart: solutions of one unknown."""
    names = {item.name.partition("_")[0] for item in labels if isinstance(item, Symbol)}
    return len(names) == 1 and all(isinstance(item, Symbol) and "_" in item.name for item in labels)


def _in_order(first: Sequence[Node], second: Sequence[Node], policy: Policy) -> bool:
    return len(first) == len(second) and all(equal(a, b, policy) for a, b in zip(first, second, strict=True))


def _matched(first: Sequence[Node], second: Sequence[Node], policy: Policy) -> bool:
    """Whether each item has one of its own on the other side, whatever the order."""
    if len(first) != len(second):
        return False
    if len(first) > ITEMS:
        return _in_order(first, second, policy)
    left = list(second)
    for item in first:
        position = next((number for number, other in enumerate(left) if equal(item, other, policy)), None)
        if position is None:
            return False
        del left[position]
    return True


def _distinct(items: Sequence[Node], policy: Policy) -> list[Node]:
    found: list[Node] = []
    for item in items[:ITEMS]:
        if not any(equal(item, other, policy) for other in found):
            found.append(item)
    return [*found, *items[ITEMS:]]
