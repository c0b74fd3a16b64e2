"""Verifiers that ask a service: which failures are worth another attempt, and when it is made.

Nothing here opens a connection: `ask` does, with whatever client its verifier likes.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from reroll.api.component import Config
from reroll.api.errors import RerollError
from reroll.api.verifiers import Verdict, Verifier
from reroll.api.wording import one_line

if TYPE_CHECKING:
    from reroll.api.tasks import Task
    from reroll.api.traces import Trace

FIRST_WAIT = 0.5
"""Seconds before the second attempt, at most; each further wait may be twice as long."""
LONGEST_WAIT = 30.0
"""Seconds; only a service that asks for more is left alone for longer."""
LEAD_SECONDS, LEAD_SHARE = 1.0, 0.1
"""What the last attempt ends before the deadline, the smaller of the two: then the verdict can say why, where a call
that meets its deadline is just a `timeout`."""
PASSING = frozenset({408, 425, 429})
"""HTTP statuses that say "later", beside 5xx."""
REMEDIES = {
    401: "check the key",
    403: "check the key and what it may do",
    404: "check the URL, and that what is asked for exists there",
}
REASON_LENGTH = 300
"""Characters of a service's own words that an error repeats."""


class ServiceError(RerollError):
    """A service says no, and would say so again; the message names the remedy. The verdict is a `service_error`."""


class ServiceUnavailable(ServiceError):
    """A service that cannot be asked just now; another attempt may succeed.

    Attributes:
        retry_after: seconds that the service wants to be left alone, None where it says nothing.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class JudgeError(RerollError):
    """A judge answered, and no verdict can be read from it. The verdict is a `judge_error`."""


class ServiceConfig(Config):
    """How a service is asked."""

    concurrency: int = Field(default=32, ge=1)
    """Calls in flight; the others wait, and no deadline counts that."""

    retries: int = Field(default=4, ge=0)
    """Further attempts after a failure that may pass: no connection, no answer in time, or HTTP 408, 425, 429 and 5xx.
    The waits between them double from half a second on, with chance in them; `Retry-After` is honoured."""

    timeout_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds that one attempt may take, and at most what is left until the deadline."""

    deadline_seconds: float = Field(default=180.0, gt=0, allow_inf_nan=False)
    """Seconds that one call may take, attempts and waits together, in place of `rollout.scoring.deadline_seconds`. An
    attempt that could only begin later is not made."""


class ServiceVerifier(Verifier):
    """A verifier that waits for a service. Implement `ask`; its options extend `ServiceConfig`, where concurrency and
    deadlines come from."""

    Config: ClassVar[type[BaseModel]] = ServiceConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.concurrency = self.config.concurrency
        self.deadline_seconds = self.config.deadline_seconds

    async def ask(self, task: Task, trace: Trace) -> Verdict:
        """One attempt. ServiceUnavailable, TimeoutError and any other OSError lead to another one; ServiceError and
        JudgeError to a verdict that says so."""
        raise NotImplementedError

    async def score(self, task: Task, trace: Trace) -> Verdict:
        clock = asyncio.get_running_loop().time
        deadline = self.deadline_seconds or self.config.deadline_seconds
        end = clock() + deadline - min(LEAD_SECONDS, LEAD_SHARE * deadline)
        failures: list[ServiceUnavailable] = []
        while True:
            limit = min(self.config.timeout_seconds, end - clock())
            try:
                async with asyncio.timeout(limit):
                    return await self.ask(task, trace)
            except JudgeError as error:
                return Verdict(None, state="judge_error", detail=str(error))
            except ServiceUnavailable as error:
                failures.append(error)
            except ServiceError as error:
                return Verdict(None, state="service_error", detail=str(error))
            except TimeoutError:
                failures.append(_Silent(f"no answer within {limit:.3g} s"))
            except OSError as error:
                failures.append(ServiceUnavailable(f"no connection: {type(error).__name__}: {error}"))
            wait = wait_seconds(len(failures), failures[-1].retry_after)
            late = clock() + wait >= end
            if late or len(failures) > self.config.retries:
                break
            await asyncio.sleep(wait)
            if late := clock() >= end:
                break
        more = f", the next one would be past the deadline of {deadline:g} s" if late else ""
        counted = "1 attempt" if len(failures) == 1 else f"{len(failures)} attempts"
        return Verdict(None, state="service_error", detail=f"{_told(failures)} ({counted}{more})")


class _Silent(ServiceUnavailable):
    """A service that said nothing."""


def _told(failures: Sequence[ServiceUnavailable]) -> str:
    """The last failure; of a service that is silent by then, also what it said before."""
    said = [failure for failure in failures if not isinstance(failure, _Silent)]
    return f"{failures[-1]}; before that: {said[-1]}" if said and said[-1] is not failures[-1] else str(failures[-1])


def wait_seconds(attempt: int, retry_after: float | None = None) -> float:
    """Seconds between attempt number `attempt`, counted from 1, and the next: exponential, with chance in it, so that
    calls which failed together do not come back together; never sooner than the service wants."""
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 1, 32))
    wait = random.uniform(longest / 2, longest)
    return wait if retry_after is None else max(wait, retry_after * random.uniform(1.0, 1.1))


def http_failure(
    service: str,
    status: int,
    text: str = "",
    retry_after: str | None = None,
    remedy: str = "",
    hide: Callable[[str], str] = str,
) -> ServiceError:
    """What an answer with another status than 200 means.

    Args:
        service: the beginning of the message, such as `the judge at http://127.0.0.1:8000/v1`.
        text: the answer's body.
        retry_after: the header of that name.
        remedy: what to do about a status that stays, where the caller knows better than the status tells.
        hide: takes out of the service's words what no error may repeat, such as a key, before they are cut.
    """
    reason = service_words(text, hide)
    message = f"{service} answers {status}" + (f": {reason}" if reason else "")
    if status in PASSING or 500 <= status < 600:
        return ServiceUnavailable(message, retry_after_seconds(retry_after))
    return ServiceError(f"{message}; {remedy or REMEDIES.get(status, 'check the options of the verifier')}")


def service_words(text: str, hide: Callable[[str], str] = str) -> str:
    """A service's own words in one line, from the shapes in which services wrap them."""
    words: Any = text
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            words = found.get("error", found.get("detail", found.get("message", text)))
        if isinstance(words, dict):
            words = words.get("message", words)
    except (ValueError, RecursionError):
        pass
    return one_line(hide(str(words)), REASON_LENGTH)


def retry_after_seconds(header: str | None, now: float | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number, or a date (RFC 9110, 10.2.3); None where it says
    neither.

    Args:
        now: seconds since the epoch, by default those of the clock.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - (time.time() if now is None else now)
        except (ValueError, OverflowError, TypeError, IndexError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
