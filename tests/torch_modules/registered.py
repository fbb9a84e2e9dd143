"""The scenario of a module that this process knows, for walks over all recipes."""

from fedrec.torch_modules.contract import register
from tests.torch_modules.outside_module import Mean

TORCH = ["recipe=torch", f"own.module={register(Mean)}", "own.rounds=2"]
