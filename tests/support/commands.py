"""The command line, called in this process."""

from click.testing import CliRunner

from gorelm.cli import main


def call(*arguments, code=0):
    """Run ``gorelm`` with arguments and check its exit code (None: any); an error is one line."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if code is not None:
        assert result.exit_code == code, (result.output, result.exception)
    assert all(c.isprintable() or c == "\n" for c in result.output)
    assert "Traceback" not in result.output
    if code == 1:
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("gorelm: ")
    return result
