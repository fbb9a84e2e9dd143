"""AM-SSP: alternating minimisation with item encoders fitted to noised sufficient statistics."""
