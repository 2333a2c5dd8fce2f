"""A typed client of the Submission Manager. The README shows every call.

>>> from submission_manager import Client
>>> with Client("http://127.0.0.1:8082") as client:
...     intent = client.intents.submit("order-1001", "sms.realtime", {"to": "+46700000001"})
"""

import importlib
from typing import TYPE_CHECKING

from . import models
from ._batcher_sync import Batcher
from ._protocol import VERSION as __version__
from ._protocol import BatchResult, Page, RawJson, SubmittedIntent
from ._sync.client import Client
from ._sync.events import EventFeed
from ._sync.paging import Pager
from .errors import (
    AlreadyProcessed,
    AlreadyRedriven,
    AlreadyTerminal,
    AttemptInProgress,
    Conflict,
    CursorExpired,
    ExecutionUnavailable,
    Forbidden,
    IdempotencyConflict,
    InternalError,
    InvalidRequest,
    InvalidState,
    ManagementNodeNotFound,
    NotFound,
    NotTerminal,
    Overloaded,
    PayloadTooLarge,
    PolicyRejected,
    StoreUnavailable,
    SubmissionManagerError,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    WaitTimeout,
)
from .webhooks import Webhook, WebhookVerificationError

if TYPE_CHECKING:
    from ._async.client import AsyncClient as AsyncClient
    from ._async.events import AsyncEventFeed as AsyncEventFeed
    from ._async.paging import AsyncPager as AsyncPager
    from ._batcher_async import AsyncBatcher as AsyncBatcher

__all__ = [
    "AlreadyProcessed", "AlreadyRedriven", "AlreadyTerminal", "AttemptInProgress", "BatchResult", "Batcher", "Client",
    "Conflict", "CursorExpired", "EventFeed", "ExecutionUnavailable", "Forbidden",
    "IdempotencyConflict", "InternalError", "InvalidRequest", "InvalidState", "ManagementNodeNotFound",
    "NotFound", "NotTerminal", "Overloaded", "Page", "Pager", "PayloadTooLarge", "PolicyRejected", "RawJson",
    "StoreUnavailable", "SubmissionManagerError", "SubmittedIntent", "Unauthorized", "Unavailable", "UnexpectedAnswer",
    "Unreachable", "WaitTimeout", "Webhook", "WebhookVerificationError", "__version__", "models",
]

# Loaded only when they are used, because they need httpx.
_ASYNC = {
    "AsyncBatcher": "._batcher_async",
    "AsyncClient": "._async.client",
    "AsyncEventFeed": "._async.events",
    "AsyncPager": "._async.paging",
}


def __getattr__(name: str) -> object:
    if name in _ASYNC:
        return getattr(importlib.import_module(_ASYNC[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
