"""A method that is registered is everywhere it belongs, and nothing else is."""

from __future__ import annotations

import inspect
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import benchmarks.audit
import pytest
from benchmarks.tables import RESULTS
from tools import generated

import tacitly
from engines import EVERY
from tacitly import neural
from tacitly.cli.main import app
from tacitly.deployment.settings import Settings
from tacitly.federation.allowed import KNOWN, allow
from tacitly.heads import WIRE as HEADS
from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel
from tacitly.methods.registry import ENGINES, REQUIRED, Method, Registry, discover, homes
from tacitly.methods.shared import WIRE as SHARED

ROOT = Path(__file__).parents[1]
METHODS = pytest.mark.parametrize("method", REGISTRY.values(), ids=lambda method: method.name)
SHARED_PARAMETERS = {
    *("epsilon", "delta", "adjacency", "ledger", "run", "engine", "threads", "noise", "noise_seed", "on_bad_rows")
}


def parameters(method: Method) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method.load().__init__).parameters)


def test_every_folder_with_an_estimator_is_registered_and_every_registered_method_has_one() -> None:
    found = {
        f"{package}.{module.name}"
        for package in ("tacitly.methods", "tacitly.neural")
        for module in pkgutil.iter_modules(import_module(package).__path__)
        if module.ispkg and (Path(import_module(package).__path__[0]) / module.name / "estimator.py").exists()
    }
    assert {method.package for method in REGISTRY.values()} == found


@METHODS
def test_a_method_is_described_completely(method: Method) -> None:
    assert issubclass(method.load(), PrivateModel)
    assert method.name == method.name.lower()
    assert method.command in ("fit", "svd", "trace", None)
    assert "local" in method.engines
    assert set(method.engines) <= set(ENGINES)
    assert set(method.limits) <= {*ENGINES, "node"}
    for words in (method.summary, method.data, method.result, method.paper):
        assert words
        assert "\n" not in words
    assert (ROOT / "docs" / method.page.partition("#")[0]).is_file()


@METHODS
def test_every_option_is_a_parameter_of_the_estimator_with_the_same_default(method: Method) -> None:
    known = parameters(method)
    names = [option.name for option in method.options]
    assert len(set(names)) == len(names)
    assert not SHARED_PARAMETERS & set(names)
    for option in method.options:
        default = known[option.name].default
        if default is inspect.Parameter.empty:
            continue  # the command may have a default where the estimator has none
        assert option.default == default, option.name
    for name in method.fixed:
        assert name in known
        assert name not in names
    if method.command is not None:
        assert method.delta == known["delta"].default
        needed = {name for name, value in known.items() if value.default is value.empty and name != "self"}
        assert needed <= {*names, "epsilon"}
    assert method.rank is None or method.rank in known


@METHODS
def test_a_method_is_in_the_facade_by_its_own_name(method: Method) -> None:
    home = neural if method.network else tacitly
    for name in method.homes:
        assert name in dir(home)
        assert name in home.__all__
        assert getattr(home, name).__name__ == name


def test_the_facade_has_no_estimator_that_is_not_registered() -> None:
    for home, prefix in ((tacitly, ""), (neural, "neural.")):
        for name in home.__all__:
            thing = getattr(home, name)
            baseline = getattr(thing, "__module__", "").startswith("tacitly.baselines")
            if isinstance(thing, type) and issubclass(thing, PrivateModel) and not baseline:
                assert REGISTRY.home(prefix + name) == thing.__module__, name


def test_each_method_is_offered_by_its_command_and_every_command_has_one_default() -> None:
    for command in ("fit", "svd", "trace"):
        offered = REGISTRY.offered(command)
        assert offered == {m.name: m for m in REGISTRY.values() if m.command == command}
        assert sum(method.default for method in offered.values()) <= 1
        assert REGISTRY.default(command).command == command
        assert command in [info.callback.__name__ for info in app.registered_commands if info.callback]
    served = {m.name for m in REGISTRY.values() if "flower" in m.engines and m.command}
    assert set(REGISTRY.offered("serve")) == served
    for name in served:
        assert Settings(server="-", out="-", epsilon=1.0, method=name).learns["method"] == name


def test_exactly_the_declared_classes_may_travel() -> None:
    declared = {
        **homes("tacitly.federation", "projected:Projected"),
        **homes("tacitly.heads", *HEADS),
        **homes("tacitly.methods.shared", *SHARED),
    }
    for method in REGISTRY.values():
        declared |= homes(method.package, *method.wire)
        assert not method.wire or method.engines != ("local",)
    assert declared == KNOWN
    for name, module in KNOWN.items():
        assert inspect.isclass(getattr(import_module(module), name))


def test_a_name_that_travels_belongs_to_one_module() -> None:
    with pytest.raises(ValueError, match=r"Loss may travel from .* already"):
        allow({"Loss": "somewhere.else"})


