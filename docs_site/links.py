"""Links that work in the repository, made to work on the site.

Pages link to files of the repository as seen from their own: `../configs/pong.yaml`. The site has a
page for each file that is linked to. A link to nothing stays as it is, and MkDocs refuses it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = "files"
"""Folder of the site with pages of files from elsewhere in the repository."""

_FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^()#\s]+)(#[^()\s]*)?(?=\))|(?<=\]\()(#[^()\s]+)(?=\))")
_SHOWN = re.compile(r"^\[[^]\n]+\]\(([^()#\s]+)\)$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return a page with a change made to all that is not a block of code."""
    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block.group()]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def targets(text: str, origin: Path) -> Iterator[Path]:
    """Yield the files of the repository to which a page links, that there are.

    Args:
        text: Markdown.
        origin: Where the page stands in the repository.
    """
    for link in _LINK.finditer(_FENCE.sub("", text)):
        target = (origin.parent / (link[1] or "")).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target


def place(target: Path, anchor: str, moved: dict[str, str]) -> str | None:
    """Return where a file of the repository is on the site, None where it is not there.

    Args:
        target: The file.
        anchor: A heading in it, with its `#`, or nothing.
        moved: Pages of their own, made of sections of a file, by `path#section`.
    """
    if not target.is_file() or not target.is_relative_to(ROOT):
        return None
    path = target.relative_to(ROOT).as_posix()
    if path + anchor in moved:
        return moved[path + anchor]
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix() + anchor
    return f"{FILES}/{path.removesuffix('.md')}.md{anchor}"


def for_site(text: str, origin: Path, uri: str, moved: dict[str, str]) -> str:
    """Return a page whose links lead to pages of the site.

    Args:
        text: Markdown.
        origin: Where the page stands in the repository.
        uri: Where it stands on the site.
        moved: As for `place`.
    """

    def rewritten(link: re.Match[str]) -> str:
        anchor = link[2] or link[3] or ""
        target = (origin.parent / link[1]).resolve() if link[1] else origin
        there = place(target, anchor, moved)
        if there is None:
            return link.group()
        page, _, heading = there.partition("#")
        if page == uri and heading:
            return f"#{heading}"
        return os.path.relpath(page, Path(uri).parent) + (heading and f"#{heading}")

    def shown(link: re.Match[str]) -> str:
        target = (origin.parent / link[1]).resolve()
        there = target.is_file() and target.suffix in _LANGUAGES
        return f"{link.group()}\n\n{code(target)}" if there else link.group()

    text = outside_of_code(text, lambda part: _SHOWN.sub(shown, part))
    return outside_of_code(text, lambda part: _LINK.sub(rewritten, part))


def code(path: Path) -> str:
    """Return a file as a block of code."""
    language = _LANGUAGES.get(path.suffix, "text")
    return f"````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````"


def page_of(path: Path) -> str:
    """Return the page that shows a file; a document is its own. Searches leave code out."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    shown = _notebook(path) if path.suffix == ".ipynb" else title + code(path)
    return f"---\n{{search: {{exclude: true}}}}\n---\n{shown}\n"


def _notebook(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(
        text if kind == "markdown" else f"````python\n{text}\n````" for kind, text in texts
    )
