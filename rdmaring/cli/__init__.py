"""The command ``rdmaring``: arguments, exit codes, tables."""
