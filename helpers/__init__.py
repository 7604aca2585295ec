"""Thin helpers for the course: text flows data -> encode -> decide -> act; course runs the notebooks."""
