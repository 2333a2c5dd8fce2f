"""What both clients share and what does no I/O: building requests, reading answers, deciding about retries, packing batches."""

from __future__ import annotations

import json
import random
import re
import urllib.parse
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union, cast

from . import models
from .errors import SubmissionManagerError, error_of

VERSION = "0.3.0"

# Longer than the longest waitSeconds, which is 30.
DEFAULT_TIMEOUT = 40.0
# The pauses before four retries are 0.25 + 0.5 + 1 + 2 s: longer than a proxy needs when an instance is replaced.
DEFAULT_MAX_RETRIES = 4
FIRST_PAUSE = 0.25
# If Retry-After is longer than this, the client raises the error instead of waiting. Event feeds pause no longer than this.
LONGEST_PAUSE = 30.0
# The statuses of overload, and of a proxy or an instance that is being replaced.
WORTH_REPEATING = frozenset((429, 502, 503, 504))
# How many characters of an unexpected answer an error quotes.
SHOWN_CHARACTERS = 200

# The limits of POST /v1/intents/batch.
BATCH_ITEMS = 1000
BATCH_BYTES = 8 * 1024 * 1024

# Bytes of one server-sent event. An event has an intent without its payload: about 2 KiB with the longest ids.
LONGEST_EVENT = 1024 * 1024

# Scheme, host name or address in brackets, optional port and path. A query is refused, because paths are appended.
SERVICE_URL = r"https?://([^/?#@:\[\]\s]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?(/[^?#\s]*)?"

# The characters that every server and every proxy accepts in a header.
HEADER_VALUE = r"[\x20-\x7e]*"

T = TypeVar("T")

# Called with every answer: method, URL, status and headers (names in lower case).
OnAnswer = Callable[[str, str, int, Mapping[str, str]], None]
# A bearer token, or a function that returns the one that is valid now; it is called for every try.
Token = Union[None, str, Callable[[], str]]


class RawJson:
    """JSON that is sent byte for byte as it is: for payloads that were serialized elsewhere. `bytes` mean the same."""

    def __init__(self, text: Union[str, bytes]) -> None:
        self.bytes = text.encode() if isinstance(text, str) else bytes(text)


