"""A small typed client of the Submission Manager that needs only the standard library.

>>> from submission_manager import Client
>>> client = Client("http://127.0.0.1:8082")
"""

from . import models
from .operations import Operations
from .transport import SubmissionManagerError

__all__ = ["Client", "SubmissionManagerError", "models"]


class Client(Operations):
    """Everything the service can be asked, as methods; errors are `SubmissionManagerError`."""
