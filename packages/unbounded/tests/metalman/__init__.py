"""Tests of bare metal."""
