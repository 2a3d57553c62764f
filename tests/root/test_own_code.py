"""Check that sagda never unpickles data, evaluates strings or starts a shell."""

import ast

import pytest

from support import ROOT

SRC = ROOT / "src"
FORBIDDEN = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml",
    "telnetlib", "ftplib",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
LOADERS = {"np.load", "numpy.load", "torch.load", "np.fromfile"}


def findings(tree):
    """Return the forbidden calls in a module, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]]
        else:
            names = []
        for name in names:
            if name in FORBIDDEN:
                yield node.lineno, f"imports {name}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            words = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called in CALLS:
                yield node.lineno, f"calls {called}"
            if called in LOADERS and words.get("allow_pickle") != "False":
                yield node.lineno, f"{called} without allow_pickle=False"
            if words.get("shell", "False") != "False":
                yield node.lineno, "starts a shell"
            if words.get("allow_pickle", "False") != "False":
                yield node.lineno, "allows pickles"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from joblib import load", "eval('1')", "exec('1')",
        "np.load('a')", "np.load('a', allow_pickle=True)", "f('a', shell=True)",
        "torch.load('a')", "import yaml.loader",
    ],
)  # fmt: skip
def test_the_scan_sees(text):
    assert list(findings(ast.parse(text)))


def test_no_pickle_no_eval_no_shell_in_our_code():
    found = [
        f"{path.relative_to(SRC)}:{line} {what}"
        for path in sorted(SRC.rglob("*.py"))
        for line, what in findings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, found
