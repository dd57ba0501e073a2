"""Blocks between the markers of a page."""

from __future__ import annotations

import pytest

from benchmark.pages import put_between

BEGIN, END = "<!-- new -->", "<!-- end -->"


def test_only_what_stands_between_the_markers_is_replaced():
    page = f"{END} before {BEGIN}\nold\n{END} after {END}"
    assert (
        put_between(page, BEGIN, END, "\nnew\n") == f"{END} before {BEGIN}\nnew\n{END} after {END}"
    )
    assert put_between(page, BEGIN, END, "\nold\n") == page


@pytest.mark.parametrize("page", ["a page", f"a {BEGIN} page", f"{END} a {BEGIN} page"])
def test_a_page_without_its_markers_is_not_written_to(page: str):
    with pytest.raises(ValueError, match=f"no {BEGIN} and {END}"):
        put_between(page, BEGIN, END, "new")
