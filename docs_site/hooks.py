"""Hooks of MkDocs: pages that are made, and the links of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import algorithms, links, settings

ROOMS = [
    "lrl", "lrl.learner", "lrl.networks", "lrl.replay", "lrl.actors.exploration", "lrl.schedules",
    "lrl.envs", "lrl.evaluation.episodes", "lrl.callbacks", "lrl.functional", "lrl.types",
    "lrl.testing",
]  # fmt: skip
"""What the reference of the API has a page for."""

_origins: dict[str, Path] = {}
_moved: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: of algorithms, settings, the API, and of linked files."""
    made: dict[str, str] = {"settings.md": settings.page()}
    made |= {f"api/{room}.md": f"# {room}\n\n::: {room}\n" for room in ROOMS}
    made[algorithms.ORIGIN.name], pages = algorithms.split()
    for algorithm in pages:
        made[algorithm.uri] = algorithm.page()
        _origins[algorithm.uri] = algorithms.ORIGIN
        _moved[f"docs/algorithms.md#{algorithm.slug}"] = algorithm.uri
    for uri, text in made.items():
        if old := files.get_file_from_path(uri):
            files.remove(old)
        files.append(File.generated(config, uri, content=text))
    _add_linked_files(files, config)
    return files


def _add_linked_files(files: Files, config: MkDocsConfig) -> None:
    waiting = [
        (_origins.get(page.src_uri, links.DOCS / page.src_uri), page.content_string)
        for page in files.documentation_pages()
    ]
    seen: set[str] = set()
    while waiting:
        origin, text = waiting.pop()
        for target in links.targets(text, origin):
            uri = links.place(target, "", {})
            if uri is None or uri in seen or target.is_relative_to(links.DOCS):
                continue
            seen.add(uri)
            _origins[uri] = target
            page = links.page_of(target)
            files.append(File.generated(config, uri, content=page))
            if target.suffix == ".md":
                waiting.append((target, page))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Make the links of a page lead to pages of the site."""
    uri = page.file.src_uri
    return links.for_site(markdown, _origins.get(uri, links.DOCS / uri), uri, _moved)
