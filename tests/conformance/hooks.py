"""What schemathesis need not try: an empty parameter counts as absent, which OpenAPI cannot say."""

import schemathesis


def empty(value):
    if isinstance(value, (list, tuple, dict)):
        return all(empty(item) for item in value)
    return value is None or value == ""


def sent(query):
    return not any(empty(value) for value in (query or {}).values())


@schemathesis.hook
def filter_query(context, query):
    return sent(query)


@schemathesis.hook
def filter_case(context, case):
    return sent(case.query)
