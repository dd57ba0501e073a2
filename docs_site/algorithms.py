"""A page for each algorithm, made of its section in `docs/algorithms.md`, its YAML and its runs."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from pymdownx.slugs import slugify

from docs_site.links import DOCS, ROOT, code

ORIGIN = DOCS / "algorithms.md"
_slug = slugify(case="lower")


@dataclass(frozen=True)
class Algorithm:
    """A section that begins with the YAML files that the algorithm is."""

    title: str
    text: str
    parts: str
    """Its row in the table of all algorithms, with the table's head."""

    @property
    def slug(self) -> str:
        """Its name in addresses, which is its heading's anchor in `docs/algorithms.md`."""
        return _slug(self.title, "-")

    @property
    def uri(self) -> str:
        """Where its page is on the site."""
        return f"algorithms/{self.slug}.md"

    @property
    def recipes(self) -> list[str]:
        """Names of its YAML files, without folder and ending: those named before the first stop."""
        return re.findall(r"`configs/([\w/]+)\.yaml`", re.split(r"[.:] ", self.text)[0] + "`")

    def page(self) -> str:
        """Return its page."""
        parts = f"{self.parts}\n\n" if self.parts else ""
        text = re.sub(r"\s(Deviations?:|Metrics?:)\s", r"\n\n**\1** ", self.text)
        return f"# {self.title}\n\n{parts}{text}\n\n{self._how_to_run()}\n{self._scores()}"

    def _how_to_run(self) -> str:
        lines, files = [], []
        for recipe in self.recipes:
            overlay = recipe.startswith("algo/")
            task = "--config recipe:pong " if overlay else ""
            lines.append(f"lrl fit {task}--config recipe:{recipe}")
            if overlay:
                task = "--config recipe:atari --config recipe:"
                lines.append(f"lrl fit {task}{recipe} --data.env.id ALE/Qbert-v5")
            path = ROOT / f"configs/{recipe}.yaml"
            files.append(f"`configs/{recipe}.yaml`:\n\n{code(path)}")
        return "\n\n".join(["## Run it", "```bash\n" + "\n".join(lines) + "\n```", *files, ""])

    def _scores(self) -> str:
        stems = [recipe.rpartition("/")[2] for recipe in self.recipes]
        named = [*re.findall(r"`configs/(\w+)\.yaml`", self.text), *stems]
        names = {f"parts_{stem}" for stem in stems} | set(named)
        names |= {f"cartpole_{stem}" for stem in stems}
        rows = [
            f"| `{task}` | {runs[0]['environment']} | {', '.join(run['score'] for run in runs)} "
            f"| {median(float(run['score']) for run in runs):.1f} |"
            for task, runs in _runs().items()
            if task in names or any(task.startswith(f"{name}_") for name in stems)
        ]
        if not rows:
            return ""
        table = ["| task | environment | score per seed | median |", "| --- | --- | --- | --- |"]
        about = (
            "Mean return of the best checkpoint over episodes that neither training nor its "
            "evaluations use ([benchmarks.md](benchmarks.md))."
        )
        return "\n\n".join(["## Scores", about, "\n".join([*table, *rows]), ""])


def _runs() -> dict[str, list[dict[str, str]]]:
    runs = defaultdict(list)
    with (DOCS / "scores.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            runs[row["task"]].append(row)
    return runs


def split() -> tuple[str, list[Algorithm]]:
    """Return `docs/algorithms.md` without the sections that are pages, and those."""
    kept, *sections = ORIGIN.read_text(encoding="utf-8").split("\n## ")
    table = [line for line in kept.splitlines() if line.startswith("|")]
    found = []
    for section in sections:
        title, text = section.split("\n", 1)
        if not text.lstrip().startswith("`configs/"):
            kept += f"\n## {section}"
            continue
        rows = [line for line in table if line.startswith(f"| [{title}](")]
        parts = "\n".join([*table[:2], *rows]) if rows else ""
        found.append(Algorithm(title, text.strip(), parts))
    return kept, found
