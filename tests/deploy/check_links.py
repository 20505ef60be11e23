"""Links of the pages: what they name is there, file and section.

    check_links.py
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sections(page):
    """The anchors of a page, as they are made of its headings."""
    heads = [line.lstrip("#").strip().lower() for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def prose(page):
    """The lines outside of code."""
    inside = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


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

    def test_every_page_and_every_decision_is_in_the_contents(self):
        docs = ROOT / "docs"
        for contents, folders, least in [
            ("README.md", [docs, docs / "adr"], 20),
            ("operating.md", [docs / "operating"], 10),
        ]:
            listed = set(re.findall(r"\]\(([^)\s#]+)\)", "\n".join(prose(docs / contents))))
            there = {str(page.relative_to(docs)) for folder in folders for page in folder.glob("*.md")}
            self.assertGreater(len(there), least)
            self.assertEqual(sorted(there - listed - {"README.md"}), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
