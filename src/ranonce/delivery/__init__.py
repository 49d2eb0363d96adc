"""Delivery: what takes messages out of the outbox and sends them, and one module for each kind of destination."""
