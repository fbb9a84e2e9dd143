"""All systems on one data set at every epsilon: `fedrec research study` measures,
research/docs/study.md says what came out."""
