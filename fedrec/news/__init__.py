"""Private news recommendation: mechanisms on clicks, public topics, training rounds and their
variants."""
