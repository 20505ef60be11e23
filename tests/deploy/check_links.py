"""Checks the links of the pages: the file and the section exist.

    check_links.py
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sections(page):
    """The anchors of a page, derived from its headings."""
    heads = [line.lstrip("#").strip().lower() for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def prose(page):
    """The lines outside of code blocks."""
    inside = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


SUFFIXES = {".rs", ".py", ".sh", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".service", ".json", ".proto"}
FOLDERS = "batch config coordinator ctl deploy jepsen ledger programs proto raft storage telemetry tests worker xtask".split()


def sources():
    """The files of programs, deployments and tests, which may name a page."""
    yield ROOT / "Makefile"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "target" not in path.relative_to(ROOT).parts:
                yield path


class Links(unittest.TestCase):
    def test_they_lead_somewhere(self):
        pages = [ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")]
        pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
        self.assertGreater(len(pages), 10)
        wrong = []
        for page in pages:
            for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(page))):
                if target.startswith(("http://", "https://", "mailto:")):
                    continue
                path, _, section = target.partition("#")
                there = (page.parent / path).resolve() if path else page
                found = there.exists() and (not section or there.suffix != ".md" or section in sections(there))
                wrong += [] if found else [f"{page.relative_to(ROOT)}: {target}"]
        self.assertEqual(wrong, [])

    def test_pages_that_programs_and_deployments_name_are_there(self):
        found, wrong = 0, []
        for path in sources():
            for name, section in re.findall(r"\b(docs/[\w/.-]+\.md)(#[\w-]+)?", path.read_text()):
                found += 1
                page = ROOT / name
                there = page.is_file() and (not section or section[1:] in sections(page))
                wrong += [] if there else [f"{path.relative_to(ROOT)}: {name}{section}"]
        self.assertGreater(found, 40)
        self.assertEqual(wrong, [])

    def test_every_page_and_every_decision_is_in_the_contents(self):
        docs = ROOT / "docs"
        indexes = {
            "README.md": ([docs, docs / "adr"], 20),
            "operating.md": ([docs / "operating"], 10),
            "batch.md": ([docs / "batch"], 5),
            "training.md": ([docs / "training"], 5),
            "deploy-kubernetes.md": ([docs / "kubernetes"], 5),
            "verification.md": ([docs / "verification"], 5),
            "nightly/README.md": ([docs / "nightly"], 0),
            "architecture.md": ([docs / "architecture"], 2),
            "figures.md": ([docs / "figures"], 5),
            "errors/README.md": ([docs / "errors"], 50),
        }
        covered = {folder for folders, _ in indexes.values() for folder in folders}
        self.assertEqual({page.parent for page in docs.rglob("*.md")}, covered)
        for contents, (folders, least) in indexes.items():
            targets = re.findall(r"\]\(([^)\s#]+)\)", "\n".join(prose(docs / contents)))
            listed = {((docs / contents).parent / target).resolve() for target in targets}
            there = {page.resolve() for folder in folders for page in folder.glob("*.md")}
            self.assertGreater(len(there), least)
            self.assertEqual(sorted(there - listed - {(docs / contents).resolve()}), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
