"""Decoder-only language models on languages whose truth is known exactly."""
