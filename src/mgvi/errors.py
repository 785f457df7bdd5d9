"""The warning category and the exception that users of the package may catch.

Nothing comes in; two classes go out.
This file imports nothing and must not know what any message says.
"""


class MgviWarning(UserWarning):
    """Something works, but probably not as the user expects."""


class ModelError(ValueError):
    """The model or its data cannot be used.

    The message names the site, what was expected, what was found and what to do.
    """
