"""Whom an encrypted connection trusts: what the system does, or one authority of a house's own."""

from __future__ import annotations

import ssl


def trusting(path: str | None) -> ssl.SSLContext:
    """Return how to connect, where a file of certificates says who vouches for servers; None: as the system says.

    Raises OSError, and with it SSLError for a file that holds none.
    """
    context = ssl.create_default_context(cafile=path)
    if path is not None:  # authorities of a house's own often lack extensions that Python asks for since 3.13
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
