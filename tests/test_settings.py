"""Settings are declared once: ranges are checked, and what depends on a setting follows from its declaration."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import lovec
from lovec import cli
from lovec.baselines import PTrue
from lovec.cli.parser import ITSELF, Asked
from lovec.cli.sourcecode import PACKAGES
from lovec.core.settings import (
    LARGEST_COUNT,
    NO_EFFECT,
    Option,
    Positive,
    Probability,
    Setting,
    TrustRemoteCode,
    checked,
    decisive,
    declared,
)
from lovec.datamodules import Demonstrations
from lovec.evaluation import Comparison
from lovec.modules import SFT, EvaluationConfig, PolicyConfig
from lovec.oracles import OpenAIOracle
from lovec.tagging import Selection
from lovec.types import LovecError

ROOMS = {package for packages in PACKAGES.values() for package in packages if package.startswith("lovec.")}
"""Packages whose classes recipes name."""


def option_sources() -> Iterator[Callable[..., Any]]:
    """The functions and classes whose parameters are options of a command; the trainer's are those of `ROOMS`."""
    for command in cli.COMMANDS:
        if command not in cli.TRAINING:
            with pytest.raises(Asked) as answer:
                importlib.import_module(f"lovec.cli.{command}").run([ITSELF])
            yield from getattr(answer.value.parser, "targets", ())


SOURCES = list(dict.fromkeys(option_sources()))

# Written by hand: that no recipe sets these is a decision, which a new class should have to ask for.
INNER = {"ConstantTagger", "CalibratedStack", "Evaluator", "Example", "TeacherResources", "Work"}
"""Classes of these packages that are made by others: no option sets their numbers."""

CHECKED_BY_A_FUNCTION = {"Selection.min_confidence", "TagSettings.doubt"}
"""Numbers without a declared range, since the error of a function says more: 7 of 10 is the confidence 0.7."""


@dataclass(frozen=True)
class Number:
    """One number that a class takes, and what is declared of it."""

    target: Any
    option: Option

    def __str__(self) -> str:
        return f"{self.target.__name__}.{self.option.name}"

    @property
    def limits(self) -> Setting:
        assert self.option.setting is not None
        return self.option.setting

    @property
    def allowed(self) -> list[float]:
        """Numbers at the ends of its range and inside, as far as the declaration says so."""
        limits, step = self.limits, 1 if self.option.number is int else 1e-3
        ends = [limits.at_least, limits.at_most]
        ends += [None if limits.above is None else limits.above + step]
        ends += [None if limits.below is None else limits.below - step]
        return [self.option.number(end) for end in ends if end is not None and abs(end) <= LARGEST_COUNT] or [-1, 0, 1]

    @property
    def refused(self) -> list[Any]:
        """Whatever no setting may be, and what lies just outside its range."""
        wrong: list[Any] = [math.nan, math.inf, -math.inf, 1e30, -1e30, 10**30, -(10**30), "3", True, [1]]
        wrong += [1.5] if self.option.number is int else []
        limits = self.limits
        wrong += [end - 1 for end in (limits.at_least, limits.above) if end is not None]
        wrong += [end + 1 for end in (limits.at_most, limits.below) if end is not None]
        return wrong + [end for end in (limits.above, limits.below) if end is not None]

    def make(self, value: Any) -> Any:
        """Give it to the class, and nothing else: numbers are checked before the class misses what else it needs."""
        return concrete(self.target)(**{self.option.name: value})


def concrete(target: Any) -> Any:
    """The class, or a subclass of it that a user would write where it is abstract."""
    if not inspect.isabstract(target):
        return target
    return type(target.__name__, (target,), dict.fromkeys(target.__abstractmethods__, lambda self, *_: 0.0))


def classes() -> Iterator[type[Any]]:
    """Every public class that lovec defines."""
    for module in pkgutil.walk_packages(lovec.__path__, "lovec."):
        if not module.name.startswith(("lovec.configs", "lovec.labelling.ray_pipeline")):  # which needs an extra
            for name, value in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(value) and value.__module__ == module.name and not name.startswith("_"):
                    yield value


