"""Sends requests and reads answers: token, timeout, retries, errors.

This file is written by hand; the operations are generated (operations.py). It never follows a redirect, because the
token would be sent to the other host, and never repeats a request that the service has refused for good.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from . import models

# Longer than the longest waitSeconds, which is 30.
DEFAULT_TIMEOUT = 40.0
# The pauses between five tries are 0.25 + 0.5 + 1 + 2 s: longer than a proxy needs when an instance is replaced.
DEFAULT_TRIES = 5
FIRST_PAUSE = 0.25
# If Retry-After is longer than this, the client raises the error instead of waiting.
LONGEST_PAUSE = 30.0
# The statuses of overload, and of a proxy or an instance that is being replaced.
WORTH_REPEATING = frozenset((429, 502, 503, 504))
# How many characters of an unexpected answer an error quotes.
SHOWN_CHARACTERS = 200

# Scheme, host name or address in brackets, optional port and path. A query is refused, because paths are appended.
SERVICE_URL = r"https?://([^/?#@:\[\]\s]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?(/[^?#\s]*)?"

# The characters that every server and every proxy accepts in a header.
HEADER_VALUE = r"[\x20-\x7e]*"

# Called with every answer: method, URL, status and headers (names in lower case).
OnAnswer = Callable[[str, str, int, Mapping[str, str]], None]
Answer = Tuple[int, Dict[str, str], bytes]


class SubmissionManagerError(Exception):
    """The service answered with an error, or not at all.

    status: the HTTP status of the answer; 0 if there was none
    code: the code for programs, such as `idempotency_conflict`; `unreachable` if there was no answer,
        `unexpected_answer` if the answer is not that of a Submission Manager, and `invalid_request` with status 0 if the
        request cannot be sent: its body is not valid JSON, a text has half a surrogate pair, or a header has characters
        that are not allowed there
    message: a message for people
    details: further facts for programs, such as `conflictingFields`
    retry_after: `Retry-After` of the answer in seconds, if there was one
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Optional[Dict[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if status == 0 else f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Transport:
    """A client of the service. Several threads may use one at the same time."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8082",
        token: Optional[str] = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tries: int = DEFAULT_TRIES,
        on_answer: Optional[OnAnswer] = None,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        """
        url: the base URL of the service, such as https://submissions.example
        token: a bearer token, if the service requires one
        timeout: how many seconds one try may wait for data from the service
        tries: how often a call is made at most, if there is no answer or one that asks for a retry
        on_answer: called for every answer: for logs, or to read headers such as `idempotent-replayed`
        tls: a TLS context, for certificate authorities of your own
        """
        if not re.fullmatch(SERVICE_URL, url):
            raise ValueError(f"{url!r} is not a URL of a service; use one such as http://127.0.0.1:8082")
        if tries < 1:
            raise ValueError("tries must be at least 1")
        if token is not None and not re.fullmatch(HEADER_VALUE, token):
            raise ValueError("the token must be of printable ASCII characters")
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._tries = tries
        self._on_answer = on_answer
        https = urllib.request.HTTPSHandler(context=tls or ssl.create_default_context())
        self._opener = urllib.request.build_opener(_NoRedirects, https)

    def _call(
        self,
        method: str,
        template: str,
        expects: str,
        *,
        path: Optional[Mapping[str, Any]] = None,
        query: Optional[Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        content_type: Optional[str] = None,
    ) -> Any:
        request = urllib.request.Request(self._url + _filled(template, path or {}, query or {}), method=method)
        request.add_header("Accept", "application/json" if expects == "json" else "*/*")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        for name, value in (headers or {}).items():
            if value is None and name.lower() == "idempotency-key":
                # Without a key, a retry would create a second submission.
                value = str(uuid.uuid4())
            if value is not None:
                request.add_header(name, _header(name, str(value)))
        if content_type:
            # Serialized once, so that every retry sends the same bytes: the service compares them.
            request.data = _encoded(body, content_type)
            request.add_header("Content-Type", content_type)
        return _decoded(self._answer(request), expects)

    def _answer(self, request: urllib.request.Request) -> Answer:
        """Returns the answer, or raises the error. Every call may be retried: submissions are safe by their ids, and the
        others have the same effect when repeated."""
        for number in range(1, self._tries + 1):
            pause = FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.0)
            try:
                status, headers, body = self._once(request)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                text = f"{request.full_url} does not answer ({reason}); is the URL right, and the service up?"
                failure = SubmissionManagerError(0, "unreachable", text)
                repeat = not isinstance(reason, ssl.SSLCertVerificationError)
            else:
                if self._on_answer:
                    self._on_answer(request.get_method(), request.full_url, status, headers)
                if 200 <= status < 300:
                    return status, headers, body
                failure = _refusal(status, headers, body)
                repeat = status in WORTH_REPEATING
                # A little later than requested, so that not all clients come back at once.
                pause += failure.retry_after or 0.0
            if not repeat or number == self._tries or pause > LONGEST_PAUSE:
                raise failure
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _once(self, request: urllib.request.Request) -> Answer:
        try:
            response = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            status = int(response.status)
            headers = {name.lower(): value for name, value in response.headers.items()}
            body: bytes = response.read()
        return status, headers, body


def _filled(template: str, path: Mapping[str, Any], query: Mapping[str, Any]) -> str:
    def segment(match: "re.Match[str]") -> str:
        text = str(path[match[1]])
        if text in ("", ".", ".."):
            raise ValueError(f"{match[1]} must not be {text!r}, which has no place in a URL")
        return urllib.parse.quote(text, safe="")

    given = {name: _text(value) for name, value in query.items() if value is not None}
    try:
        filled = re.sub(r"{([^}]+)}", segment, template)
        return filled + ("?" + urllib.parse.urlencode(given, doseq=True) if given else "")
    except UnicodeEncodeError as error:
        raise _unsendable("an id or a parameter", error) from None


def _header(name: str, value: str) -> str:
    if not re.fullmatch(HEADER_VALUE, value):
        raise _unsendable(name, "it must be of printable ASCII characters")
    return value


def _unsendable(what: str, why: object) -> SubmissionManagerError:
    return SubmissionManagerError(0, "invalid_request", f"{what} cannot be sent: {why}")


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return [_text(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


def _encoded(body: Any, content_type: str) -> bytes:
    try:
        if content_type == "application/json":
            # The same form as other languages write, so that a payload has the same bytes from all of them.
            return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if content_type == "application/x-www-form-urlencoded":
            return urllib.parse.urlencode(body).encode()
        return bytes(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise _unsendable("the body", error) from None


def _decoded(answer: Answer, expects: str) -> Any:
    status, _, body = answer
    if expects == "nothing":
        return None
    if expects == "text":
        return body.decode("utf-8", "replace")
    try:
        return json.loads(body)
    except ValueError:
        raise _unexpected(status, body) from None


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> SubmissionManagerError:
    # A date in Retry-After is ignored; the client then waits as if there were none.
    said = headers.get("retry-after", "").strip()
    retry_after = float(said) if said.isascii() and said.isdigit() else None
    try:
        error: models.ErrorBody = json.loads(body)["error"]
        return SubmissionManagerError(status, error["code"], error["message"], error.get("details"), retry_after)
    except (ValueError, LookupError, TypeError):
        return _unexpected(status, body, retry_after)


def _unexpected(status: int, body: bytes, retry_after: Optional[float] = None) -> SubmissionManagerError:
    shown = " ".join(body.decode("utf-8", "replace").split())[:SHOWN_CHARACTERS] or "nothing"
    text = f"this is not how a Submission Manager answers ({shown}); is the URL right?"
    return SubmissionManagerError(status, "unexpected_answer", text, None, retry_after)
