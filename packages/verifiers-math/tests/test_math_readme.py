"""What the README says is equal, and what is not."""

import re
from pathlib import Path

import pytest

from reroll_verifiers_math.judging import judge
from reroll_verifiers_math.quantities import Policy
from reroll_verifiers_math.verifier import MathConfig

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTION = README.partition("## When two answers are equal")[2].partition("\n\nNumbers are compared")[0]


def groups(cell):
    """Answers of a table's cell: `;` between groups, of which the first answer is compared with the others."""
    found = [re.findall(r"`([^`]+)`", group.replace(r"\|", "|")) for group in cell.split(";")]
    return [group for group in found if len(group) > 1]


ROWS = [re.split(r"(?<!\\)\|", line)[1:4] for line in SECTION.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip() for row in ROWS])
def test_the_table_holds(row):
    equal, unequal = groups(row[1]), groups(row[2])
    if row[0].strip() == "matrices":  # told in words
        return
    assert equal
    for group in equal:
        for other in group[1:]:
            assert judge(group[0], other, Policy()) and judge(other, group[0], Policy()), (group[0], other)
    for group in unequal:
        for other in group[1:]:
            assert not judge(group[0], other, Policy()) and not judge(other, group[0], Policy()), (group[0], other)


def test_every_option_is_in_the_readme():
    for name, field in MathConfig.model_fields.items():
        shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
        assert f"| `{name}` | `{shown}`" in README
