"""A news variant from outside: `local`, whose devices answer twice a training."""

from dataclasses import replace

from fedrec.news.variants import local

assert local.VARIANT.in_rounds is not None
VARIANT = replace(local.VARIANT, name="twice", in_rounds=replace(local.VARIANT.in_rounds, passes=2))
