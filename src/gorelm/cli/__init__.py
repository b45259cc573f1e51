"""The command line: thin commands over the library. Heavy imports wait until a command runs."""

from gorelm.cli.app import main
from gorelm.cli.cleaning import clean
from gorelm.cli.datasets import contaminate, datasets
from gorelm.cli.experiments import experiment, report
from gorelm.cli.models import export, inspect, predict
from gorelm.cli.reviewing import review
from gorelm.cli.tables import fit, outliers

__all__ = ["main"]

# In the order of the help: what most people need first.
for command in (
    fit,
    outliers,
    clean,
    review,
    predict,
    inspect,
    export,
    contaminate,
    datasets,
    experiment,
    report,
):
    main.add_command(command)
