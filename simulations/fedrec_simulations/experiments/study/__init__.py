"""All systems on one data set at every epsilon: `fedrec bench study` measures, docs/study.md says
what came out."""
