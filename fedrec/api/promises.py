"""Guarantees as Python shows them: epsilon and delta, never without unit and neighbours.

Estimators' parameters by name, as scikit-learn's `clone` and searches expect them, and tables for
notebooks stand here too: news and ratings share them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Self

from fedrec.api.habits import Answering, remedy
from fedrec.errors import SettingsError, UnknownArgumentError
from fedrec.privacy.accounting import GaussianEvent, opinions
from fedrec.privacy.guarantee import Guarantee
from fedrec.run.statement import COVERS, compared
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import nested


class Parameters(Answering):
    """An estimator whose constructor stores every argument under its name, and does nothing else
    with it."""

    def __sklearn_tags__(self) -> Any:
        """What it is, for pipelines and searches of scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags  # whoever asks has it

        return Tags(None, TargetTags(required=False), input_tags=InputTags(two_d_array=False))

    def _validated(self, keys: Mapping[str, Any]) -> Scenario:
        """The scenario of the settings and of keys that parameters or data decide. Raises
        SettingsError where both say one key, and not the same."""
        settings = getattr(self, "settings", None)
        table = nested({} if settings is None else settings)
        for key, value in keys.items():
            place, _, last = key.rpartition(".")
            inside = table.get(place) if place else table
            said = inside.get(last, value) if isinstance(inside, Mapping) else value
            if said is not value and said != value:  # NaN is not equal to itself
                raise SettingsError(
                    f"{type(self).__name__}: {key} is {said!r} in settings, {value!r} otherwise",
                    "Leave it out of settings: say it as a parameter, or where the data is made.",
                )
        return validated(nested(keys, onto=table), source=type(self).__name__)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor by name.

        >>> import fedrec
        >>> fedrec.ItemBias(epsilon=3).get_params()["epsilon"]
        3
        """
        return {
            name: getattr(self, name)
            for name in list(inspect.signature(type(self).__init__).parameters)[1:]
        }

    def set_params(self, **params: Any) -> Self:
        """Change parameters; the next `fit` uses them. Raises SettingsError on an unknown name.

        >>> import fedrec
        >>> fedrec.ItemBias().set_params(epsilon=3)
        ItemBias(epsilon=3)
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise UnknownArgumentError(
                    f"{type(self).__name__} has no parameter {name!r}",
                    remedy(name, known, method="__init__", value=value),
                )
            setattr(self, name, value)
        return self


def html_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table without styles of its own, so that it follows the notebook's light or dark theme."""
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, repr=False)
class PrivacyGuarantee:
    """(epsilon, delta)-differential privacy of a trained model, with the epsilon of two further
    accountants.

    Args:
        promised: Epsilon, delta, unit and neighbours.
        noise: "system", or "seeded" for an experiment, which must not be released.
        accountants: Epsilon of the noise that was drawn, by privacy loss distributions ("pld")
            and by Renyi divergences ("rdp"); infinite where it was not computed.
        not_covered: What reader and split took from everybody's rows, which nothing promises to
            hide.
        spent: What all trainings on these people's data had cost together when this one had
            ended, a sentence for each unit; () for invented data.

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> promised = fedrec.Popularity(epsilon=2, noise="seeded").fit(data).guarantee
    >>> promised.epsilon, promised.delta, promised.unit, promised.neighbours
    (2.0, 1e-05, 'user', 'add/remove')
    >>> promised.warning
    'seeded noise: an experiment; whoever knows the seed can remove the noise'
    >>> promised.as_dict()["epsilon"]
    2.0
    """

    promised: Guarantee
    noise: str
    accountants: Mapping[str, float] = field(default_factory=dict)
    not_covered: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()

    @staticmethod
    def of(
        promised: Guarantee,
        noise: str,
        events: Sequence[GaussianEvent],
        *,
        not_covered: Sequence[str] = (),
        spent: Sequence[str] = (),
    ) -> PrivacyGuarantee:
        """Return the guarantee of a finished training, from the releases that it made. The further
        accountants are asked when somebody looks.

        Args:
            promised: What the training was calibrated to.
            noise: "system" or "seeded".
            events: What was released, with its price.
            not_covered: What the guarantee says nothing about, in words.
            spent: What else was spent on the same people, in words.

        Returns:
            The guarantee, with the epsilon that the events cost.

        >>> from fedrec.privacy.accounting import GaussianEvent, mu_for
        >>> drawn = GaussianEvent("gram", mu_for(2.0, 1e-5))
        >>> PrivacyGuarantee.of(Guarantee(2.0, 1e-5, "user"), "system", [drawn])
        (2, 1e-05)-DP per user (add/remove, number of users public), PLD 2.00, RDP 2.17
        """
        asked = _Accountants(tuple(events), promised.delta)
        return PrivacyGuarantee(promised, noise, asked, tuple(not_covered), tuple(spent))

    @property
    def epsilon(self) -> float:
        """Epsilon of everything that the training released."""
        return self.promised.epsilon

    @property
    def delta(self) -> float:
        """The probability with which the guarantee may fail."""
        return self.promised.delta

    @property
    def unit(self) -> str:
        """What neighbouring data sets differ in: all data of a user, one example, or one click."""
        return self.promised.unit

    @property
    def neighbours(self) -> str:
        """How they differ: "add/remove" or "replace"."""
        return self.promised.neighbours

    @property
    def warning(self) -> str:
        """What must not be done with the model, and what the guarantee leaves out; empty where
        there is nothing to warn of."""
        if not self.promised.private:
            return "no privacy: the model was trained without noise"
        seeded = "seeded noise: an experiment; whoever knows the seed can remove the noise"
        return "; ".join(filter(None, (seeded * (self.noise == "seeded"), self.promised.note)))

    def __repr__(self) -> str:
        promised = self.promised
        if not promised.private:
            return f"no privacy (epsilon infinite, {promised.compared})"
        words = f"({promised.epsilon:g}, {promised.delta:g})-DP {promised.compared}"
        words += "" if promised.established else ", NOT ESTABLISHED"
        checked = [
            f"{name.upper()} {value:.2f}"
            for name, value in self.accountants.items()
            if name != "gdp" and value != float("inf")
        ]
        told = ", ".join([words, *checked, *([self.warning] if self.warning else [])])
        return "; ".join([told, *(f"all trainings of these people: {one}" for one in self.spent)])

    def _repr_html_(self) -> str:
        rows: list[tuple[object, object]] = [
            ("guarantee", repr(self)),
            ("compared", compared(self.promised)),
            ("covers", COVERS),
            *(("does not cover", what) for what in self.not_covered),
            *(("all trainings of these people", one) for one in self.spent),
        ]
        return html_table(("privacy", ""), rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values.

        Returns:
            What JSON can hold, by name.
        """
        return {
            **asdict(self.promised),
            "noise": self.noise,
            "accountants": dict(self.accountants),
            "not_covered": list(self.not_covered),
            "spent": list(self.spent),
        }


class _Accountants(Mapping[str, float]):
    """Epsilon of all events by accountant, computed at the first look: second opinions load
    `dp_accounting` and take half a second."""

    def __init__(self, events: tuple[GaussianEvent, ...], delta: float) -> None:
        self._asked = events, delta

    @cached_property
    def _found(self) -> dict[str, float]:
        return asdict(opinions(*self._asked))

    def __getitem__(self, name: str) -> float:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(self._found)