@METHODS
def test_what_a_site_compiles_is_what_the_estimator_takes(method: Method) -> None:
    if "flower" not in method.engines:
        return
    known = parameters(method)
    words = method.words({})
    for rank in (1, 2):
        small = method.small(6, rank, words)
        assert set(small) <= set(known)
        method.load()(**{**small, **words}, epsilon=1.0)
    assert method.plain_compiles(words) in (True, False)
    assert method.coordinates(6, {"rank": 2, **method.words({})}) >= 0


@METHODS
def test_a_method_has_conformance_configurations_and_is_audited(method: Method) -> None:
    assert bool(method.trials) == (method.engines != ("local",))
    assert [trial.name for _, trial in EVERY.values() if _ is method] == [trial.name for trial in method.trials]
    for trial in method.trials:
        assert set(trial.parameters) <= set(parameters(method))
    assert method.audits
    assert {trial.depth for trial in method.audits} <= {"quick", "brief", "long"}
    assert any(trial.depth != "long" for trial in method.audits)
    benched = {*benchmarks.audit.ESTIMATORS, *benchmarks.audit.NETWORKS}
    assert any(trial.title in benched for trial in method.audits)
    for audited in method.audits:
        assert audited.reach == 0.8 or audited.reason


@METHODS
def test_the_audit_of_a_method_is_on_its_page_and_proves_half_of_the_claim(method: Method) -> None:
    rows = {row["name"]: row for row in json.loads((RESULTS / "audit.json").read_text("utf-8"))["defaults"]}
    for title in (trial.title for trial in method.audits if trial.title):
        assert title in rows, f"python -m benchmarks.audit --only {title!r}"
        assert 0.5 <= rows[title]["audited"] / rows[title]["claimed"] <= 1.0


def test_names_of_configurations_are_unique() -> None:
    for names in (
        [trial.name for method in REGISTRY.values() for trial in method.trials],
        [trial.name for method in REGISTRY.values() for trial in method.audits],
        [trial.title for method in REGISTRY.values() for trial in method.audits if trial.title],
    ):
        assert len(set(names)) == len(names)


@METHODS
def test_a_method_is_in_the_tables_of_the_documentation(method: Method) -> None:
    assert f"[`{method.public_name}`](docs/{method.page})" in generated.methods_table("docs/")
    assert f"`{method.public_name}`" in generated.engines_table()


def test_what_is_generated_is_up_to_date() -> None:
    assert not [path.name for path in generated.outdated()], "run make generated"


def test_two_methods_of_one_name_are_refused() -> None:
    method = REGISTRY["fedrep"]
    with pytest.raises(ValueError, match="needs its own name"):
        Registry([method, method])


def test_a_package_without_a_description_is_not_a_method() -> None:
    assert "shared" not in [method.package.rpartition(".")[2] for method in discover("tacitly.methods").values()]


@pytest.mark.parametrize(
    "program",
    [
        "import tacitly",
        "import tacitly.cli.main",
        "import sys; sys.argv = ['tacitly', 'fit', '--method', 'margin', '--help']\n"
        "from tacitly.cli.main import app\ntry: app()\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_loaded_to_import_or_to_show_help(program: str) -> None:
    check = "\nimport sys\nheavy = {'numba', 'scipy', 'sklearn', 'pyarrow', 'torch', 'numpy'}\n"
    check += "print('heavy', sorted(heavy & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program + check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy []"


def test_an_option_without_a_default_must_be_given() -> None:
    assert REGISTRY["fedrep"].options[0].default is REQUIRED
    assert repr(REQUIRED) == "REQUIRED"


def test_few_users_never_wait_for_the_compiler() -> None:
    """A first fit of a few thousand users must not import Numba, let alone compile."""
    program = """
import sys, warnings, numpy, tacitly
warnings.simplefilter("ignore")
rng, users = numpy.random.default_rng(0), numpy.repeat(numpy.arange(300), 8)
X, y = rng.normal(size=(2400, 5)), rng.normal(size=2400)
for model in (tacitly.MixedEffects, tacitly.PrivateFedRep, tacitly.Centaur, tacitly.PrivateAltMin):
    options = {} if model is tacitly.MixedEffects else {"rank": 1}
    model(epsilon=50.0, **options).fit(X, y, users).predict(X, users)
    assert "numba" not in sys.modules, model
tacitly.LowRankSparse(1, 1, epsilon=50.0).fit(X, y, users).predict(X, users)
assert "numba" not in sys.modules, "low rank plus sparse"
for loss, targets in (("logistic", y > 0), ("hinge", y > 0), ("poisson", numpy.rint(abs(y)))):
    tacitly.PrivateFedRep(rank=1, epsilon=50.0, loss=loss).fit(X, targets.astype(int), users).predict(X, users)
    assert "numba" not in sys.modules, loss
"""
    subprocess.run([sys.executable, "-c", program], check=True)
