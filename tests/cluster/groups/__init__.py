"""Tests of worker groups; a package, so that one Ray serves them all and ends with them."""
