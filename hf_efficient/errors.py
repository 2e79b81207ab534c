"""What a command tells in one line instead of a traceback."""


class CommandError(Exception):
    """What went wrong, in words for whoever started the command."""
