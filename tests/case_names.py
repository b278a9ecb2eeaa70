"""The names of all test cases, for pages that name them."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def all_cases():
    """Names of doctest's cases; those that a suite makes for each backend without its name."""
    found = set()
    for path in [*ROOT.glob("tests/*.cpp"), *ROOT.glob("tests/*.hpp")]:
        text = re.sub(r'"\s*\n\s*"', "", path.read_text(encoding="utf-8"))
        found.update(re.findall(r'TEST_CASE\(\s*"([^"]+)"', text))
        found.update("io_uring " + says for says in
                     re.findall(r'NETIO_RING_CASE\(\s*"([^"]+)"', text))
        for row, says in (re.findall(r'service_case\{\s*"([^"]+)",\s*"([^"]+)"', text) +
                          re.findall(r'\{"([^"]+)",\s*"([^"]+)",\s*\w+\}', text)):
            found.add(f"{row} {says}")
    return found


def missing_in(page_text):
    """What a page names in quotes and nothing is called, and the programs it names."""
    cases = all_cases()
    lost = [name for name in re.findall(r'"([^"]+)"', page_text) if name not in cases]
    lost += [path for path in re.findall(r"`((?:tests|fuzz)/[\w./]+)`", page_text)
             if not (ROOT / path).exists()]
    return lost
