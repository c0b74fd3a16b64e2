"""Answers that are no results: what a request or an update did wrong, in the shapes that SGLang gives."""

from __future__ import annotations

import json as json_format
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from reroll.api import EngineError, RequestRefused, TaskError, WorkerDied
from reroll.models.files import ModelError
from reroll.serving.http.auth import allowed
from reroll.serving.limits import is_text

if TYPE_CHECKING:
    from aiohttp import web

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]
Body = TypeVar("Body", bound=BaseModel)


class BadRequest(Exception):
    """The body of a request is not what its route takes; the message names field, value and remedy."""


def json(content: Any, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.json_response(content, status=status)


def spelled(value: Any) -> str:
    """What a client gave, as it gave it, cut to a line."""
    return json_format.dumps(value, ensure_ascii=False)[:80]


def outcome(success: bool, message: str, **more: Any) -> web.Response:
    """What the update routes answer."""
    return json({"success": success, "message": message, **more}, 200 if success else 400)


async def body_of(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; an empty one counts as `{}`."""
    from aiohttp import web

    try:
        content = await request.read()
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body cannot be read: {' '.join(str(error).split())}") from None
    if not content:
        return {}
    try:
        # From bytes: JSON is Unicode, whatever charset the header names.
        found = json_format.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"the body is {spelled(found)}, not a JSON object")
    # Only an escape can bring half of a surrogate pair, and few bodies have any.
    if b"\\u" in content and not is_text(json_format.dumps(found, ensure_ascii=False)):
        raise BadRequest("the body has half of a surrogate pair (\\ud800 to \\udfff); give whole characters")
    return found


async def parsed(request: web.Request, kind: type[Body]) -> Body:
    """The body as what the route takes."""
    return checked(await body_of(request), kind)


def checked(values: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadRequest("; ".join(_fault(fault) for fault in error.errors())) from None


def _fault(fault: Any) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return str(message)
    place = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return f"{place} is not known here; leave it out"
    given = "" if fault["type"] == "missing" else f" (given: {spelled(fault['input'])})"
    return f"{place}: {message}{given}"


def error_answer(path: str, status: int, message: str) -> web.Response:
    """OpenAI's clients and SGLang's look for messages in different places."""
    if path.startswith("/v1/"):
        kind = "BadRequestError" if status == 400 else "InternalServerError"
        error = {"message": message, "type": kind, "param": None, "code": status}
        return json({"object": "error", "message": message, "type": kind, "code": status, "error": error}, status)
    return json({"object": "error", "message": message, "error": {"message": message}, "code": status}, status)


def middleware(key: str) -> Any:
    """Asks for the key, then turns errors into answers."""
    from aiohttp import web

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not allowed(request.path, request.headers.get("Authorization"), key):
            where = "send the server's key in the header Authorization: Bearer KEY"
            return json({"error": "Unauthorized", "message": where}, 401)
        try:
            return await handler(request)
        except (BadRequest, RequestRefused, TaskError, ModelError) as error:
            return error_answer(request.path, 400, str(error))
        except (EngineError, WorkerDied) as error:
            return error_answer(request.path, 500, str(error))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return json({"detail": error.reason}, error.status)

    return guard
