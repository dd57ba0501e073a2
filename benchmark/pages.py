"""What is written into a page between its markers, two HTML comments."""

from __future__ import annotations


def put_between(page: str, begin: str, end: str, block: str) -> str:
    """Return a page with a block in place of what stands between two markers.

    Args:
        page: The page's text.
        begin: The marker before the block.
        end: The marker after it, the first one that follows `begin`.
        block: What is put between them, with the line ends that it needs.

    Raises:
        ValueError: The page does not have `begin` and then `end`.

    Example:
        >>> put_between("a <!-- x -->b<!-- end --> c", "<!-- x -->", "<!-- end -->", " new ")
        'a <!-- x --> new <!-- end --> c'
    """
    before, found, rest = page.partition(begin)
    _, then_found, after = rest.partition(end)
    if not (found and then_found):
        raise ValueError(f"the page has no {begin} and {end} to write between")
    return f"{before}{begin}{block}{end}{after}"
