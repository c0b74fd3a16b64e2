"""Inference records for reroll: every scored group's outcome in one store.

>>> import reroll_records
>>> store = reroll_records.open("/shared/inference-records")
>>> for attempt, group, response in store.responses(scope="start_checkpoint", valid=True):
...     print(attempt.run_name, group.input_key, response.reward, response.response_tokens)

Reading takes the standard library alone. Names are imported when they are first used: every start of `reroll` imports
the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reroll_records.api import RecordStore
    from reroll_records.api import open_store as open
    from reroll_records.store.layout import Attempt, StoreError
    from reroll_records.store.rows import (
        DispositionRow,
        FilterDecision,
        GroupRow,
        Outcome,
        PolicyScope,
        ResponseRow,
        RewardComponent,
        Validity,
    )

__all__ = [
    "Attempt",
    "DispositionRow",
    "FilterDecision",
    "GroupRow",
    "Outcome",
    "PolicyScope",
    "RecordStore",
    "ResponseRow",
    "RewardComponent",
    "StoreError",
    "Validity",
    "open",
]

_ELSEWHERE = {"RecordStore": "api", "open": "api", "Attempt": "store.layout", "StoreError": "store.layout"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'store.rows')}")
    return getattr(module, "open_store" if name == "open" else name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
