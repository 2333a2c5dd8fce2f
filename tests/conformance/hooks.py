"""What schemathesis need not try, because OpenAPI cannot say what the service does."""

import schemathesis

BATCH = "/v1/intents/batch"


def empty(value):
    if isinstance(value, (list, tuple, dict)):
        return all(empty(item) for item in value)
    return value is None or value == ""


def is_long_wait(query):
    """A request that waits for longer than the tool waits for a response."""
    waits = [str(query.get(name, "")) for name in ("waitSeconds", "wait_seconds")]
    return any(wait.isdecimal() and int(wait) > 2 for wait in waits)


def sent(query):
    """An empty parameter counts as absent."""
    query = query or {}
    return not any(empty(value) for value in query.values()) and not is_long_wait(query)


def is_wrong_on_purpose(case):
    return case.meta is not None and case.meta.generation.mode.is_negative


@schemathesis.hook
def filter_query(context, query):
    return sent(query)


@schemathesis.hook
def filter_case(context, case):
    if case.path == BATCH:
        # An invalid item of a batch fails alone: the response is 200.
        if isinstance(case.body, list) and 1 <= len(case.body) <= 1000 and is_wrong_on_purpose(case):
            return False
        # GET reads the intent whose id is 'batch', which the document describes under another path.
        if case.method == "OPTIONS":
            return False
    return sent(case.query)