def own(target: type[Any]) -> list[Option]:
    """What the class itself takes, and not a base of it."""
    if "__init__" not in vars(target):
        return []
    names = inspect.signature(target.__init__).parameters
    return [option for name, option in declared(target).items() if name in names]


CLASSES = list(dict.fromkeys([*classes(), *(source for source in SOURCES if isinstance(source, type))]))
DECLARED = [
    Number(target, option)
    for target in CLASSES
    for option in own(target)
    if option.number is not None and option.setting is not None
]


@pytest.mark.parametrize("number", DECLARED, ids=str)
def test_a_declared_number_is_checked(number: Number) -> None:
    """NaN, infinity, absurd sizes, other types and what lies outside of the range are refused; its ends are not."""
    for value in number.refused:
        if not (number.option.many and value == [1]):
            with pytest.raises(LovecError) as error:
                number.make(value)
            assert re.search(rf"\b{number.option.name}(_share)?\b", str(error.value)), (value, error)
            assert "\n" not in str(error.value) and "expected" in str(error.value)
    for value in number.allowed:
        number.option.check(value)


def test_every_number_that_an_option_sets_is_declared() -> None:
    """Of the classes that recipes name and of the groups of their options."""
    assert len(DECLARED) > 100
    named = [(room, kind) for room in ROOMS for kind in vars(importlib.import_module(room)).values()]
    options = {kind for room, kind in named if inspect.isclass(kind) and kind.__module__.startswith(room)}
    options = {kind for kind in options if kind.__name__ not in INNER}
    options |= {option.group for kind in options for option in declared(kind).values() if option.group is not None}
    missing = {
        f"{kind.__name__}.{option.name}"
        for kind in [*options, *SOURCES]
        for option in (own(kind) if isinstance(kind, type) else declared(kind).values())
        if option.number is not None and option.setting is None and not option.many
    }
    assert missing == CHECKED_BY_A_FUNCTION


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, 7, 10**30, "3", True, [1]])
def test_a_threshold_is_a_confidence(value: Any) -> None:
    with pytest.raises(LovecError, match=r"^min_confidence is .*expected .*at least 0 and at most 1"):
        Selection(min_confidence=value)


def test_defaults_lie_in_their_ranges() -> None:
    for target in CLASSES:
        for option in own(target):
            default = inspect.signature(target.__init__).parameters[option.name].default
            option.check(None if default is inspect.Parameter.empty else default)


# ---------------------------------------------------------------- what follows from a declaration


class Own(SFT):
    """An objective of a user: one option has a range, one has none."""

    def __init__(
        self, tau: Positive = 0.1, free: float = 0.5, loud: Annotated[bool, NO_EFFECT] = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.tau, self.free = tau, free


def test_an_objective_of_a_user_needs_no_declaration_and_may_have_one() -> None:
    with pytest.raises(LovecError, match=r"^tau is 0, expected above 0$"):
        Own(policy=PolicyConfig(), tau=0)
    with pytest.raises(LovecError, match=r"^grad_norm is -1, expected at least 0$"):
        Own(policy=PolicyConfig(), grad_norm=-1)
    assert Own(policy=PolicyConfig(), free=math.inf).free == math.inf
    options = declared(Own)
    assert options["free"].decides and options["tau"].decides and not options["loud"].decides
    assert options["free"].taken is None and not options["micro_batch_tokens"].decides  # of a base class


def test_what_is_declared_of_one_setting_adds_up() -> None:
    both = declared(OpenAIOracle)["max_cost"]
    assert both.setting == Setting(at_least=0, decides=False) and both.number is float
    assert declared(TrustingClass)["trust"].taken == "never" and declared(TrustingClass)["unknown"].types == ()


class TrustingClass:
    def __init__(self, trust: TrustRemoteCode = False, unknown: "NotImported" = None) -> None:  # type: ignore[name-defined] # noqa: F821, UP037
        pass


@checked("--{}")
@dataclass(frozen=True, slots=True)
class Group:
    share: Probability | list[Probability] | None = None
    mode: Literal["a", "b"] | None = None
    port: Annotated[int, Setting(at_least=0, at_most=65535)] = 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 1.0}, "--share is 1.0, expected above 0 and below 1"),
        ({"share": [0.5, "x"]}, "--share is 'x', expected a number above 0 and below 1"),
        ({"mode": "c"}, "--mode is 'c', expected one of a, b or null"),
        ({"port": 2**16}, "--port is 65536, expected at least 0 and at most 65535"),
        ({"port": 0.5}, "--port is 0.5, expected an integer at least 0 and at most 65535"),
        ({"port": None, "share": [0.1, 0.9], "mode": "a"}, None),
    ],
)
def test_what_is_given_is_checked(given: dict[str, Any], message: str | None) -> None:
    if message is None:
        Group(**given)
        return
    with pytest.raises(LovecError, match=f"^{re.escape(message)}$"):
        Group(**given)
    with pytest.raises(LovecError, match=f"^{re.escape(message)}$"):
        Group(*(given.get(name) for name in ("share", "mode", "port")))


