"""Every claim of the papers that we know of, one list, each with what tests it and our verdict."""
