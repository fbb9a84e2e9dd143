"""Parameters of an estimator by name, as scikit-learn's `clone` and searches expect them."""

from __future__ import annotations

import inspect
from typing import Any, Self

from fedrec.errors import SettingsError


class Parameters:
    """An estimator whose constructor stores every argument under its name, and does nothing else
    with it."""

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
                raise SettingsError(
                    f"{type(self).__name__} has no parameter {name!r}",
                    f"Its parameters are {', '.join(known)}.",
                )
            setattr(self, name, value)
        return self
