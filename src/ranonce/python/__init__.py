"""The Python face: `@job`, `Ledger` and `Run`. Their names are found in `ranonce` itself.

A package of its own, since a module `ranonce.job` would take the place of the decorator `ranonce.job`.
"""
