"""Data that the system learns from: private interactions, public features, readers, generators,
splits."""
