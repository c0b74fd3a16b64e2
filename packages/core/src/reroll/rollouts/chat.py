"""OpenAI-compatible chat completions, over connections that calls share one after the other."""

from __future__ import annotations

import asyncio
import html
import json
import re
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from reroll.api import JudgeError, ServiceError, ServiceUnavailable, http_failure, one_line

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 30.0
SECRET_LENGTH = 8
ANSWER_BYTES = 4 << 20
"""A longer answer is given up: no text of a judge is as long, and a service must not fill memory."""


class Answer(NamedTuple):
    """The first choice of a completion; `cut_off` where it ended at its limit."""

    text: str
    cut_off: bool


class ChatClient:
    """One endpoint; one session for each event loop that asks it, which `close` ends.

    Args:
        base_url: up to and including the version, without a slash at its end.
        key: bearer token; empty where the service wants none. No answer and no error repeats it (`hiding`).
        key_from: what errors about the key point to.
    """

    def __init__(self, base_url: str, key: str = "", key_from: str = "") -> None:
        self.url = f"{base_url}/chat/completions"
        self._key = key
        self._key_from = key_from
        self._hide = hiding(key)
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = weakref.WeakKeyDictionary()

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The completion of a request's body.

        Raises:
            ServiceUnavailable: no connection, or a status that may pass.
            ServiceError: any other status than 200.
            JudgeError: an answer without a text.
        """
        import aiohttp

        try:
            # A redirect may lead to another host, which must not see key and texts.
            async with self._session().post(self.url, json=body, allow_redirects=False) as response:
                text = await self._text(response)
                status, retry_after = response.status, response.headers.get("Retry-After")
                moved = response.headers.get("Location")
        # Without their causes, which hold what the service said.
        except (aiohttp.ClientSSLError, aiohttp.InvalidURL) as error:
            raise ServiceError(f"{self.url} cannot be asked: {self._words(error)}; check base_url") from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            raise ServiceUnavailable(f"no connection to {self.url}: {self._words(error)}") from None
        except aiohttp.ClientError as error:
            raise ServiceError(f"{self.url} does not speak HTTP: {self._words(error)}; check base_url") from None
        if status == 200:
            return read_answer(text, self._hide)
        if moved is not None and 300 <= status < 400:
            place = one_line(self._hide(moved))
            raise ServiceError(f"{self.url} has moved ({status}) to {place}; set base_url to where it is")
        if status in (401, 403) and self._key_from:
            raise ServiceError(f"{self.url} refuses the key ({status}); {self._key_from}")
        remedy = "check base_url and the model's name" if status == 404 else ""
        raise http_failure(self.url, status, text, retry_after, remedy, self._hide)

    async def _text(self, response: aiohttp.ClientResponse) -> str:
        found = bytearray()
        async for chunk in response.content.iter_any():
            found += chunk
            if len(found) > ANSWER_BYTES:
                raise JudgeError(f"{self.url} answers with more than {ANSWER_BYTES >> 20} MiB")
        return found.decode(errors="replace")

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = aiohttp.ClientSession(
                # Whoever asks bounds the calls in flight, and their time.
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return session

    def _words(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {one_line(self._hide(str(error)))}"

    async def close(self) -> None:
        """Ends the session of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()


def read_answer(body: str, hide: Callable[[str], str] = str) -> Answer:
    """The text of a completion; JudgeError where there is none. Neither holds what `hide` takes out, which happens to
    each text once, after it was decoded and before it is cut."""
    try:
        choice = json.loads(body)["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise JudgeError(f"the answer is no chat completion: {one_line(hide(body))!r}") from None
    if reason == "content_filter":
        raise JudgeError(f"the service's content filter ended the judge's text: {one_line(hide(str(text)))!r}")
    if not isinstance(text, str):
        shown = one_line(hide(repr(reason)))
        raise JudgeError(f"the answer has no text (finish_reason {shown}): {one_line(hide(body))!r}")
    return Answer(hide(text), reason == "length")


def hiding(key: str) -> Callable[[str], str]:
    """What puts `(hidden)` in the place of a key, also of one that is escaped as in JSON, Python, a URL or HTML. A key
    of fewer than `SECRET_LENGTH` characters, such as the `EMPTY` of a service that wants none, stays: it is no secret,
    and may be a word."""
    if len(key) < SECRET_LENGTH:
        return str
    pattern = re.compile(_escaped(key[0]) + "".join(r"\\{0,3}" + _escaped(character) for character in key[1:]))
    return lambda text: pattern.sub("(hidden)", text)


def _escaped(character: str) -> str:
    """The forms of a character as a regular expression; before each there may be backslashes."""
    code = f"{ord(character):02x}"
    plain = r"\\{1,4}" if character == "\\" else re.escape(character)
    escapes = [f"(?i:u00{code}|%{code})", re.escape(html.escape(character))]
    return f"(?:{'|'.join([*escapes, plain])})"  # the character last: it may begin an escape of its own
