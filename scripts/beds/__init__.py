"""Two test beds: hosts as network namespaces (scripts/hosts), guests with soft-RoCE (scripts/softroce).

Needs Python 3.10 and nothing beside it, so that Debian's own python3 runs them, on both sides.
"""