def test_what_is_given_by_place_is_taken_as_python_takes_it() -> None:
    @checked("--{}")
    class Handed:
        def __init__(self, share: float, *others: float, weight: Positive = 0.5) -> None:
            self.given = share, others, weight

    assert Handed(0.25, -20.0, 3.0, weight=0.3).given == (0.25, (-20.0, 3.0), 0.3)
    assert Handed(0.25, -20.0).given == (0.25, (-20.0,), 0.5)


class Wide:
    def __init__(self, share: Positive = 1.0, rows: int = 1) -> None:
        pass


class Narrow(Wide):
    def __init__(self, share: Probability = 0.5, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)


def test_a_path_is_taken_as_its_text() -> None:
    config = PolicyConfig(Path("models/own"), Path("runs/w"), chat_template=Path("own.jinja"))  # type: ignore[arg-type]
    assert config == PolicyConfig("models/own", "runs/w", chat_template="own.jinja")
    assert EvaluationConfig(adapter=Path("runs/w")).adapter == "runs/w"  # type: ignore[arg-type]
    assert PTrue(adapter=Path("runs/w")).adapter == "runs/w"  # type: ignore[arg-type]
    data = Demonstrations(Path("a.jsonl"), test_path=Path("b.jsonl"))  # type: ignore[arg-type]
    assert (data.path, data.test_path) == ("a.jsonl", "b.jsonl")
    compared = Comparison({"SFT": Path("runs/w")}, policy=PolicyConfig())  # type: ignore[dict-item]
    assert compared.adapters == {"SFT": "runs/w"}


def test_a_subclass_may_narrow_what_its_base_declares_and_keeps_the_rest() -> None:
    options = declared(Narrow)
    assert options["share"].setting == Setting(above=0, below=1) and options["rows"].number is int
    assert declared(Wide)["share"].setting == Setting(above=0)


def test_results_depend_on_all_that_is_not_declared_otherwise() -> None:
    oracle = {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "m", "max_cost": 1.0, "timeout": 2.0}}
    policy = {"model": "world", "share_prefixes": True, "lora_r": 4}
    settings = {"policy": policy, "evaluation": {"rows": 3}, "oracle": oracle, "new": 1, "beta": 0.1}
    assert decisive({"class_path": "lovec.modules.DPO", "init_args": settings}) == {
        "class_path": "lovec.modules.DPO",
        "init_args": {
            "policy": {"model": "world", "lora_r": 4},
            "oracle": {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "m"}},
            "new": 1,
            "beta": 0.1,
        },
    }
    unknown = {"class_path": "no_such.Thing", "init_args": {"timeout": 1}}
    assert decisive([unknown, 5]) == [unknown, 5]
