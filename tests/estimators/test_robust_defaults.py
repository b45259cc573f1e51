"""The page on how the defaults of RobustELM were chosen names those that are in use."""

import re
from pathlib import Path

from gorelm.estimators import robust
from gorelm.estimators._layers import Layer

PAGE = Path(__file__).parents[2] / "docs/results/defaults.md"
LAYER = re.compile(
    r"^  \S+ with Layer\(activation='(\w+)', spread=(\S+), direct_link=(\w+), n_inputs=(\w+)\)$",
    re.MULTILINE,
)


def test_defaults_are_those_that_were_chosen():
    page = PAGE.read_text()
    default = robust.EFFORTS["default"]
    constants = dict(re.findall(r"^  ([A-Z_]+) = (\S+): .* in use$", page, re.MULTILINE))
    assert len(constants) == 6
    assert {name: getattr(robust, name) for name in constants} == {
        name: float(value) for name, value in constants.items()
    }
    members, limit = re.search(r"^in use: (\d+) members, limit (\S+)$", page, re.MULTILINE).groups()
    assert (default.n_members, robust.MUCH_WORSE) == (int(members), float(limit))
    (nodes,) = re.findall(r"^  (\d+) nodes: .* in use$", page, re.MULTILINE)
    assert default.nodes == int(nodes)
    _, in_use = page.split("\nlayers in use,")
    layers = tuple(
        Layer(name, float(spread), link == "True", None if seen == "None" else int(seen))
        for name, spread, link, seen in LAYER.findall(in_use)
    )
    assert layers == robust.SEARCH_LAYERS
