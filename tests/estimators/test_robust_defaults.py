"""The page on how the defaults of RobustELM were chosen names those that are in use."""

import re
from pathlib import Path

from gorelm.backends import inputs
from gorelm.estimators import robust
from gorelm.estimators._robust import cells, judge, members, screen, search
from gorelm.estimators._robust.layers import Layer
from gorelm.estimators._robust.task import EFFORTS

PAGE = Path(__file__).parents[2] / "docs/results/defaults.md"
LAYER = re.compile(
    r"^  \S+ with Layer\(activation='(\w+)', spread=(\S+), direct_link=(\w+), n_inputs=(\w+)\)$",
    re.MULTILINE,
)


def test_defaults_are_those_that_were_chosen():
    page = PAGE.read_text()
    default = EFFORTS["default"]
    steps = (
        vars(inputs)
        | vars(robust)
        | vars(cells)
        | vars(judge)
        | vars(members)
        | vars(screen)
        | vars(search)
    )
    constants = dict(re.findall(r"^  ([A-Z_]+) = (\S+): .* in use$", page, re.MULTILINE))
    assert len(constants) == 5
    assert {name: steps[name] for name in constants} == {
        name: float(value) for name, value in constants.items()
    }
    n_members, limit = re.search(
        r"^in use: (\d+) members, limit (\S+)$", page, re.MULTILINE
    ).groups()
    assert (default.n_members, search.MUCH_WORSE) == (int(n_members), float(limit))
    (nodes,) = re.findall(r"^  (\d+) nodes: .* in use$", page, re.MULTILINE)
    assert default.nodes == int(nodes)
    _, in_use = page.split("\nlayers in use,")
    layers = tuple(
        Layer(name, float(spread), link == "True", None if seen == "None" else int(seen))
        for name, spread, link, seen in LAYER.findall(in_use)
    )
    assert layers == search.SEARCH_LAYERS
