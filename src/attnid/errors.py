"""The one exception that stands for a user's mistake."""


class UserError(Exception):
    """A mistake in a configuration, file or argument, told in one sentence.

    The sentence names the key or file, what was found and what is allowed. Entry points print it and exit with
    status 2; they never show a traceback for it.
    """
