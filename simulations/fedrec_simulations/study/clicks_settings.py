"""Settings of Ada-DPALS and DPALS on yelp2018 and amazon-book, by epsilon: chosen on clicks drawn from train, never by test."""