class _NotGiven:
    """The default of arguments for which None is a value of its own."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = _NotGiven()


@dataclass(frozen=True)
class Options:
    """The settings of a client."""

    url: str
    token: Token
    timeout: float
    max_retries: int
    on_answer: Optional[OnAnswer]

    def __post_init__(self) -> None:
        if not re.fullmatch(SERVICE_URL, self.url):
            raise ValueError(f"{self.url!r} is not a URL of a service; use one such as http://127.0.0.1:8082")
        if self.max_retries < 0:
            raise ValueError("max_retries must not be negative")
        if isinstance(self.token, str) and not re.fullmatch(HEADER_VALUE, self.token):
            raise ValueError("the token must be of printable ASCII characters")


@dataclass(frozen=True)
class Call:
    """One call of the API, before it becomes a request.

    repeatable: whether repeating it has no further effect, so that it may be retried although it may have arrived
    """

    method: str
    template: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Optional[str]] = field(default_factory=dict)
    body: Optional[bytes] = None
    repeatable: bool = True
    accept: str = "application/json"


@dataclass(frozen=True)
class Request:
    method: str
    url: str
    headers: Dict[str, str]
    body: Optional[bytes]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Dict[str, Any]:
        """The JSON of the answer: the service answers every call of this client with an object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise unexpected(self)
        return found


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list. `next_cursor` is None on the last page."""

    items: List[T]
    next_cursor: Optional[str]


class SubmittedIntent(models.Intent):
    """An intent, and whether it existed before this submission."""

    replayed: bool


@dataclass(frozen=True)
class BatchResult:
    """What became of one submission of a batch: either `intent` or `error` is set."""

    intent: Optional[SubmittedIntent]
    error: Optional[SubmissionManagerError]

    def unwrap(self) -> SubmittedIntent:
        """The intent, or raises the error."""
        if self.intent is None:
            assert self.error is not None
            raise self.error
        return self.intent


def request_of(options: Options, call: Call) -> Request:
    """The request of a call; it is made anew for every try, because the token may have changed."""
    headers = {"Accept": call.accept, "Accept-Encoding": "identity", "User-Agent": f"submission-manager-python/{VERSION}"}
    token = options.token() if callable(options.token) else options.token
    if token:
        headers["Authorization"] = _header("the token", f"Bearer {token}")
    for name, value in call.headers.items():
        if value is not None:
            headers[name] = _header(name, value)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    url = options.url.rstrip("/") + _filled(call.template, call.path, call.query)
    return Request(call.method, url, headers, call.body)


def new_key() -> str:
    """An idempotency key, without which a retry would create a second submission."""
    return str(uuid.uuid4())


def _filled(template: str, path: Mapping[str, str], query: Mapping[str, Any]) -> str:
    def segment(match: "re.Match[str]") -> str:
        text = path[match[1]]
        if text in ("", ".", ".."):
            raise _unsendable(match[1], f"{text!r} has no place in a URL")
        return urllib.parse.quote(text, safe="")

    given = {name: _query_text(value) for name, value in query.items() if value is not None}
    try:
        filled = re.sub(r"{([^}]+)}", segment, template)
        return filled + ("?" + urllib.parse.urlencode(given, doseq=True) if given else "")
    except UnicodeEncodeError as error:
        raise _unsendable("an id or a parameter", error) from None


def _query_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return [_query_text(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


def _header(name: str, value: str) -> str:
    if not re.fullmatch(HEADER_VALUE, value):
        raise _unsendable(name, "it must be of printable ASCII characters")
    return value


def _unsendable(what: str, why: object) -> SubmissionManagerError:
    return error_of(0, "invalid_request", f"{what} cannot be sent: {why}")


def encoded(value: Any) -> bytes:
    """A value as JSON; `RawJson` and `bytes` as they are."""
    try:
        if isinstance(value, (RawJson, bytes, bytearray)):
            raw = value.bytes if isinstance(value, RawJson) else bytes(value)
            # Anything but one JSON value would change the request around it.
            json.loads(raw.decode())
            return raw
        # The same form as other languages write, so that a payload has the same bytes from all of them.
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise _unsendable("the body", error) from None


def encoded_object(fields: Mapping[str, Any]) -> bytes:
    """An object as JSON without the fields that are None or not given; raw values keep their bytes."""
    given = {name: value for name, value in fields.items() if value is not None and value is not NOT_GIVEN}
    return b"{" + b",".join(encoded(name) + b":" + encoded(value) for name, value in given.items()) + b"}"


def encoded_submission(
    intent_id: str, submission_target: str, payload: Any, not_before: Optional[str]
) -> bytes:
    """One submission. A payload of None is `null`, which differs from no payload."""
    head = {"intentId": intent_id, "submissionTarget": submission_target, "notBefore": not_before}
    return encoded_object({**head, "payload": RawJson(b"null") if payload is None else payload})


def encoded_item(item: models.SubmitRequest) -> bytes:
    """One submission of a batch. Its payload may be `RawJson` or `bytes`."""
    return encoded_submission(
        item["intentId"], item["submissionTarget"], item.get("payload", NOT_GIVEN), item.get("notBefore")
    )


def batch_body(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def packed(sizes: Iterable[int], max_items: int, max_bytes: int) -> Iterator[int]:
    """Divides items of these sizes into batches, and yields the number of items of each."""
    count, total = 0, 2
    for size in sizes:
        if count and (count == max_items or total + size + 1 > max_bytes):
            yield count
            count, total = 0, 2
        count, total = count + 1, total + size + 1
    if count:
        yield count


def batch_results(answer: Answer, count: int) -> List[BatchResult]:
    try:
        results = [_batch_result(each) for each in answer.json()["results"]]
    except (LookupError, TypeError):
        raise unexpected(answer) from None
    if len(results) != count:
        raise unexpected(answer)
    return results


def _batch_result(result: Dict[str, Any]) -> BatchResult:
    if "intent" in result:
        intent = {**result["intent"], "replayed": result.get("replayed", False)}
        return BatchResult(cast(SubmittedIntent, intent), None)
    error = result["error"]
    # Items have the form of an error or of its whole body.
    error = error.get("error", error)
    return BatchResult(None, error_of(result["status"], error["code"], error["message"], error.get("details")))


def submitted(answer: Answer) -> SubmittedIntent:
    replayed = answer.headers.get("idempotent-replayed") == "true"
    return cast(SubmittedIntent, {**answer.json(), "replayed": replayed})


def backoff(number: int) -> float:
    """The pause before retry `number` (from 1): it doubles, and is up to half shorter, so that clients do not come at once."""
    doubled: float = FIRST_PAUSE * 2.0 ** min(number - 1, 16)
    return min(doubled, LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def pause_before_retry(options: Options, call: Call, number: int, error: SubmissionManagerError) -> Optional[float]:
    """How long to wait before retry `number`, or None if there is to be no retry."""
    # Without a guarantee that repeating does no harm, only a refusal before anything happened may be repeated.
    safe = call.repeatable or error.status == 429 or error.code == "overloaded"
    if not is_worth_repeating(error) or not safe or number > options.max_retries:
        return None
    # A little later than requested, so that not all clients come back at once.
    pause = backoff(number) + (error.retry_after or 0.0)
    return pause if pause <= LONGEST_PAUSE else None


def is_worth_repeating(error: SubmissionManagerError) -> bool:
    """Whether the same request may succeed later."""
    return error.status in WORTH_REPEATING or error.code == "unreachable"


def no_answer(url: str, reason: object) -> SubmissionManagerError:
    return error_of(0, "unreachable", f"{url} does not answer ({reason}); is the URL right, and the service up?")


def error_of_answer(answer: Answer) -> SubmissionManagerError:
    """The error that an answer outside 2xx stands for."""
    # A date in Retry-After is ignored; the client then waits as if there were none.
    said = answer.headers.get("retry-after", "").strip()
    retry_after = float(said) if said.isascii() and said.isdigit() else None
    try:
        error = json.loads(answer.body)["error"]
        return error_of(answer.status, error["code"], error["message"], error.get("details"), retry_after)
    except (ValueError, LookupError, TypeError, AttributeError):
        return unexpected(answer, retry_after)


def unexpected(answer: Answer, retry_after: Optional[float] = None) -> SubmissionManagerError:
    shown = " ".join(answer.body.decode("utf-8", "replace").split())[:SHOWN_CHARACTERS] or "nothing"
    text = f"this is not how a Submission Manager answers ({shown}); is the URL right?"
    return error_of(answer.status, "unexpected_answer", text, None, retry_after)


class SseParser:
    """Parses server-sent events from bytes in pieces of any size. What is incomplete when a stream ends is dropped.

    `retry` is how many seconds the service wants clients to wait until they connect again.
    """

    def __init__(self) -> None:
        self.retry = 0.0
        self._rest = bytearray()
        self._id: Optional[str] = None
        self._data: List[str] = []

    def feed(self, chunk: bytes) -> Iterator[Tuple[Optional[str], Optional[str]]]:
        """Yields id and data of each event that is complete now; data is None if there was only an id."""
        self._rest += chunk
        if len(self._rest) > LONGEST_EVENT:
            raise error_of(200, "unexpected_answer", f"an event has more than {LONGEST_EVENT} bytes")
        if not (b"\n" in chunk or b"\r" in self._rest or b"\r" in chunk):
            return
        lines = re.split(rb"\r\n|\n|\r(?!\Z)", self._rest)
        self._rest = bytearray(lines.pop())
        for line in lines:
            if line:
                self._field(line.decode("utf-8", "replace"))
                continue
            if self._data or self._id is not None:
                yield self._id, "\n".join(self._data) if self._data else None
            self._id, self._data = None, []

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= 9:
            self.retry = int(value) / 1000
